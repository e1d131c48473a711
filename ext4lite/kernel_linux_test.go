// SPDX-License-Identifier: Apache-2.0

// Kernel ext4, through a loop mount, as a target of comparison. Needs root.

package ext4lite_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
)

// kernel drives a mounted directory.
type kernel struct {
	t   testing.TB
	dir string
}

func (k *kernel) p(path string) string { return k.dir + "/" + path }

func sysno(err error) ext4lite.Errno {
	var e unix.Errno
	if errors.As(err, &e) {
		return ext4lite.Errno(e)
	}
	if err != nil {
		return ext4lite.EIO
	}
	return 0
}

func (k *kernel) create(path string, mode uint16) ext4lite.Errno {
	fd, err := unix.Open(k.p(path), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, uint32(mode))
	if err == nil {
		unix.Close(fd)
	}
	return sysno(err)
}
func (k *kernel) mkdir(path string, mode uint16) ext4lite.Errno {
	return sysno(unix.Mkdir(k.p(path), uint32(mode)))
}
func (k *kernel) symlink(path, to string) ext4lite.Errno { return sysno(unix.Symlink(to, k.p(path))) }
func (k *kernel) mknod(path string, mode uint16, major, minor uint32) ext4lite.Errno {
	return sysno(unix.Mknod(k.p(path), uint32(mode), int(unix.Mkdev(major, minor))))
}
func (k *kernel) link(from, to string) ext4lite.Errno { return sysno(unix.Link(k.p(from), k.p(to))) }
func (k *kernel) unlink(path string) ext4lite.Errno   { return sysno(unix.Unlink(k.p(path))) }
func (k *kernel) rmdir(path string) ext4lite.Errno    { return sysno(unix.Rmdir(k.p(path))) }
func (k *kernel) rename(from, to string, flags int) ext4lite.Errno {
	return sysno(unix.Renameat2(unix.AT_FDCWD, k.p(from), unix.AT_FDCWD, k.p(to), uint(flags)))
}

// on opens a regular file as the other targets would.
func (k *kernel) on(path string, fn func(fd int) error) ext4lite.Errno {
	var st unix.Stat_t
	if err := unix.Lstat(k.p(path), &st); err != nil {
		return sysno(err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return ext4lite.EISDIR
	case unix.S_IFREG:
	default:
		return ext4lite.EINVAL
	}
	fd, err := unix.Open(k.p(path), unix.O_RDWR, 0)
	if err != nil {
		return sysno(err)
	}
	defer unix.Close(fd)
	return sysno(fn(fd))
}

func (k *kernel) write(path string, off int64, data []byte) ext4lite.Errno {
	return k.on(path, func(fd int) error { _, err := unix.Pwrite(fd, data, off); return err })
}
func (k *kernel) truncate(path string, size int64) ext4lite.Errno {
	return k.on(path, func(fd int) error { return unix.Ftruncate(fd, size) })
}
func (k *kernel) fallocate(path string, mode uint32, off, n int64) ext4lite.Errno {
	return k.on(path, func(fd int) error { return unix.Fallocate(fd, mode, off, n) })
}

func (k *kernel) chmod(path string, mode uint16) ext4lite.Errno {
	return sysno(unix.Fchmodat(unix.AT_FDCWD, k.p(path), uint32(mode), unix.AT_SYMLINK_NOFOLLOW))
}
func (k *kernel) chown(path string, uid, gid uint32) ext4lite.Errno {
	return sysno(unix.Lchown(k.p(path), int(uid), int(gid)))
}
func (k *kernel) setxattr(path, name string, value []byte, flags int) ext4lite.Errno {
	return sysno(unix.Lsetxattr(k.p(path), name, value, flags))
}
func (k *kernel) removexattr(path, name string) ext4lite.Errno {
	return sysno(unix.Lremovexattr(k.p(path), name))
}
func (k *kernel) tmpfile(dir, name string, data []byte) ext4lite.Errno {
	var st unix.Stat_t
	if err := unix.Lstat(k.p(dir), &st); err != nil {
		return sysno(err)
	}
	fd, err := unix.Open(k.p(dir), unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err != nil {
		return sysno(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, data); err != nil {
		return sysno(err)
	}
	return sysno(unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, k.p(dir+"/"+name), unix.AT_SYMLINK_FOLLOW))
}

func (k *kernel) dump() []string {
	var out []string
	err := filepath.WalkDir(k.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		n := &node{mode: uint16(st.Mode), uid: st.Uid, gid: st.Gid, links: int(st.Nlink), xattrs: map[string]string{},
			major: unix.Major(st.Rdev), minor: unix.Minor(st.Rdev)}
		switch n.typ() {
		case ext4lite.ModeReg:
			if n.data, err = os.ReadFile(path); err != nil {
				return err
			}
		case ext4lite.ModeLink:
			if n.to, err = os.Readlink(path); err != nil {
				return err
			}
		}
		buf := make([]byte, 65536)
		if sz, err := unix.Llistxattr(path, buf); err == nil {
			for name := range strings.SplitSeq(strings.TrimRight(string(buf[:sz]), "\x00"), "\x00") {
				if name == "" {
					continue
				}
				v := make([]byte, 65536)
				k, err := unix.Lgetxattr(path, name, v)
				if err != nil {
					return err
				}
				n.xattrs[name] = string(v[:k])
			}
		}
		out = append(out, line(strings.TrimPrefix(path, k.dir), n))
		return nil
	})
	if err != nil {
		k.t.Fatal(err)
	}
	sort.Strings(out)
	return out
}

// TestAgainstKernel runs operations on kernel ext4, the model and this package,
// then has the kernel read what this package wrote, and the other way round.
func TestAgainstKernel(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	for s := range seeds(4) {
		seed := 1000 + firstSeed() + uint64(s)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			kpath := kernelVolume(t, 64<<20)
			k := &kernel{t, mount(t, kpath)}
			opath := newVolume(t, 64<<20, ext4lite.MkfsOptions{})
			us := &ours{t, open(t, opath, ext4lite.Options{})}
			m := newModel()
			g := &generator{r: rand.New(rand.NewPCG(seed, 2)), names: 6, maxFile: 300000}
			for i := range 1000 {
				o := g.next()
				a, b, c := o.do(m), o.do(us), o.do(k)
				if b == ext4lite.ENOTDIR && c == ext4lite.ENOENT {
					c = b // the kernel follows links on the way, and they lead nowhere
				}
				if a != b || b != c {
					t.Fatalf("operation %d, %s: the model says %d, we %d, the kernel %d", i, o.what, a, b, c)
				}
			}
			compare(t, "kernel and ours", k.dump(), us.dump())
			closeFS(t, us.fs)
			check(t, opath)
			umount(t, k.dir)
			compare(t, "ours read by the kernel", m.dump(), (&kernel{t, mount(t, opath)}).dump())
			fs := open(t, kpath, ext4lite.Options{ReadOnly: true})
			compare(t, "the kernel's read by us", m.dump(), (&ours{t, fs}).dump())
			closeFS(t, fs)
		})
	}
}

// TestHashVersions has the kernel and this package fill and read directories
// with every hash, of names with bytes above 127.
func TestHashVersions(t *testing.T) {
	for _, alg := range []string{"legacy", "half_md4", "tea"} {
		for _, sign := range []string{"signed", "unsigned"} {
			t.Run(alg+"-"+sign, func(t *testing.T) {
				path := kernelVolume(t, 64<<20, "-b", "1024", "-O", "^metadata_csum")
				run(t, tool(t, "tune2fs"), "-E", "hash_alg="+alg, path)
				flags := map[string]string{"signed": "1", "unsigned": "2"}[sign]
				run(t, tool(t, "debugfs"), "-w", "-R", "ssv flags "+flags, path)
				name := func(k int) string { return fmt.Sprintf("näme-\xff\x80-%d-%s", k, strings.Repeat("é", k%40)) }
				dir := mount(t, path)
				must(t, os.Mkdir(dir+"/k", 0o755))
				for k := range 2000 {
					must(t, os.WriteFile(dir+"/k/"+name(k), nil, 0o644))
				}
				umount(t, dir)
				fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
				d, err := fs.Walk("k")
				must(t, err)
				for k := range 2000 {
					i, err := d.Lookup(name(k))
					must(t, err)
					i.Release()
				}
				o, err := fs.MkdirAll("o", ext4lite.NewInode{Mode: 0o755})
				must(t, err)
				for k := range 2000 {
					for _, at := range []*ext4lite.Inode{o, d} {
						i, err := at.Create(name(k+5000), ext4lite.NewInode{Mode: 0o644})
						must(t, err)
						i.Release()
					}
				}
				d.Release()
				o.Release()
				closeFS(t, fs)
				check(t, path)
				dir = mount(t, path)
				for k := range 2000 {
					for _, p := range []string{"/k/" + name(k), "/k/" + name(k+5000), "/o/" + name(k+5000)} {
						if _, err := os.Lstat(dir + p); err != nil {
							t.Fatal(err)
						}
					}
				}
				umount(t, dir)
			})
		}
	}
}
