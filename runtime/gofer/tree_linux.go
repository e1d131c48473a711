// SPDX-License-Identifier: Apache-2.0

// A tree: what is served on one socket.

package gofer

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/unet"

	"z.gfire.dev/gvx/runtime/api"
)

// tree is a directory or a file that is served on one socket.
type tree struct {
	name string
	// root is the O_PATH descriptor of its root.
	root int
	// detached says that root is a mount of its own, attached nowhere.
	detached bool
	readOnly bool
	noSUID   bool
	owner    owner

	// socket is the same as conn's, for the hello.
	socket int
	server *lisafs.Server
	conn   *lisafs.Connection
}

// openTrees makes the connections, of which nobody is served yet: what they need
// of the host is made here, before the allow-list.
func openTrees(cfg *api.Gofer) ([]*tree, error) {
	trees := make([]*tree, len(cfg.Trees))
	for i := range cfg.Trees {
		c := &cfg.Trees[i]
		t := &tree{
			name: c.Name, root: int(c.RootFD), detached: c.Detached, readOnly: c.ReadOnly, noSUID: c.NoSUID,
			owner: newOwner(cfg.Owner), socket: int(c.SocketFD),
		}
		if err := t.connect(); err != nil {
			return nil, fmt.Errorf("tree %s: %w", t.name, err)
		}
		trees[i] = t
	}
	return trees, nil
}

// connect makes the connection.
func (t *tree) connect() error {
	for _, fd := range []int{t.root, t.socket} {
		unix.CloseOnExec(fd)
	}
	sock, err := unet.NewSocket(t.socket)
	if err != nil {
		return fmt.Errorf("use the socket: %w", err)
	}
	// A server for each tree: requests for one never wait for another's.
	t.server = lisafs.NewServer()
	t.server.SetHandlers(handlers())
	t.conn, err = t.server.CreateConnection(sock, "/", lisafs.ConnectionOpts{
		Readonly: t.readOnly,
		// Everything here works on descriptors, whatever became of their names.
		WalkStatSupported: true, SetAttrOnDeleted: true, AllocateOnDeleted: true, OpenOnDeleted: true,
	}, t)
	if err != nil {
		return fmt.Errorf("make the connection: %w", err)
	}
	return nil
}

// serve waits for the sandbox' hello and answers its requests until it hangs up.
func (t *tree) serve() error {
	hello, err := readHello(t.socket)
	if err != nil {
		unix.Close(t.socket)
		if err == io.EOF {
			return nil // a sandbox that never came to mount it
		}
		return err
	}
	t.owner.setGuest(hello)
	t.conn.Run()
	t.server.Destroy()
	return nil
}

// readHello receives the first message.
func readHello(fd int) (*api.GoferHello, error) {
	buf := make([]byte, api.GoferHelloBytes)
	for got := 0; got < len(buf); {
		n, err := unix.Read(fd, buf[got:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			if _, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, nil, nil); err != nil && err != unix.EINTR {
				return nil, fmt.Errorf("wait for the hello: %w", err)
			}
		case err != nil:
			return nil, fmt.Errorf("receive the hello: %w", err)
		case n == 0:
			return nil, io.EOF
		default:
			got += n
		}
	}
	hello := new(api.GoferHello)
	return hello, hello.Unmarshal(buf)
}

// Mount implements lisafs.ConnectionImpl.
func (t *tree) Mount(c *lisafs.Connection, _ *lisafs.Node) (*lisafs.ControlFD, lisafs.Statx, int, error) {
	fd, err := duplicate(t.root)
	if err != nil {
		return nil, lisafs.Statx{}, -1, err
	}
	st, err := t.stat(fd)
	if err != nil {
		unix.Close(fd)
		return nil, lisafs.Statx{}, -1, err
	}
	n := &file{tree: t, fd: fd}
	n.init(c, &st)
	return &n.ControlFD, st, -1, nil
}

// MaxMessageSize implements lisafs.ConnectionImpl.
func (t *tree) MaxMessageSize() uint32 { return lisafs.MaxMessageSize() }

// SupportedMessages implements lisafs.ConnectionImpl.
func (t *tree) SupportedMessages() []lisafs.MID { return slices.Sorted(maps.Keys(requests)) }

// statMask is what is asked of the host about a file.
const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// stat returns the attributes of a descriptor, as the guest sees them.
func (t *tree) stat(fd int) (lisafs.Statx, error) { return t.statAt(fd, "", unix.AT_EMPTY_PATH) }

// statAt returns the attributes of a name in a directory.
func (t *tree) statAt(dir int, name string, flags int) (lisafs.Statx, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statMask, &st); err != nil {
		return lisafs.Statx{}, err
	}
	uid, gid := t.owner.toGuest(st.Uid, st.Gid)
	return lisafs.Statx{
		Mask: st.Mask & statMask, Blksize: st.Blksize, Attributes: st.Attributes, AttributesMask: st.Attributes_mask,
		Nlink: st.Nlink, UID: uid, GID: gid, Mode: st.Mode, Ino: st.Ino, Size: st.Size, Blocks: st.Blocks,
		Atime: timestamp(st.Atime), Btime: timestamp(st.Btime), Ctime: timestamp(st.Ctime), Mtime: timestamp(st.Mtime),
		RdevMajor: st.Rdev_major, RdevMinor: st.Rdev_minor, DevMajor: st.Dev_major, DevMinor: st.Dev_minor,
	}, nil
}

func timestamp(t unix.StatxTimestamp) lisafs.StatxTimestamp {
	return lisafs.StatxTimestamp{Sec: t.Sec, Nsec: t.Nsec}
}

// duplicate returns another descriptor of the same open file.
func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
