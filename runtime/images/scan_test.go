// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
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

// TestScanThatFailsLeavesNothing: no file, no goroutine at the framing, and the
// error that a layer of a known digest would have, whichever half fails when.
func TestScanThatFailsLeavesNothing(t *testing.T) {
	good := tarOf(t, member{name: "etc/hostname", content: strings.Repeat("scanned\n", 1<<16)}, member{name: "bin/sh", content: "#!"})
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(good); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	badSum := bytes.Clone(packed.Bytes())
	badSum[len(badSum)-5] ^= 1 // noticed behind the last entry
	for name, tar := range map[string][]byte{
		"an entry that is refused": tarOf(t, member{name: "a/.wh..wh.x/y", content: "x"}, member{name: "../up", content: "x"}, member{name: "a/.wh.b/c", content: "x"}),
		"the tar is cut":           good[:len(good)/2],
		"the packing is cut":       packed.Bytes()[:packed.Len()/2],
		"the packing's checksum":   badSum,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, fastScratch(t))
			tarFile := filepath.Join(t.TempDir(), "rootfs.tar")
			if err := os.WriteFile(tarFile, tar, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Pull(context.Background(), "rootfs-tar:"+tarFile, PullOptions{Name: "bad"}); api.KindOf(err) != api.KindImage {
				t.Errorf("error %v", err)
			}
			if left, err := os.ReadDir(s.dir(dirTmp)); err != nil || len(left) != 0 {
				t.Errorf("temporary files: %v, %v", left, err)
			}
			stacks := make([]byte, 1<<20)
			if stacks = stacks[:runtime.Stack(stacks, true)]; bytes.Contains(stacks, []byte("(*framer).split")) {
				t.Errorf("the framing still goes on:\n%s", stacks)
			}
		})
	}
}
