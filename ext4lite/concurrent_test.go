// SPDX-License-Identifier: Apache-2.0

// Many at once: private directories checked against models, a shared one under
// renames and removals, syncs in between; full volumes; large directories.

package ext4lite_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

// under makes a target work below a directory.
type under struct {
	*ours
	dir string
}

func (u under) sub(p string) string { return u.dir + "/" + p }

func (u under) create(p string, m uint16) ext4lite.Errno { return u.ours.create(u.sub(p), m) }
func (u under) mkdir(p string, m uint16) ext4lite.Errno  { return u.ours.mkdir(u.sub(p), m) }
func (u under) symlink(p, to string) ext4lite.Errno      { return u.ours.symlink(u.sub(p), to) }
func (u under) mknod(p string, m uint16, a, b uint32) ext4lite.Errno {
	return u.ours.mknod(u.sub(p), m, a, b)
}
func (u under) link(a, b string) ext4lite.Errno          { return u.ours.link(u.sub(a), u.sub(b)) }
func (u under) unlink(p string) ext4lite.Errno           { return u.ours.unlink(u.sub(p)) }
func (u under) rmdir(p string) ext4lite.Errno            { return u.ours.rmdir(u.sub(p)) }
func (u under) rename(a, b string, f int) ext4lite.Errno { return u.ours.rename(u.sub(a), u.sub(b), f) }
func (u under) write(p string, off int64, d []byte) ext4lite.Errno {
	return u.ours.write(u.sub(p), off, d)
}
func (u under) truncate(p string, n int64) ext4lite.Errno { return u.ours.truncate(u.sub(p), n) }
func (u under) fallocate(p string, m uint32, off, n int64) ext4lite.Errno {
	return u.ours.fallocate(u.sub(p), m, off, n)
}
func (u under) chmod(p string, m uint16) ext4lite.Errno    { return u.ours.chmod(u.sub(p), m) }
func (u under) chown(p string, a, b uint32) ext4lite.Errno { return u.ours.chown(u.sub(p), a, b) }
func (u under) setxattr(p, n string, v []byte, f int) ext4lite.Errno {
	return u.ours.setxattr(u.sub(p), n, v, f)
}
func (u under) removexattr(p, n string) ext4lite.Errno { return u.ours.removexattr(u.sub(p), n) }
func (u under) tmpfile(d, n string, v []byte) ext4lite.Errno {
	return u.ours.tmpfile(u.sub(d), n, v)
}

func TestConcurrent(t *testing.T) {
	path := newVolume(t, 256<<20, ext4lite.MkfsOptions{})
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process, CacheBytes: 1 << 20, Discard: true})
	us := &ours{t, fs}
	const workers = 6
	want := make([][]string, workers)
	var wg sync.WaitGroup
	for w := range workers {
		dir := fmt.Sprintf("w%d", w)
		if e := us.mkdir(dir, 0o755); e != 0 {
			t.Fatal(e)
		}
		wg.Go(func() {
			m := newModel()
			delete(m.root.kids, "lost+found")
			m.root.links--
			g := &generator{r: rand.New(rand.NewPCG(uint64(w), 6)), names: 6, maxFile: 300000}
			for range 1200 {
				o := g.next()
				if a, b := o.do(m), o.do(under{us, dir}); a != b {
					t.Errorf("worker %d, %s: the model says %d, we %d", w, o.what, a, b)
					return
				}
				if g.r.IntN(100) == 0 {
					fs.Sync()
				}
			}
			for _, l := range m.dump() {
				want[w] = append(want[w], "/"+dir+l)
			}
		})
	}
	us.mkdir("shared", 0o777)
	for w := range 3 {
		wg.Go(func() {
			g := &generator{r: rand.New(rand.NewPCG(uint64(w), 7)), names: 4, maxFile: 100000}
			for range 1500 {
				g.next().do(under{us, "shared"}) // any answer will do
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	got := us.dump()
	for w := range workers {
		var mine []string
		for _, l := range got {
			if strings.HasPrefix(l, fmt.Sprintf("/w%d ", w)) || strings.HasPrefix(l, fmt.Sprintf("/w%d/", w)) {
				mine = append(mine, l)
			}
		}
		compare(t, fmt.Sprintf("worker %d", w), want[w], mine)
	}
	closeFS(t, fs)
	check(t, path)
}

func TestSharedFile(t *testing.T) {
	path := newVolume(t, 64<<20, ext4lite.MkfsOptions{})
	fs := open(t, path, ext4lite.Options{})
	must(t, fs.WriteFile("f", nil, ext4lite.NewInode{}))
	i, err := fs.Walk("f")
	must(t, err)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			p := make([]byte, 8192)
			for k := range p {
				p[k] = byte(w + 1)
			}
			for n := range 40 {
				if _, _, err := i.Append(p); err != nil {
					t.Error(err)
				}
				if n%8 == 0 {
					if err := i.SyncFile(); err != nil {
						t.Error(err)
					}
				}
				buf := make([]byte, 8192)
				k, _ := i.ReadAt(buf, int64(n)*8192)
				for _, b := range buf[:k] {
					if b != buf[0] {
						t.Error("a read saw half a write")
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if s := i.Attr().Size; s != 8*40*8192 {
		t.Errorf("size %d after appends", s)
	}
	i.Release()
	closeFS(t, fs)
	check(t, path)
}

func TestFullVolume(t *testing.T) {
	path := newVolume(t, 16<<20, ext4lite.MkfsOptions{})
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	free := fs.Statfs().Free
	r := rand.New(rand.NewPCG(1, 8))
	for round := range 3 {
		n := 0
		for ; ; n++ {
			err := fs.WriteFile(fmt.Sprintf("f%d", n), make([]byte, r.IntN(60000)), ext4lite.NewInode{})
			if errors.Is(err, ext4lite.ENOSPC) {
				break
			}
			must(t, err)
		}
		if st := fs.Statfs(); st.Free > 2 {
			t.Errorf("round %d: no space while %d blocks are free", round, st.Free)
		}
		root, err := fs.Root()
		must(t, err)
		for k := range n + 1 {
			if err := root.Unlink(fmt.Sprintf("f%d", k)); err != nil && !errors.Is(err, ext4lite.ENOENT) {
				t.Fatal(err)
			}
		}
		root.Release()
		must(t, fs.Sync())
		if st := fs.Statfs(); st.Free+8 < free { // the directory grew
			t.Errorf("round %d: %d blocks free after removing all, %d before", round, st.Free, free)
		}
	}
	closeFS(t, fs)
	check(t, path)
}

func TestLargeDirectory(t *testing.T) {
	for _, bs := range []int{1024, 4096} {
		for _, sizes := range []int{200, 20000} {
			t.Run(fmt.Sprintf("%d-%d", bs, sizes), func(t *testing.T) {
				path := newVolume(t, 256<<20, ext4lite.MkfsOptions{BlockSize: bs, BytesPerIno: 4096})
				fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
				d, err := fs.MkdirAll("d", ext4lite.NewInode{Mode: 0o755})
				must(t, err)
				first, err := d.Create("file-with-a-rather-long-name-000000", ext4lite.NewInode{})
				must(t, err)
				name := func(k int) string { return fmt.Sprintf("file-with-a-rather-long-name-%06d", k) }
				for k := 1; k < sizes; k++ {
					must(t, d.Link(name(k), first))
				}
				seen := map[string]bool{}
				var cookie int64
				for more := true; more; {
					more = false
					left := 37
					must(t, d.ReadDir(cookie, func(e ext4lite.DirEntry) bool {
						if seen[e.Name] {
							t.Fatalf("%s twice", e.Name)
						}
						seen[e.Name], cookie, more = true, e.Next, true
						left--
						return left > 0
					}))
				}
				if len(seen) != sizes+2 {
					t.Fatalf("%d names of %d", len(seen), sizes+2)
				}
				for k := range sizes {
					i, err := d.Lookup(name(k))
					must(t, err)
					i.Release()
				}
				first.Release()
				d.Release()
				closeFS(t, fs)
				check(t, path)
				fs = open(t, path, ext4lite.Options{Durability: ext4lite.Process})
				d, err = fs.Walk("d")
				must(t, err)
				for k := range sizes {
					must(t, d.Unlink(name(k)))
				}
				d.Release()
				root, err := fs.Root()
				must(t, err)
				must(t, root.Rmdir("d"))
				root.Release()
				closeFS(t, fs)
				check(t, path)
			})
		}
	}
}
