// SPDX-License-Identifier: Apache-2.0

// Where small appends lie: a log beside fifty files that grow too, counted in
// extents, for this package and for kernel ext4 in one run.

package ext4lite_test

import (
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
)

const (
	besides = 50
	rounds  = 400
)

// appendBeside appends in turns and gives the number of extents of the log and
// of all the others. every is how many rounds pass between syncs of the log.
func appendBeside(w worker, every int, extents func(name string) int) (log, others int) {
	files := []handle{w.create("log")}
	for k := range besides {
		files = append(files, w.create(fmt.Sprint("beside", k)))
	}
	line := make([]byte, 700)
	page := make([]byte, 4096)
	for r := range rounds {
		for k := range 4 {
			files[0].writeAt(line, int64(4*r+k)*int64(len(line)))
		}
		for _, f := range files[1:] {
			f.writeAt(page, int64(r)*int64(len(page)))
		}
		if every > 0 && r%every == every-1 {
			files[0].fsync()
		}
	}
	for _, f := range files {
		f.close()
	}
	w.sync()
	log = extents("log")
	for k := range besides {
		others += extents(fmt.Sprint("beside", k))
	}
	return log, others
}

// fiemap is the head of struct fiemap: with room for no extent the kernel only
// counts.
type fiemap struct {
	start, length             uint64
	flags, mapped, count, pad uint32
}

const fsIocFiemap = 0xC020660B

// TestAppendsStayTogether compares how many pieces small appends end in. The
// kernel knows what it will allocate only when it writes back, and so mostly
// needs one; with syncs in between it allocates piece by piece, as we do.
func TestAppendsStayTogether(t *testing.T) {
	for _, every := range []int{0, 10} {
		t.Run(fmt.Sprint("sync every ", every), func(t *testing.T) {
			dir := mount(t, kernelVolume(t, 512<<20))
			theirLog, theirOthers := appendBeside(kernelFS{dir}, every, func(name string) int {
				fd, err := unix.Open(dir+"/"+name, unix.O_RDONLY, 0)
				must(t, err)
				defer unix.Close(fd)
				m := fiemap{length: ^uint64(0)}
				if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFiemap, uintptr(unsafe.Pointer(&m))); e != 0 {
					t.Fatal(e)
				}
				return int(m.mapped)
			})
			path := newVolume(t, 512<<20, ext4lite.MkfsOptions{})
			fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
			w := &ourFS{fs: fs, dirs: map[string]*ext4lite.Inode{}}
			log, others := appendBeside(w, every, func(name string) int {
				i, err := fs.Walk(name)
				must(t, err)
				defer i.Release()
				list, err := i.Extents(0, 1<<30)
				must(t, err)
				return len(list)
			})
			for _, i := range w.dirs {
				i.Release()
			}
			closeFS(t, fs)
			check(t, path)
			t.Logf("extents of a log of %d appends: kernel %d, ours %d; of %d files beside it: kernel %d, ours %d", 4*rounds, theirLog, log, besides, theirOthers, others)
			if limit := max(8, theirLog); log > limit {
				t.Errorf("the log has %d extents, at most %d are expected (kernel ext4: %d)", log, limit, theirLog)
			}
			if limit := max(8*besides, theirOthers); others > limit {
				t.Errorf("the files beside it have %d extents, at most %d are expected (kernel ext4: %d)", others, limit, theirOthers)
			}
		})
	}
}
