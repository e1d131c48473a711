// SPDX-License-Identifier: Apache-2.0

// Measurements of whole volumes: a real tree, a sync behind much dirty data,
// two hundred deltas. Run with
//
//	GVX_BENCH=1 go test -run 'TestUntar|TestSyncBehind|TestManyDeltas' -v ./ext4lite

package ext4lite_test

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
)

func needBench(t *testing.T) {
	t.Helper()
	if os.Getenv("GVX_BENCH") == "" {
		t.Skip("a measurement: set GVX_BENCH=1")
	}
}

// realTree is a tar archive of about 250 MiB of the Go distribution that runs
// the test: sources, small and large files.
func realTree(t *testing.T) (path string, files int) {
	t.Helper()
	const most = 250 << 20
	root := strings.TrimSpace(run(t, "go", "env", "GOROOT"))
	path = filepath.Join(t.TempDir(), "tree.tar")
	f, err := os.Create(path)
	must(t, err)
	w := tar.NewWriter(f)
	size := int64(0)
	must(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || size > most {
			return err
		}
		info, err := d.Info()
		if err != nil || !d.IsDir() && !info.Mode().IsRegular() {
			return err
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = "tree/" + strings.TrimPrefix(p, root)
		if err := w.WriteHeader(h); err != nil || d.IsDir() {
			return err
		}
		in, err := os.Open(p)
		if err != nil {
			return err
		}
		defer in.Close()
		files++
		size += h.Size
		_, err = io.Copy(w, in)
		return err
	}))
	must(t, w.Close())
	must(t, f.Close())
	return path, files
}

func TestUntarBesideKernel(t *testing.T) {
	needBench(t)
	archive, files := realTree(t)
	st, err := os.Stat(archive)
	must(t, err)
	took := map[string][]time.Duration{}
	const rounds = 3
	for range rounds {
		dir := mount(t, kernelVolume(t, 2<<30))
		start := time.Now()
		out, err := exec.Command("tar", "-C", dir, "-xf", archive).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		kernelFS{dir}.sync()
		took["kernel"] = append(took["kernel"], time.Since(start))
		umount(t, dir)
		path := newVolume(t, 2<<30, ext4lite.MkfsOptions{})
		fs := open(t, path, ext4lite.Options{Durability: ext4lite.Host})
		start = time.Now()
		f, err := os.Open(archive)
		must(t, err)
		must(t, fs.Import(f, "/", ext4lite.ImportOptions{}))
		must(t, fs.Sync())
		took["ours"] = append(took["ours"], time.Since(start))
		f.Close()
		start = time.Now()
		root, err := fs.Root()
		must(t, err)
		must(t, root.RemoveAll("tree"))
		root.Release()
		must(t, fs.Sync())
		took["rm"] = append(took["rm"], time.Since(start))
		closeFS(t, fs)
		check(t, path)
	}
	best := func(name string) time.Duration {
		d := took[name][0]
		for _, x := range took[name] {
			d = min(d, x)
		}
		return d
	}
	t.Logf("untar of %d MiB, %d files, and sync, best of %d: kernel %v, ours %v (%.2f of it); rm -rf and sync %v", st.Size()>>20, files, rounds,
		best("kernel").Round(time.Millisecond), best("ours").Round(time.Millisecond), float64(best("ours"))/float64(best("kernel")), best("rm").Round(time.Millisecond))
}

// TestSyncBehindDirtyData measures one sync of a small file while a gigabyte of
// another waits in the page cache: newly allocated, then written over.
func TestSyncBehindDirtyData(t *testing.T) {
	needBench(t)
	measure := func(name string, w worker) {
		small, big := w.create("small"), w.create("big")
		p := make([]byte, 1<<20)
		for _, kind := range []string{"new", "written over"} {
			for k := range int64(1024) {
				big.writeAt(p, k<<20)
			}
			start := time.Now()
			small.writeAt(p[:4096], 0)
			small.fsync()
			first := time.Since(start)
			big.fsync()
			t.Logf("%-13s a gigabyte %-12s: a small file's sync takes %8v, then the large one's %8v", name, kind, first.Round(time.Millisecond), (time.Since(start) - first).Round(time.Millisecond))
		}
		small.close()
		big.close()
	}
	measure("kernel", kernelFS{mount(t, kernelVolume(t, 4<<30))})
	for _, ranges := range []bool{false, true} {
		vol := open(t, newVolume(t, 4<<30, ext4lite.MkfsOptions{}), ext4lite.Options{RangeSync: ranges})
		w := &ourFS{fs: vol, dirs: map[string]*ext4lite.Inode{}}
		measure(map[bool]string{false: "whole volume", true: "ranges"}[ranges], w)
		for _, i := range w.dirs {
			i.Release()
		}
		closeFS(t, vol)
	}
}

// TestManyDeltas opens two hundred clones of one volume, has each written to,
// and tells what they cost.
func TestManyDeltas(t *testing.T) {
	needBench(t)
	base := newVolume(t, 64<<30, ext4lite.MkfsOptions{})
	vol := open(t, base, ext4lite.Options{})
	must(t, vol.WriteFile("file", make([]byte, 8<<20), ext4lite.NewInode{Mode: 0o644}))
	closeFS(t, vol)
	const many = 200
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var made, opened, wrote time.Duration
	var all []*ext4lite.FS
	page := make([]byte, 4096)
	for k := range many {
		path := filepath.Join(filepath.Dir(base), fmt.Sprint("clone", k))
		start := time.Now()
		must(t, delta.Create(path, base, delta.Options{}))
		made += time.Since(start)
		start = time.Now()
		fs, err := ext4lite.OpenFile(path, ext4lite.Options{Durability: ext4lite.Process})
		must(t, err)
		opened += time.Since(start)
		all = append(all, fs)
		i, err := fs.Walk("file")
		must(t, err)
		start = time.Now()
		for b := range int64(2048) {
			if _, err := i.WriteAt(page, (b*769%2048)<<12); err != nil {
				t.Fatal(err)
			}
		}
		wrote += time.Since(start)
		i.Release()
		must(t, fs.Idle())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d deltas of 64 GiB: made in %v each, opened in %v each, %.0f first writes of 4 KiB per second, %d KiB of heap each when idle", many,
		(made / many).Round(time.Microsecond), (opened / many).Round(time.Microsecond), many*2048/wrote.Seconds(), (after.HeapAlloc-before.HeapAlloc)>>10/many)
	for _, fs := range all {
		must(t, fs.Close())
	}
}
