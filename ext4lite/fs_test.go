// SPDX-License-Identifier: Apache-2.0

// The tools of this package's tests: volumes, e2fsck, the kernel.

package ext4lite_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/fsck"
)

// tool finds a program; without it the test is skipped, or fails in CI.
func tool(t testing.TB, name string) string {
	t.Helper()
	p, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return p
}

func newVolume(t testing.TB, size int64, o ext4lite.MkfsOptions) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "v.ext4")
	d, err := device.CreateFile(path, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := ext4lite.Mkfs(d, o); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// kernelVolume makes a volume with mkfs.ext4.
func kernelVolume(t testing.TB, size int64, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "k.ext4")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	run(t, tool(t, "mkfs.ext4"), append(append([]string{"-q", "-F"}, args...), path)...)
	return path
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func open(t testing.TB, path string, o ext4lite.Options) *ext4lite.FS {
	t.Helper()
	fs, err := ext4lite.OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

func closeFS(t testing.TB, fs *ext4lite.FS) {
	t.Helper()
	if why := fs.ReadOnly(); why != nil {
		t.Logf("read-only: %v", why)
	}
	if err := fs.Close(); err != nil {
		t.Fatal(err)
	}
}

// check has e2fsck and our own checker look at a volume.
func check(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	d, err := device.Donated(f, device.ReadOnly)
	must(t, err)
	r, err := fsck.Check(d)
	must(t, err)
	for _, p := range r.Problems {
		t.Errorf("fsck: %v", p)
	}
	out, err := exec.Command(tool(t, "e2fsck"), "-fn", path).CombinedOutput()
	if err != nil {
		t.Fatalf("e2fsck: %v\n%s", err, out)
	}
}

// mount mounts a volume with the kernel and gives the directory.
func mount(t testing.TB, path string, opts ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a volume")
	}
	dir := t.TempDir()
	o := "loop"
	for _, x := range opts {
		o += "," + x
	}
	if out, err := exec.Command("mount", "-t", "ext4", "-o", o, path, dir).CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("mount: %v\n%s", err, out)
		}
		t.Skipf("needs loop mounts: %v\n%s", err, out)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
	return dir
}

func umount(t testing.TB, dir string) {
	t.Helper()
	// Another mount namespace may have copied the mount and keep it alive, so
	// what was written is brought down first.
	run(t, "sync", "-f", dir)
	run(t, "umount", dir)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFirstFiles(t *testing.T) {
	for _, kind := range []string{"own", "own1k", "mkfs", "mkfs1k", "mkfs128", "mkfs32", "mkfsnocsum", "orphanfile", "metabg", "ext3"} {
		t.Run(kind, func(t *testing.T) {
			var path string
			switch kind {
			case "own":
				path = newVolume(t, 64<<20, ext4lite.MkfsOptions{})
			case "own1k":
				path = newVolume(t, 64<<20, ext4lite.MkfsOptions{BlockSize: 1024})
			case "mkfs":
				path = kernelVolume(t, 64<<20)
			case "mkfs1k":
				path = kernelVolume(t, 64<<20, "-b", "1024")
			case "mkfs128":
				path = kernelVolume(t, 64<<20, "-I", "128")
			case "mkfs32":
				path = kernelVolume(t, 64<<20, "-O", "^64bit")
			case "mkfsnocsum":
				path = kernelVolume(t, 64<<20, "-O", "^metadata_csum,uninit_bg")
			case "orphanfile":
				path = kernelVolume(t, 64<<20, "-O", "orphan_file")
			case "metabg":
				path = kernelVolume(t, 600<<20, "-b", "1024", "-O", "meta_bg,^resize_inode")
			case "ext3":
				path = kernelVolume(t, 64<<20, "-O", "^dir_index")
			}
			fs := open(t, path, ext4lite.Options{})
			root, err := fs.Root()
			must(t, err)
			d, err := root.Mkdir("dir", ext4lite.NewInode{Mode: 0o755, UID: 5, GID: 70000})
			must(t, err)
			data := bytes.Repeat([]byte("0123456789abcdef"), 10000)
			must(t, fs.WriteFile("dir/file", data, ext4lite.NewInode{Mode: 0o644}))
			l, err := d.Symlink("fast", "../target", ext4lite.NewInode{})
			must(t, err)
			l.Release()
			l, err = d.Symlink("slow", string(bytes.Repeat([]byte("x/"), 100)), ext4lite.NewInode{})
			must(t, err)
			l.Release()
			w, err := d.Mknod("white", ext4lite.NewInode{Mode: ext4lite.ModeChar})
			must(t, err)
			must(t, w.SetXattr("trusted.overlay.opaque", []byte("y"), 0))
			must(t, w.SetXattr("user.long", bytes.Repeat([]byte("v"), 500), 0))
			w.Release()
			w, err = d.Mknod("tty", ext4lite.NewInode{Mode: ext4lite.ModeChar | 0o600, Major: 300, Minor: 7000})
			must(t, err)
			must(t, d.Link("tty2", w))
			w.Release()
			must(t, fs.WriteFile("dir/gone", data, ext4lite.NewInode{Mode: 0o644}))
			must(t, d.Unlink("gone"))
			if _, err := d.Lookup("gone"); !errors.Is(err, ext4lite.ENOENT) {
				t.Fatalf("lookup of an unlinked name: %v", err)
			}
			got, err := fs.ReadFile("dir/file", 1<<20)
			must(t, err)
			if !bytes.Equal(got, data) {
				t.Fatal("data differs")
			}
			d.Release()
			root.Release()
			closeFS(t, fs)
			check(t, path)
			dir := mount(t, path)
			got, err = os.ReadFile(filepath.Join(dir, "dir/file"))
			must(t, err)
			if !bytes.Equal(got, data) {
				t.Fatal("the kernel reads other data")
			}
			out := run(t, "ls", "-lR", dir)
			t.Log(out)
			must(t, os.WriteFile(filepath.Join(dir, "dir/kernel"), data[:5000], 0o600))
			umount(t, dir)
			fs = open(t, path, ext4lite.Options{})
			got, err = fs.ReadFile("dir/kernel", 1<<20)
			must(t, err)
			if !bytes.Equal(got, data[:5000]) {
				t.Fatal("we read other data than the kernel wrote")
			}
			closeFS(t, fs)
			check(t, path)
		})
	}
}
