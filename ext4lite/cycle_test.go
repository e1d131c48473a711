// SPDX-License-Identifier: Apache-2.0

// Volumes in which a directory is in itself: whatever goes through them ends.

package ext4lite_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// circular is a volume whose directories /d/one and /d/two are /d.
func circular(t *testing.T) *ext4lite.FS {
	t.Helper()
	m := device.NewMem(32 << 20)
	must(t, ext4lite.Mkfs(m, ext4lite.MkfsOptions{OldChecksums: true}))
	fs, err := ext4lite.Open(m, ext4lite.Options{})
	must(t, err)
	d, err := fs.MkdirAll("/d", ext4lite.NewInode{Mode: 0o755})
	must(t, err)
	ino := d.Attr().Ino
	d.Release()
	names := []string{"one-of-it", "two-of-it"}
	for _, n := range names {
		must(t, fs.WriteFile("/d/"+n, nil, ext4lite.NewInode{Mode: 0o644}))
	}
	must(t, fs.Close())
	image := make([]byte, m.Size())
	_, err = m.ReadAt(image, 0)
	must(t, err)
	for _, n := range names {
		for from := 0; ; {
			k := bytes.Index(image[from:], []byte(n))
			if k < 0 {
				break
			}
			from += k + len(n)
			var entry [8]byte
			at := int64(from - len(n) - len(entry))
			copy(entry[:], image[at:])
			binary.LittleEndian.PutUint32(entry[:], ino)
			entry[7] = 2 // a directory
			_, err := m.WriteAt(entry[:], at)
			must(t, err)
		}
	}
	fs, err = ext4lite.Open(m, ext4lite.Options{})
	must(t, err)
	t.Cleanup(func() { fs.Close() })
	i, err := fs.Walk("/d/one-of-it/two-of-it/one-of-it")
	must(t, err)
	defer i.Release()
	if i.Attr().Ino != ino {
		t.Fatalf("inode %d, not %d: the test is void", i.Attr().Ino, ino)
	}
	return fs
}

func TestAnArchiveOfACircleEnds(t *testing.T) {
	if err := circular(t).Export(io.Discard, "/"); !errors.Is(err, ext4lite.EUCLEAN) {
		t.Errorf("%v", err)
	}
}

func TestARemovalOfACircleEnds(t *testing.T) {
	root, err := circular(t).Root()
	must(t, err)
	defer root.Release()
	if err := root.RemoveAll("d"); err == nil {
		t.Error("a circle was removed")
	}
}
