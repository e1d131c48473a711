// SPDX-License-Identifier: Apache-2.0

// Command ext4fuse mounts a volume of ext4lite by FUSE, so that suites written
// for kernel file systems can be run over the library. It is for tests: gvx
// itself never mounts anything on the host.
//
//	ext4fuse [flags] VOLUME FOLDER
//
// It says "mounted" on standard output when the mount can be used, and ends
// when the folder is unmounted; SIGTERM and SIGINT unmount it. Root is needed:
// every user of the machine reaches the mount, with set-user-ID and device
// files, and the kernel checks permissions by owner and mode.
//
// The kernel keeps names but not attributes, so that each stat shows what the
// library has.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "ext4fuse: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	durable := flag.Bool("host", false, "syncs wait for the disk")
	ranges := flag.Bool("range-sync", false, "a sync waits for its own file's data only")
	discard := flag.Bool("discard", false, "give freed blocks back to the host")
	options := flag.String("o", "", "options of the mount: ro, nosuid, nodev, noexec; others are passed to the kernel")
	size := flag.Int64("mkfs", 0, "make an empty volume of so many bytes first")
	debug := flag.Bool("debug", false, "print every request")
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		return fmt.Errorf("a volume and a folder are needed")
	}
	o := ext4lite.Options{Durability: ext4lite.Process, RangeSync: *ranges, Discard: *discard,
		OnReadOnly: func(why error) { fmt.Fprintf(os.Stderr, "ext4fuse: the volume takes no more changes: %v\n", why) }}
	if *durable {
		o.Durability = ext4lite.Host
	}
	flags, rest := mountFlags(*options)
	o.ReadOnly = flags&unix.MS_RDONLY != 0
	if *size > 0 {
		if err := mkfs(flag.Arg(0), *size); err != nil {
			return err
		}
	}
	fs, err := ext4lite.OpenFile(flag.Arg(0), o)
	if err != nil {
		return err
	}
	server, err := mount(fs, flag.Arg(0), flag.Arg(1), flags, rest, *debug)
	if err != nil {
		fs.Close()
		return fmt.Errorf("mount %s: %w", flag.Arg(1), err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for range signals {
			for unix.Unmount(flag.Arg(1), 0) != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	fmt.Println("mounted")
	server.Wait()
	return fs.Close()
}

func mkfs(name string, size int64) error {
	dev, err := device.CreateFile(name, size)
	if err != nil {
		return err
	}
	if err := ext4lite.Mkfs(dev, ext4lite.MkfsOptions{}); err != nil {
		dev.Close()
		return err
	}
	return dev.Close()
}

// flagOptions are those options of mount(8) that are flags of mount(2).
var flagOptions = map[string]uintptr{
	"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME, "lazytime": unix.MS_LAZYTIME,
	"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
}

// mountFlags sorts mount(8)'s options into flags of mount(2) and the rest.
// What is always so is left out.
func mountFlags(options string) (flags uintptr, rest []string) {
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "", "rw", "suid", "dev", "exec", "atime", "allow_other", "default_permissions":
			continue
		}
		if flag, ok := flagOptions[option]; ok {
			flags |= flag
		} else {
			rest = append(rest, option)
		}
	}
	return flags, rest
}

// maxTransfer is the largest read or write the kernel asks for at once.
const maxTransfer = 1 << 20

// extras are what the kernel does only if asked: it opens files by handle,
// leaves umask and default ACLs to the server, and says when a list that is set
// takes the set-group-ID bit away.
const extras = fuse.CAP_EXPORT_SUPPORT | fuse.CAP_DONT_MASK | fuse.CAP_SETXATTR_EXT

// mount mounts and serves. The type of file system is plain "fuse", which
// suites know.
func mount(fs *ext4lite.FS, source, dir string, flags uintptr, options []string, debug bool) (*fuse.Server, error) {
	v := &volume{RawFileSystem: fuse.NewDefaultRawFileSystem(), fs: fs, nodes: map[uint64]*node{}}
	root, err := fs.Root()
	if err != nil {
		return nil, err
	}
	v.nodes[fuse.FUSE_ROOT_ID] = &node{Inode: root, lookups: 1}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	options = append([]string{fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", fd, maxTransfer), "default_permissions", "allow_other"}, options...)
	if err := unix.Mount(source, dir, "fuse", flags, strings.Join(options, ",")); err != nil {
		return nil, err
	}
	server, err := fuse.NewServer(v, fmt.Sprintf("/dev/fd/%d", fd), &fuse.MountOptions{MaxWrite: maxTransfer, DisableReadDirPlus: true, EnableAcl: true, ExtraCapabilities: extras, Debug: debug})
	if err != nil {
		return nil, err
	}
	go server.Serve()
	return server, server.WaitMount()
}
