// SPDX-License-Identifier: Apache-2.0

package gvx

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/fstest"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// makeVolume makes a volume with some files and returns its path. The last
// change is not yet in its place on the disk when clean is false.
func makeVolume(t *testing.T, clean bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "v.ext4")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(64<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	dev, err := device.OpenFile(path, device.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := ext4lite.Mkfs(dev, ext4lite.MkfsOptions{}); err != nil {
		t.Fatal(err)
	}
	v, err := ext4lite.Open(dev, ext4lite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := v.MkdirAll("a/b", ext4lite.NewInode{Mode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Release()
	link, err := dir.Symlink("link", "/a/file", ext4lite.NewInode{})
	if err != nil {
		t.Fatal(err)
	}
	link.Release()
	if err := v.WriteFile("a/file", []byte("42\n"), ext4lite.NewInode{Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	if err := v.Sync(); err != nil {
		t.Fatal(err)
	}
	end := v.Close
	if !clean {
		end = v.Abandon
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestVolumeShowsItsFiles after a graceful end, and after a kill.
func TestVolumeShowsItsFiles(t *testing.T) {
	for _, clean := range []bool{true, false} {
		path := makeVolume(t, clean)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		v, err := OpenVolume(path)
		if err != nil {
			t.Fatalf("clean %v: %v", clean, err)
		}
		if err := fstest.TestFS(v, "a/file", "a/b/link", "lost+found"); err != nil {
			t.Errorf("clean %v: %v", clean, err)
		}
		for _, name := range []string{"a/file", "a/b/link"} {
			if data, err := fs.ReadFile(v, name); err != nil || string(data) != "42\n" {
				t.Errorf("clean %v: read %s: %q, %v", clean, name, data, err)
			}
		}
		if target, err := v.ReadLink("a/b/link"); err != nil || target != "/a/file" {
			t.Errorf("clean %v: link to %q, %v", clean, target, err)
		}
		if info, err := v.Stat("a/b/link"); err != nil || info.Mode() != 0o640 {
			t.Errorf("clean %v: stat through a link: %v, %v", clean, info, err)
		}
		if _, err := v.Open("a/none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("clean %v: open what is not there: %v", clean, err)
		}
		var tar bytes.Buffer
		if err := v.Export(&tar, "a"); err != nil || !bytes.Contains(tar.Bytes(), []byte("42\n")) {
			t.Errorf("clean %v: export: %d bytes, %v", clean, tar.Len(), err)
		}
		if err := v.Close(); err != nil {
			t.Errorf("clean %v: close: %v", clean, err)
		}
		after, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("clean %v: looking at the volume changed it (%v)", clean, err)
		}
	}
}

// TestSparseFileIsNotReadIntoMemory: a guest's file of terabytes is an error of
// ReadFile, which would else end the program; what there is of it can be read.
func TestSparseFileIsNotReadIntoMemory(t *testing.T) {
	path := makeVolume(t, true)
	w, err := ext4lite.OpenFile(path, ext4lite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	i, err := w.Walk("a/file")
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Truncate(8 << 40); err != nil {
		t.Fatal(err)
	}
	i.Release()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	v, err := OpenVolume(path)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if data, err := fs.ReadFile(v, "a/file"); !errors.Is(err, ErrLimit) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	f, err := v.Open("a/file")
	if err != nil {
		t.Fatal(err)
	}
	begin := make([]byte, 3)
	if _, err := io.ReadFull(f, begin); err != nil || string(begin) != "42\n" {
		t.Errorf("%q, %v", begin, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.(io.ReaderAt).ReadAt(begin, 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
}

// TestNamesThatLeadElsewhereAreDamage: no volume's file is given a name that a
// path could begin with.
func TestNamesThatLeadElsewhereAreDamage(t *testing.T) {
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("mkfs.ext4 is missing: install e2fsprogs")
		}
		t.Skip("mkfs.ext4 is missing: install e2fsprogs")
	}
	// Without checksums, so that a name can be changed in place.
	const name, other = "a-name-that-is-known", "/../../../etc/passwd"
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "v.ext4")
	if out, err := exec.Command(mkfs, "-q", "-F", "-O", "^metadata_csum", "-d", source, path, "16M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, damaged := range []bool{false, true} {
		if damaged {
			data, err := os.ReadFile(path)
			if err != nil || bytes.Count(data, []byte(name)) != 1 {
				t.Fatalf("the name is in the volume %d times, %v", bytes.Count(data, []byte(name)), err)
			}
			if err := os.WriteFile(path, bytes.Replace(data, []byte(name), []byte(other), 1), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		v, err := OpenVolume(path)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := fs.ReadDir(v, "."); errors.Is(err, ErrVolume) != damaged {
			t.Errorf("damaged %v: %v, %v", damaged, list, err)
		}
		v.Close()
	}
}

// TestOpenVolumeTellsWhy a volume cannot be opened.
func TestOpenVolumeTellsWhy(t *testing.T) {
	if _, err := OpenVolume(filepath.Join(t.TempDir(), "none")); !errors.Is(err, ErrNotFound) {
		t.Errorf("no file: %v", err)
	}
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, bytes.Repeat([]byte{0xa5}, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenVolume(junk); !errors.Is(err, ErrVolume) {
		t.Errorf("junk: %v", err)
	}
	path := makeVolume(t, true)
	v, err := ext4lite.OpenFile(path, ext4lite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := OpenVolume(path); !errors.Is(err, ErrState) {
		t.Errorf("in use: %v", err)
	}
}
