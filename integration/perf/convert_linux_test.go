// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"archive/tar"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// convertBytes is the size of the tree that is converted.
const convertBytes = 250 << 20

// TestConversion measures how long a layer's tar takes to become EROFS beside
// what mkfs.erofs takes for the same tree from a directory. Ours includes
// reading the tar, verifying its digest, writing to disk for good (fsync) and
// recording the image.
func TestConversion(t *testing.T) {
	needBench(t)
	mkfs := testbed.NeedCommand(t, "mkfs.erofs")
	h := getHome(t)
	work := h.Path("tmp", "convert")
	tree, layer := filepath.Join(work, "tree"), filepath.Join(work, "layer.tar")
	makeTree(t, tree, layer)
	h.Chown(t, work)
	defer os.RemoveAll(work)

	var ours, theirs, synced []time.Duration
	for round := range 5 {
		result := h.Rungv(t, nil, "--root", filepath.Join(work, fmt.Sprintf("store%d", round)), "image", "import", "--progress", "none", "rootfs-tar:"+layer, "tree")
		if result.Code != 0 {
			t.Fatalf("import: %v", result)
		}
		ours = append(ours, result.Took)
		out := filepath.Join(work, "kernel.erofs")
		begin := time.Now()
		if output, err := exec.Command(mkfs, "--quiet", out, tree).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.erofs: %v: %s", err, output)
		}
		theirs = append(theirs, time.Since(begin))
		// What ours includes and mkfs.erofs does not.
		if output, err := exec.Command("sync", out).CombinedOutput(); err != nil {
			t.Fatalf("sync: %v: %s", err, output)
		}
		synced = append(synced, time.Since(begin))
		os.Remove(out)
	}
	speed := func(d time.Duration) string { return fmt.Sprintf("%.0f MB/s", convertBytes/1e6/d.Seconds()) }
	testbed.Report(t, fmt.Sprintf("a tree of %s becomes EROFS, median of %d in turn", testbed.Megabytes(convertBytes), len(ours)),
		[]string{"", "time", "speed", "rungv is"},
		[]string{"rungv image import rootfs-tar (verified, synced)", testbed.Milliseconds(testbed.Median(ours)), speed(testbed.Median(ours)), ""},
		[]string{"mkfs.erofs from a directory", testbed.Milliseconds(testbed.Median(theirs)), speed(testbed.Median(theirs)), fmt.Sprintf("%.2f of it", testbed.Median(ours).Seconds()/testbed.Median(theirs).Seconds())},
		[]string{"mkfs.erofs from a directory, and sync", testbed.Milliseconds(testbed.Median(synced)), speed(testbed.Median(synced)), fmt.Sprintf("%.2f of it", testbed.Median(ours).Seconds()/testbed.Median(synced).Seconds())})
}

// makeTree makes the same tree as a directory and as a tar: many small files and
// some large ones, as packages have, with contents that do not compress.
func makeTree(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	writer := tar.NewWriter(file)
	random := rand.NewChaCha8([32]byte{'g', 'v', 'x'})
	sizes := rand.New(random)
	for total, i := 0, 0; total < convertBytes; i++ {
		size := 1 + sizes.IntN(24<<10)
		if i%200 == 0 {
			size = 4<<20 + sizes.IntN(8<<20)
		}
		size = min(size, convertBytes-total)
		total += size
		data := make([]byte, size)
		random.Read(data)
		path := fmt.Sprintf("d%03d/f%05d", i%300, i)
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), data, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := writer.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(size), Typeflag: tar.TypeReg, ModTime: time.Unix(1, 0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
