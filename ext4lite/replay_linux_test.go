// SPDX-License-Identifier: Apache-2.0

// Logs cross over: the kernel replays ours, we replay the kernel's. Needs root.

package ext4lite_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
)

func TestKernelReplaysOurLog(t *testing.T) {
	for _, bs := range []int{1024, 4096} {
		for s := range seeds(3) {
			t.Run(fmt.Sprintf("%d-%d", bs, s), func(t *testing.T) {
				path := newVolume(t, 64<<20, ext4lite.MkfsOptions{BlockSize: bs})
				fs := open(t, path, ext4lite.Options{})
				m := newModel()
				work(t, fs, m, uint64(200+s), 400)
				must(t, fs.Sync())
				must(t, fs.Abandon())
				compare(t, "replayed by the kernel", m.dump(), (&kernel{t, mount(t, path)}).dump())
			})
		}
	}
}

// copyLive copies a volume's file while it is mounted: what a crash of the
// host would leave.
func copyLive(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "live.ext4")
	in, err := os.Open(from)
	must(t, err)
	defer in.Close()
	out, err := os.Create(to)
	must(t, err)
	defer out.Close()
	_, err = io.Copy(out, in)
	must(t, err)
	return to
}

func TestWeReplayTheKernelsLog(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	for _, k := range []struct {
		name string
		args []string
	}{
		{"default", nil},
		{"4k", []string{"-b", "4096"}},
		{"nocsum", []string{"-O", "^metadata_csum"}},
		{"32bit", []string{"-O", "^64bit,^metadata_csum"}},
		{"orphanfile", []string{"-O", "orphan_file"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			path := kernelVolume(t, 64<<20, k.args...)
			kfs := &kernel{t, mount(t, path)}
			m := newModel()
			g := &generator{r: rand.New(rand.NewPCG(11, 10)), names: 6, maxFile: 200000}
			var open []*os.File
			for n := range 600 {
				o := g.next()
				o.do(m)
				o.do(kfs)
				if n%100 == 50 { // an orphan
					f, err := os.Create(kfs.p("orphan"))
					must(t, err)
					f.Write(make([]byte, 30000))
					must(t, os.Remove(kfs.p("orphan")))
					open = append(open, f)
				}
			}
			fd, err := unix.Open(kfs.dir, unix.O_RDONLY, 0)
			must(t, err)
			must(t, unix.Syncfs(fd))
			unix.Close(fd)
			live := copyLive(t, path)
			want := kfs.dump()
			for _, f := range open {
				f.Close()
			}
			umount(t, kfs.dir)
			ro := must2(ext4lite.OpenFile(live, ext4lite.Options{ReadOnly: true}))(t)
			compare(t, "the kernel's log read through", want, (&ours{t, ro}).dump())
			closeFS(t, ro)
			fs := must2(ext4lite.OpenFile(live, ext4lite.Options{}))(t)
			compare(t, "the kernel's log replayed", want, (&ours{t, fs}).dump())
			closeFS(t, fs)
			check(t, live)
		})
	}
}

func must2[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func TestDirtyFastCommitIsRefused(t *testing.T) {
	path := kernelVolume(t, 64<<20, "-O", "fast_commit", "-b", "4096")
	kfs := &kernel{t, mount(t, path)}
	kfs.create("f", 0o600)
	fd, err := unix.Open(kfs.p("f"), unix.O_RDWR, 0)
	must(t, err)
	unix.Write(fd, []byte("x"))
	unix.Fsync(fd)
	unix.Close(fd)
	live := copyLive(t, path)
	umount(t, kfs.dir)
	_, err = ext4lite.OpenFile(live, ext4lite.Options{})
	if ext4lite.ErrnoOf(err) != ext4lite.EOPNOTSUPP {
		t.Fatalf("a log that may hold fast commits: %v", err)
	}
	t.Log(err)
	fs := open(t, path, ext4lite.Options{}) // clean: fine
	must(t, fs.WriteFile("g", []byte("y"), ext4lite.NewInode{Mode: 0o600}))
	closeFS(t, fs)
	check(t, path)
}
