// SPDX-License-Identifier: Apache-2.0

// This package beside kernel ext4 on a loop device, in one run. The two do the
// same work; the report gives rates and their ratio. Run with
//
//	GVX_BENCH=1 go test -run TestBesideKernel -v ./ext4lite

package ext4lite_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// worker is what a file system under measurement can do.
type worker interface {
	mkdir(path string)
	create(path string) handle
	stat(path string)
	unlink(path string)
	removeTree(path string)
	sync()
}

type handle interface {
	writeAt(p []byte, off int64)
	readAt(p []byte, off int64)
	fsync()
	close()
}

func ok(err error) {
	if err != nil {
		panic(err)
	}
}

type kernelFS struct{ dir string }
type kernelFile struct{ fd int }

func (k kernelFS) mkdir(p string) { ok(os.Mkdir(k.dir+"/"+p, 0o755)) }
func (k kernelFS) create(p string) handle {
	fd, err := unix.Open(k.dir+"/"+p, unix.O_RDWR|unix.O_CREAT, 0o644)
	ok(err)
	return kernelFile{fd}
}
func (k kernelFS) stat(p string) {
	var st unix.Stat_t
	ok(unix.Lstat(k.dir+"/"+p, &st))
}
func (k kernelFS) unlink(p string)     { ok(unix.Unlink(k.dir + "/" + p)) }
func (k kernelFS) removeTree(p string) { ok(os.RemoveAll(k.dir + "/" + p)) }
func (k kernelFS) sync() {
	fd, err := unix.Open(k.dir, unix.O_RDONLY, 0)
	ok(err)
	ok(unix.Syncfs(fd))
	unix.Close(fd)
}
func (f kernelFile) writeAt(p []byte, off int64) { _, err := unix.Pwrite(f.fd, p, off); ok(err) }
func (f kernelFile) readAt(p []byte, off int64)  { _, err := unix.Pread(f.fd, p, off); ok(err) }
func (f kernelFile) fsync()                      { ok(unix.Fdatasync(f.fd)) }
func (f kernelFile) close()                      { unix.Close(f.fd) }

// ourFS keeps the directories it uses open, as a sandbox's dentry cache does.
type ourFS struct {
	fs   *ext4lite.FS
	mu   sync.Mutex
	dirs map[string]*ext4lite.Inode
}
type ourFile struct{ i *ext4lite.Inode }

func (o *ourFS) dir(p string) (*ext4lite.Inode, string) {
	d, name := splitPath(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	i := o.dirs[d]
	if i == nil {
		var err error
		i, err = o.fs.Walk(d)
		ok(err)
		o.dirs[d] = i
	}
	return i, name
}
func (o *ourFS) mkdir(p string) {
	d, name := o.dir(p)
	i, err := d.Mkdir(name, ext4lite.NewInode{Mode: 0o755})
	ok(err)
	i.Release()
}
func (o *ourFS) create(p string) handle {
	d, name := o.dir(p)
	i, err := d.Create(name, ext4lite.NewInode{Mode: 0o644})
	ok(err)
	i.OpenWrite()
	return ourFile{i}
}
func (o *ourFS) stat(p string) {
	d, name := o.dir(p)
	i, err := d.Lookup(name)
	ok(err)
	i.Attr()
	i.Release()
}
func (o *ourFS) unlink(p string) {
	d, name := o.dir(p)
	ok(d.Unlink(name))
}
func (o *ourFS) removeTree(p string) {
	for k, i := range o.dirs {
		i.Release()
		delete(o.dirs, k)
	}
	d, name := o.dir(p)
	ok(d.RemoveAll(name))
}
func (o *ourFS) sync()                        { ok(o.fs.Sync()) }
func (f ourFile) writeAt(p []byte, off int64) { _, err := f.i.WriteAt(p, off); ok(err) }
func (f ourFile) readAt(p []byte, off int64)  { _, err := f.i.ReadAt(p, off); ok(err) }
func (f ourFile) fsync()                      { ok(f.i.SyncFile()) }
func (f ourFile) close()                      { f.i.CloseWrite(); f.i.Release() }

type result struct {
	name string
	rate float64 // per second
	cpu  float64 // microseconds of this process for one
}

// cpuTime is what this process has used: on a busy machine it says more than
// the clock. The kernel's own threads are not in it.
func cpuTime() time.Duration {
	var u unix.Rusage
	ok(unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// workload measures one file system.
func workload(w worker) []result {
	var out []result
	measure := func(name string, n int, fn func()) {
		runtime.GC()
		start, cpu := time.Now(), cpuTime()
		fn()
		out = append(out, result{name, float64(n) / time.Since(start).Seconds(), float64(cpuTime()-cpu) / 1e3 / float64(n)})
	}
	const files = 100000
	name := func(k int) string { return fmt.Sprintf("big/file%06d", k) }
	w.mkdir("big")
	measure("create in a 100k directory", files, func() {
		for k := range files {
			w.create(name(k)).close()
		}
	})
	order := rand.New(rand.NewPCG(1, 1)).Perm(files)
	measure("stat in a 100k directory", files, func() {
		for _, k := range order {
			w.stat(name(k))
		}
	})
	measure("unlink in a 100k directory", files, func() {
		for k := range files {
			w.unlink(name(k))
		}
	})
	w.sync()
	const mib = 256
	f := w.create("data")
	chunk := make([]byte, 1<<20)
	measure("sequential write, MiB", mib, func() {
		for k := range mib {
			f.writeAt(chunk, int64(k)<<20)
		}
	})
	w.sync()
	measure("sequential read, MiB", mib, func() {
		for k := range mib {
			f.readAt(chunk, int64(k)<<20)
		}
	})
	r := rand.New(rand.NewPCG(2, 2))
	const rnd = 100000
	page := make([]byte, 4096)
	measure("random 4K read", rnd, func() {
		for range rnd {
			f.readAt(page, r.Int64N(mib<<8)<<12)
		}
	})
	measure("random 4K write", rnd, func() {
		for range rnd {
			f.writeAt(page, r.Int64N(mib<<8)<<12)
		}
	})
	w.sync()
	f.close()
	for _, writers := range []int{1, 16} {
		n := 2000
		measure(fmt.Sprintf("append 4K and fsync, %d writers", writers), n, func() {
			var wg sync.WaitGroup
			for k := range writers {
				wg.Go(func() {
					f := w.create(fmt.Sprintf("log%d-%d", writers, k))
					for j := range n / writers {
						f.writeAt(page, int64(j)*4096)
						f.fsync()
					}
					f.close()
				})
			}
			wg.Wait()
		})
	}
	tree := 0
	measure("write a tree, files", 20000, func() {
		w.mkdir("tree")
		for d := range 200 {
			w.mkdir(fmt.Sprintf("tree/d%d", d))
			for k := range 100 {
				f := w.create(fmt.Sprintf("tree/d%d/f%d", d, k))
				f.writeAt(chunk[:1000+(k*k*7)%24000], 0)
				f.close()
				tree++
			}
		}
	})
	w.sync()
	measure("remove the tree, files", 20000, func() { w.removeTree("tree") })
	measure("50 files appended in turns, 4K appends", 50*200, func() {
		var fs []handle
		for k := range 50 {
			fs = append(fs, w.create(fmt.Sprintf("turn%d", k)))
		}
		for j := range 200 {
			for _, f := range fs {
				f.writeAt(page, int64(j)*4096)
			}
		}
		for _, f := range fs {
			f.close()
		}
	})
	w.sync()
	return out
}

func TestBesideKernel(t *testing.T) {
	if os.Getenv("GVX_BENCH") == "" {
		t.Skip("a measurement: set GVX_BENCH=1")
	}
	const size = 4 << 30
	kpath := kernelVolume(t, size, "-E", "lazy_itable_init=0,lazy_journal_init=0")
	theirs := workload(kernelFS{mount(t, kpath)})
	modes := map[string]ext4lite.Durability{"host": ext4lite.Host, "process": ext4lite.Process}
	ours := map[string][]result{}
	for mode, d := range modes {
		path := newVolume(t, size, ext4lite.MkfsOptions{})
		fs := open(t, path, ext4lite.Options{Durability: d})
		w := &ourFS{fs: fs, dirs: map[string]*ext4lite.Inode{}}
		ours[mode] = workload(w)
		extents := 0
		for k := range 50 {
			i, err := fs.Walk(fmt.Sprintf("turn%d", k))
			must(t, err)
			list, err := i.Extents(0, 1<<30)
			must(t, err)
			extents += len(list)
			i.Release()
		}
		t.Logf("%s: 50 files appended in turns have %d extents", mode, extents)
		for _, i := range w.dirs {
			i.Release()
		}
		closeFS(t, fs)
		check(t, path)
	}
	t.Logf("%-42s %10s %10s %6s %10s %6s   CPU us: %8s %8s %8s", "", "kernel /s", "host /s", "ratio", "process /s", "ratio", "kernel", "host", "process")
	for k, r := range theirs {
		h, p := ours["host"][k], ours["process"][k]
		t.Logf("%-42s %10.0f %10.0f %6.2f %10.0f %6.2f           %8.1f %8.1f %8.1f", r.name, r.rate, h.rate, h.rate/r.rate, p.rate, p.rate/r.rate, r.cpu, h.cpu, p.cpu)
	}
}

func BenchmarkOpen64GiB(b *testing.B) {
	path := newVolume(b, 64<<30, ext4lite.MkfsOptions{})
	for b.Loop() {
		must(b, open(b, path, ext4lite.Options{}).Close())
	}
}

// TestIdleMemory bounds what an open volume holds when nothing happens.
func TestIdleMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's own memory would be counted")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "v.ext4")
	d, err := device.CreateFile(path, 64<<30)
	must(t, err)
	must(t, ext4lite.Mkfs(d, ext4lite.MkfsOptions{}))
	fs, err := ext4lite.Open(d, ext4lite.Options{Durability: ext4lite.Process})
	must(t, err)
	us := &ours{t, fs}
	for k := range 20000 {
		if k%1000 == 0 {
			us.mkdir(fmt.Sprintf("d%d", k/1000), 0o755)
		}
		us.create(fmt.Sprintf("d%d/f%d", k/1000, k), 0o644)
		us.write(fmt.Sprintf("d%d/f%d", k/1000, k), 0, []byte("x"))
	}
	var before, after runtime.MemStats
	must(t, fs.Idle())
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	must(t, fs.Close())
	us.fs, fs = nil, nil
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(before.HeapAlloc) - int64(after.HeapAlloc); held > 4<<20 {
		t.Errorf("an idle volume holds %d bytes, at most 4 MiB are promised", held)
	} else {
		t.Logf("an idle volume holds %d bytes", held)
	}
}

// TestSyncBesideWriter measures syncs of a small file while another file of the
// same volume takes a stream of data.
func TestSyncBesideWriter(t *testing.T) {
	if os.Getenv("GVX_BENCH") == "" {
		t.Skip("a measurement: set GVX_BENCH=1")
	}
	measure := func(name string, w worker) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			f := w.create("stream")
			defer f.close()
			p := make([]byte, 1<<20)
			for k := int64(0); ; k++ {
				select {
				case <-stop:
					return
				default:
					f.writeAt(p, k%1024<<20)
					time.Sleep(2 * time.Millisecond) // 500 MB/s at most
				}
			}
		})
		f := w.create("small")
		p := make([]byte, 8192)
		var took []time.Duration
		for start := time.Now(); time.Since(start) < 5*time.Second; {
			t0 := time.Now()
			f.writeAt(p, int64(len(took))*8192)
			f.fsync()
			took = append(took, time.Since(t0))
		}
		f.close()
		close(stop)
		wg.Wait()
		slices.Sort(took)
		t.Logf("%-24s %5d syncs, median %8v, 99%% %8v", name, len(took), took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond))
	}
	measure("kernel", kernelFS{mount(t, kernelVolume(t, 4<<30))})
	for name, ranges := range map[string]bool{"whole volume": false, "ranges": true} {
		fs := open(t, newVolume(t, 4<<30, ext4lite.MkfsOptions{}), ext4lite.Options{RangeSync: ranges})
		w := &ourFS{fs: fs, dirs: map[string]*ext4lite.Inode{}}
		measure(name, w)
		for _, i := range w.dirs {
			i.Release()
		}
		closeFS(t, fs)
	}
}
