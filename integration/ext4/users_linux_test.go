// SPDX-License-Identifier: Apache-2.0

// Several users at work on one volume, and on one of kernel ext4: every call
// must end alike. It covers what pjdfstest covers (who may do what, which error
// comes first, what a call does to modes, owners and links) without it.

package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// user is who does something; the first group is the main one.
type user struct {
	uid    int
	groups []uint32
}

// The users share a group, in part.
var users = []user{{0, []uint32{0}}, {0, []uint32{0}}, {1101, []uint32{1101, 1200}}, {1102, []uint32{1102, 1200}}, {1103, []uint32{1103}}}

// unchanged is the argument that leaves an ID alone.
const unchanged = ^uintptr(0)

// as does something as a user. The rights are this thread's alone.
func as(t *testing.T, u user, do func()) {
	set := func(uid int, groups []uint32) {
		for _, call := range [][4]uintptr{
			{unix.SYS_SETRESUID, unchanged, 0, unchanged},
			{unix.SYS_SETRESGID, unchanged, uintptr(groups[0]), unchanged},
			{unix.SYS_SETRESUID, unchanged, uintptr(uid), unchanged},
		} {
			if call[0] == unix.SYS_SETRESGID {
				if err := setgroups(groups); err != 0 {
					t.Fatalf("setgroups: %v", err)
				}
			}
			if _, _, err := unix.RawSyscall(call[0], call[1], call[2], call[3]); err != 0 {
				t.Fatalf("become user %d: %v", uid, err)
			}
		}
	}
	set(u.uid, u.groups)
	do()
	set(0, []uint32{0})
}

// setgroups is of this thread alone, unlike unix.Setgroups.
func setgroups(groups []uint32) unix.Errno {
	_, _, err := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
	return err
}

// call is one system call with its arguments chosen, to be made in a folder.
type call struct {
	what string
	do   func(root string) string // what came of it
}

func errname(err error) string {
	var e unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// caller makes up calls.
type caller struct{ r *rand.Rand }

// path is one of few names, so that calls meet.
func (c *caller) path() string {
	names := []string{"a", "b", "c", "d"}
	p := []string{}
	for range 1 + c.r.IntN(3) {
		p = append(p, names[c.r.IntN(len(names))])
	}
	s := strings.Join(p, "/")
	switch c.r.IntN(60) {
	case 0:
		return s + "/"
	case 1:
		return s + "/."
	case 2:
		return s + "/.."
	case 3:
		return s + "/" + strings.Repeat("n", 254+c.r.IntN(3))
	}
	return s
}

func (c *caller) mode() uint32 {
	m := uint32(c.r.IntN(0o1000))
	if c.r.IntN(2) == 0 {
		m |= 0o700
	}
	if c.r.IntN(4) == 0 {
		m |= uint32(c.r.IntN(8)) << 9
	}
	return m
}

func (c *caller) id() int {
	return []int{-1, 0, 1101, 1102, 1103, 1200}[c.r.IntN(6)]
}

// next makes up a call.
func (c *caller) next() call {
	p, q, m := c.path(), c.path(), c.mode()
	simple := func(name string, do func(root string) error) call {
		return call{name, func(root string) string { return errname(do(root)) }}
	}
	switch c.r.IntN(22) {
	case 0, 1:
		return simple(fmt.Sprintf("mkdir %s %o", p, m), func(r string) error { return unix.Mkdir(r+p, m) })
	case 2, 3:
		return c.open(p, m)
	case 4:
		return simple("unlink "+p, func(r string) error { return unix.Unlink(r + p) })
	case 5:
		return simple("rmdir "+p, func(r string) error { return unix.Rmdir(r + p) })
	case 6:
		return simple("link "+p+" "+q, func(r string) error { return unix.Link(r+p, r+q) })
	case 7:
		return simple("symlink "+p+" "+q, func(r string) error { return unix.Symlink(p, r+q) })
	case 8, 9:
		flags := []uint{0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_WHITEOUT}[c.r.IntN(5)]
		return simple(fmt.Sprintf("rename %s %s %d", p, q, flags), func(r string) error {
			return unix.Renameat2(unix.AT_FDCWD, r+p, unix.AT_FDCWD, r+q, flags)
		})
	case 10:
		kind := []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFREG}[c.r.IntN(5)]
		return simple(fmt.Sprintf("mknod %s %o", p, kind|m), func(r string) error { return unix.Mknod(r+p, kind|m, int(unix.Mkdev(300, 70000))) })
	case 11, 12:
		return simple(fmt.Sprintf("chmod %s %o", p, m), func(r string) error { return unix.Chmod(r+p, m) })
	case 13, 14:
		uid, gid := c.id(), c.id()
		return simple(fmt.Sprintf("lchown %s %d %d", p, uid, gid), func(r string) error { return unix.Lchown(r+p, uid, gid) })
	case 15:
		size := c.r.Int64N(20000)
		return simple(fmt.Sprintf("truncate %s %d", p, size), func(r string) error { return unix.Truncate(r+p, size) })
	case 16:
		times := []unix.Timespec{{Sec: 1e9, Nsec: 5}, {Sec: 2e9, Nsec: 7}}
		if c.r.IntN(2) == 0 {
			times = nil
		}
		return simple(fmt.Sprintf("utimensat %s %v", p, times), func(r string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, r+p, times, 0) })
	case 17:
		mode := uint32(c.r.IntN(8))
		return simple(fmt.Sprintf("faccessat %s %d", p, mode), func(r string) error { return unix.Faccessat(unix.AT_FDCWD, r+p, mode, unix.AT_EACCESS) })
	case 18:
		return c.xattr(p)
	case 19:
		return call{"list " + p, func(r string) string { return list(r + p) }}
	case 20:
		return c.unnamed(p, q, m)
	}
	return call{"readlink " + p, func(r string) string {
		buf := make([]byte, 300)
		n, err := unix.Readlink(r+p, buf)
		return errname(err) + " " + string(buf[:max(n, 0)])
	}}
}

// open opens a file and writes, reads or reserves a little.
func (c *caller) open(p string, m uint32) call {
	flags := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR}[c.r.IntN(3)] | unix.O_NONBLOCK
	for _, f := range []int{unix.O_CREAT, unix.O_EXCL, unix.O_TRUNC, unix.O_APPEND, unix.O_NOFOLLOW, unix.O_DIRECTORY} {
		if c.r.IntN(3) == 0 && (f != unix.O_DIRECTORY || flags&unix.O_CREAT == 0) {
			flags |= f
		}
	}
	n := c.r.IntN(6000)
	return call{fmt.Sprintf("open %s %#x %o, use %d", p, flags, m, n), func(r string) string {
		fd, err := unix.Open(r+p, flags, m)
		if err != nil {
			return errname(err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		unix.Fstat(fd, &st)
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return "ok, not a file"
		}
		_, we := unix.Write(fd, make([]byte, n))
		k, re := unix.Pread(fd, make([]byte, 30000), 0)
		fe := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, int64(n)+1)
		return fmt.Sprint("write ", errname(we), ", read ", k, " ", errname(re), ", fallocate ", errname(fe))
	}}
}

func (c *caller) xattr(p string) call {
	name := []string{"user.one", "user.two", "trusted.x", "security.x", "nonsense.x"}[c.r.IntN(5)]
	value := make([]byte, c.r.IntN(200))
	if c.r.IntN(2) == 0 {
		name, value = "system.posix_acl_"+[]string{"access", "default"}[c.r.IntN(2)], c.acl()
	}
	flags := c.r.IntN(3)
	kind := c.r.IntN(3)
	return call{fmt.Sprintf("xattr %d %s of %s, %d bytes, %d", kind, name, p, len(value), flags), func(r string) string {
		switch kind {
		case 0:
			return errname(unix.Lsetxattr(r+p, name, value, flags))
		case 1:
			return errname(unix.Lremovexattr(r+p, name))
		}
		n, err := unix.Lgetxattr(r+p, name, make([]byte, 100))
		return fmt.Sprint(n, " ", errname(err))
	}}
}

// acl makes up an access control list as setxattr(2) takes it, now and then a
// wrong one.
func (c *caller) acl() []byte {
	const undefined = 1<<32 - 1
	v := binary.LittleEndian.AppendUint32(nil, 2)
	add := func(tag uint16, id uint32) {
		v = binary.LittleEndian.AppendUint16(v, tag)
		v = binary.LittleEndian.AppendUint16(v, uint16(c.r.IntN(8)))
		v = binary.LittleEndian.AppendUint32(v, id)
	}
	named := c.r.IntN(3)
	add(0x01, undefined)
	for k := range named {
		add(0x02, uint32(1101+k))
	}
	add(0x04, undefined)
	if named > 1 {
		add(0x08, 1200)
	}
	if named > 0 && c.r.IntN(20) > 0 || c.r.IntN(4) == 0 {
		add(0x10, undefined)
	}
	if c.r.IntN(20) > 0 {
		add(0x20, undefined)
	}
	return v
}

// unnamed makes a file without a name, then gives it one.
func (c *caller) unnamed(p, q string, m uint32) call {
	return call{fmt.Sprintf("O_TMPFILE in %s, then %s", p, q), func(r string) string {
		fd, err := unix.Open(r+p, unix.O_TMPFILE|unix.O_RDWR, m)
		if err != nil {
			return errname(err)
		}
		defer unix.Close(fd)
		unix.Write(fd, []byte("unnamed"))
		return "linkat " + errname(unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", fd), unix.AT_FDCWD, r+q, unix.AT_SYMLINK_FOLLOW))
	}}
}

func list(path string) string {
	entries, err := os.ReadDir(path)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name()+e.Type().String())
	}
	return errname(err) + " " + strings.Join(names, " ")
}

// tree describes all that is below a folder.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, "/lost+found") {
			return fs.SkipDir
		}
		out = append(out, describe(strings.TrimPrefix(path, root), path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func describe(name, path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return name + " " + errname(err)
	}
	size := st.Size
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		size = 0
	}
	if st.Mode&(unix.S_IFMT|unix.S_ISGID|unix.S_IXGRP) == unix.S_IFREG|unix.S_ISGID {
		// A lock mark, which chown by somebody outside the group takes away:
		// the kernel's FUSE client, unlike its ext4, forgets that.
		st.Mode &^= unix.S_ISGID
	}
	s := fmt.Sprintf("%s %o %d:%d links %d size %d device %#x", name, st.Mode, st.Uid, st.Gid, st.Nlink, size, st.Rdev)
	if st.Mtim.Sec == 2e9 {
		s += fmt.Sprintf(" mtime %d.%d", st.Mtim.Sec, st.Mtim.Nsec) // looking changes atime
	}
	buf := make([]byte, 4096)
	if n, err := unix.Llistxattr(path, buf); err == nil && n > 0 {
		names := strings.Split(string(buf[:n-1]), "\x00")
		slices.Sort(names)
		for _, name := range names {
			value := make([]byte, 4096)
			n, err := unix.Lgetxattr(path, name, value)
			s += fmt.Sprintf(" %s=%x,%s", name, value[:max(n, 0)], errname(err))
		}
	}
	return s
}

// TestUsersBesideKernel makes the same calls on both mounts.
func TestUsersBesideKernel(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the test
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := scratch(t)
	m := serve(t, filepath.Join(dir, "ours.ext4"), 256<<20)
	theirs := kernelMount(t, filepath.Join(dir, "theirs.ext4"), 256<<20)
	for seed := range amount(200, 10) {
		at := fmt.Sprintf("/%d/", seed)
		roots := []string{theirs + at, m.dir + at}
		for _, root := range roots {
			if err := os.Mkdir(root, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(root, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		c := &caller{r: rand.New(rand.NewPCG(uint64(seed), 9))}
		for k := range 600 {
			u, next := users[c.r.IntN(len(users))], c.next()
			unix.Umask([]int{0, 0o022, 0o077}[c.r.IntN(3)])
			var got [2]string
			as(t, u, func() {
				for i, root := range roots {
					got[i] = strings.ReplaceAll(next.do(root), root, "")
				}
			})
			unix.Umask(0)
			if got[0] != got[1] {
				t.Fatalf("seed %d, call %d: user %d, %s\nkernel ext4: %s\nours:        %s\nkernel ext4:\n%s\nours:\n%s", seed, k, u.uid, next.what,
					got[0], got[1], strings.Join(tree(t, roots[0]), "\n"), strings.Join(tree(t, roots[1]), "\n"))
			}
		}
		want, have := tree(t, roots[0]), tree(t, roots[1])
		if !slices.Equal(want, have) {
			t.Fatalf("seed %d: kernel ext4:\n%s\nours:\n%s", seed, strings.Join(want, "\n"), strings.Join(have, "\n"))
		}
	}
	m.finish()
}
