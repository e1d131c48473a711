// SPDX-License-Identifier: Apache-2.0

package layer

// The kernel's overlayfs as the judge of whiteouts: two layers, converted,
// mounted from loop devices and stacked, must look as the tar streams say.

import (
	"archive/tar"
	"bytes"
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/erofs"
)

// mounted mounts until the test ends, or skips where that cannot be.
func mounted(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", append(args, dir)...).CombinedOutput(); err != nil {
		fs, _ := os.ReadFile("/proc/filesystems")
		if !bytes.Contains(fs, []byte("erofs")) || !bytes.Contains(fs, []byte("overlay")) {
			t.Skip("the kernel has no EROFS or no overlayfs")
		}
		t.Fatalf("mount %v: %v: %s", args, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// image converts a stream into an image file.
func image(t *testing.T, hdrs ...tar.Header) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Convert(context.Background(), bytes.NewReader(stream(t, hdrs...)), b, Limits{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Finish(context.Background()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func TestKernelOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount images")
	}
	lower := image(t, dir("keep"), file("keep/a", "1"), dir("opaque"), file("opaque/old", "1"), dir("gone"), file("gone/x", "1"), file("file", "1"), dir("replaced"), file("replaced/old", "1"), dir("merged"), file("merged/old", "1"))
	upper := image(t, file(".wh.gone", ""), file("file", "2"), file("opaque/.wh..wh..opq", ""), dir("opaque"), file("opaque/new", "2"),
		file("keep/.wh.a", ""), file("keep/b", "2"), dir("replaced"), file("replaced/new", "2"), file(".wh.replaced", ""), dir("merged"), file("merged/new", "2"),
		tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3})
	l, u := mounted(t, "-t", "erofs", "-o", "ro,loop", lower), mounted(t, "-t", "erofs", "-o", "ro,loop", upper)
	root := mounted(t, "-t", "overlay", "overlay", "-o", "ro,lowerdir="+u+":"+l)

	got := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
		got[rel] = d.Type().String()
		if d.Type().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			got[rel] = string(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const isDir, isDevice = "d---------", "Dc---------"
	want := map[string]string{"": isDir, "keep": isDir, "keep/b": "2", "opaque": isDir, "opaque/new": "2", "file": "2", "replaced": isDir, "replaced/new": "2",
		"merged": isDir, "merged/old": "1", "merged/new": "2", "null": isDevice}
	if !maps.Equal(got, want) {
		t.Errorf("the kernel sees %q\nwant %q (differs in names: %v)", got, want, !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))))
	}
}
