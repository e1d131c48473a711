// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestLayerConvertedWhileScannedIsTheSame: a root file system's tar is read once
// and becomes the very bytes that the same tar becomes as a layer of a known
// digest; imported again, it changes nothing and leaves nothing.
func TestLayerConvertedWhileScannedIsTheSame(t *testing.T) {
	s := open(t, fastScratch(t))
	ctx := context.Background()
	tarFile := filepath.Join(t.TempDir(), "rootfs.tar")
	if err := os.WriteFile(tarFile, tarOf(t, member{name: "etc/hostname", content: "scanned\n"}, member{name: "bin/sh", content: "#!"}), 0o644); err != nil {
		t.Fatal(err)
	}
	img, err := s.Pull(ctx, "rootfs-tar:"+tarFile, PullOptions{Name: "scanned"})
	if err != nil {
		t.Fatal(err)
	}
	key := hexDigest(img.LayerDiffIDs[0].Encoded())
	scanned, err := os.ReadFile(s.layerPath(key))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(ctx, "rootfs-tar:"+tarFile, PullOptions{Name: "again"}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.dir(dirTmp)); err != nil || len(left) != 0 {
		t.Errorf("temporary files: %v, %v", left, err)
	}

	known := open(t, fastScratch(t))
	archive := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Save(ctx, []string{"scanned"}, f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := known.Pull(ctx, "oci-archive:"+archive, PullOptions{Name: "known"}); err != nil {
		t.Fatal(err)
	}
	converted, err := os.ReadFile(known.layerPath(key))
	if err != nil || !bytes.Equal(scanned, converted) {
		t.Errorf("%d bytes converted while they were scanned, %d from a layer of known digest (%v): not the same", len(scanned), len(converted), err)
	}
}
