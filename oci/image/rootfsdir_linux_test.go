// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootfsDirLinux: devices, owners, set-id bits and attributes survive.
func TestRootfsDirLinux(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make devices")
	}
	dir := t.TempDir()
	p := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(p("fifo"), unix.S_IFIFO|0o600, 0),
		unix.Mknod(p("socket"), unix.S_IFSOCK|0o600, 0),
		os.WriteFile(p("file"), []byte("x"), 0o600),
		os.Chown(p("file"), 1234, 3_000_000),
		os.Chmod(p("file"), 0o755|os.ModeSetuid),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	caps := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	if err := unix.Setxattr(p("file"), "security.capability", []byte(caps), 0); err != nil {
		t.Skipf("no extended attributes in %s: %v", dir, err)
	}
	img := mustResolve(t, "rootfs:"+dir, amd64())
	checkImage(t, img)
	tr := tar.NewReader(bytes.NewReader(uncompressed(t, img.Layers[0])))
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			if n != 4 {
				t.Errorf("%d entries, want the root, a file, a FIFO and a device", n)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case h.Name == "file" && (h.Uid != 1234 || h.Gid != 3_000_000 || h.Mode != 0o4755 || h.PAXRecords["SCHILY.xattr.security.capability"] != caps):
			t.Errorf("file: %+v", h)
		case h.Name == "null" && (h.Typeflag != tar.TypeChar || h.Devmajor != 1 || h.Devminor != 3):
			t.Errorf("null: %+v", h)
		}
	}
}
