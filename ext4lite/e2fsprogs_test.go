// SPDX-License-Identifier: Apache-2.0

// The broken volumes of e2fsprogs' own tests. They are not in this tree: unpack
// Debian's source package of e2fsprogs and name its tests folder in
// GVX_E2FSPROGS_TESTS.

package ext4lite_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/fsck"
)

func TestE2fsprogsImages(t *testing.T) {
	dir := os.Getenv("GVX_E2FSPROGS_TESTS")
	if dir == "" {
		t.Skip("needs the tests folder of e2fsprogs: set GVX_E2FSPROGS_TESTS")
	}
	images, err := filepath.Glob(filepath.Join(dir, "*", "image.gz"))
	must(t, err)
	if len(images) == 0 {
		t.Fatalf("no images in %s", dir)
	}
	opened, refused := 0, 0
	for _, img := range images {
		name := filepath.Base(filepath.Dir(img))
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(img)
			must(t, err)
			defer f.Close()
			z, err := gzip.NewReader(f)
			must(t, err)
			// Images are cut where only holes follow; the superblock knows how
			// long they were.
			m := device.NewMem(0)
			buf := make([]byte, 1<<16)
			for off := int64(0); ; {
				n, err := io.ReadFull(z, buf)
				if !zeros(buf[:n]) {
					m.WriteAt(buf[:n], off)
				}
				if off += int64(n); off > 1<<40 {
					t.Skip("too long for this test")
				}
				must(t, m.Truncate(max(off, m.Size())))
				if err != nil {
					break
				}
			}
			var rep *fsck.Report
			within(t, 2*time.Minute, name+": fsck", func() { rep, err = fsck.Check(m) })
			if err == nil && rep.Clean() {
				path := save(t, m)
				if out, err := exec.Command(tool(t, "e2fsck"), "-fn", path).CombinedOutput(); err != nil {
					t.Errorf("e2fsck finds damage here, we do not: %s", out)
				}
			}
			fs, err := ext4lite.Open(m.Clone(), ext4lite.Options{ReadOnly: true})
			if err != nil {
				refused++
				t.Log(err)
			} else {
				opened++
				must(t, fs.Close())
			}
			within(t, 2*time.Minute, name+": reading", func() { abuse(m.Clone(), true) })
			within(t, 2*time.Minute, name+": writing", func() { abuse(m.Clone(), false) })
		})
	}
	fmt.Printf("%d images: %d opened, %d refused\n", len(images), opened, refused)
}

func zeros(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
