// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// scatter writes a file whose blocks come to lie all over the golden volume's file:
// they are the guest's at once, and get their places on the host's disk one by one.
const scatter = `exec python3 -c '
import os, random
SIZE = 1 << 30
f = os.open("/v/big", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(f, 0, SIZE)
random.seed(1)
data = os.urandom(4096)
for n in range(60000):
    os.pwrite(f, data, random.randrange(SIZE // 4096) * 4096)
    if n % 50 == 0: os.fsync(f)
open("/v/f", "w").write("golden\n")
'`

// TestReset measures both ways to begin an episode with what a golden volume holds,
// on an XFS that can share blocks, in turn: a copy by `cp --reflink`, as people do it
// without gvx, and a clone that is a delta. The golden volume is fragmented, as one is
// that an engine has worked on.
func TestReset(t *testing.T) {
	needBench(t)
	h := getHome(t)
	dir := h.Path("xfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.MountXFS(t, h.Path("xfs.img"), dir, 6<<30)
	golden, copied := filepath.Join(dir, "golden.ext4"), filepath.Join(dir, "ep.ext4")
	flags := []string{"run", "--rm", "--network", "none"}
	r := h.Rungv(t, nil, append(flags, "--mount", "type=volume,size=3g,src="+golden+",dst=/v,durability=host", image, "sh", "-c", scatter)...)
	if r.Code != 0 {
		t.Fatal(r)
	}
	start := func(mount string) time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := testbed.Run(t, h.Command(ctx, append(flags, "--mount", "type=volume,dst=/v,src="+mount, image, "sh", "-c", "cat /v/f; echo more >> /v/f")...), nil)
		if r.Code != 0 || r.Stdout != "golden\n" {
			t.Fatalf("%s: %v", mount, r)
		}
		return r.Took
	}
	n := testbed.Rounds(11)
	var share, withCopy, withDelta []time.Duration
	for round := range n + 1 {
		begun := time.Now()
		if r := testbed.Run(t, h.CommandAs(t.Context(), "/bin/cp", "--reflink=always", golden, copied), nil); r.Code != 0 {
			t.Fatal(r)
		}
		took := time.Since(begun)
		copyStart := start(copied)
		if err := os.Remove(copied); err != nil {
			t.Fatal(err)
		}
		deltaStart := start(golden + ",clone=ephemeral")
		if round > 0 { // the first warms caches
			share, withCopy, withDelta = append(share, took), append(withCopy, took+copyStart), append(withDelta, deltaStart)
		}
	}
	ratio := float64(testbed.Median(withCopy)) / float64(testbed.Median(withDelta))
	testbed.Report(t, fmt.Sprintf("a guest with a golden volume's content, from the reset to its end; the volume's file has %s; medians of %d rounds in turn", extents(t, golden), n),
		[]string{"", "median", "ratio"},
		[]string{"cp --reflink alone", testbed.Milliseconds(testbed.Median(share)), ""},
		[]string{"cp --reflink, then a start", testbed.Milliseconds(testbed.Median(withCopy)), fmt.Sprintf("%.2f", ratio)},
		[]string{"clone=ephemeral", testbed.Milliseconds(testbed.Median(withDelta)), "1.00"})
}

// extents is how many pieces a file has on its disk, as filefrag(8) counts them.
func extents(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command(testbed.NeedCommand(t, "filefrag"), path).Output()
	if err != nil {
		t.Fatalf("filefrag %s: %v", path, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(out), path+":"))
}
