// SPDX-License-Identifier: Apache-2.0

// Our checker beside e2fsck: on volumes with random damage both complain, or
// neither does.

package ext4lite_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/fsck"
)

func TestFsckBesideE2fsck(t *testing.T) {
	e2fsck := tool(t, "e2fsck")
	base := seedVolume().Clone()
	fs, err := ext4lite.Open(base, ext4lite.Options{})
	must(t, err)
	must(t, fs.Close())
	r := rand.New(rand.NewPCG(firstSeed(), 11))
	found, missed, extra := 0, 0, 0
	for n := range seeds(150) {
		m := base.Clone()
		off := interesting(m, r)
		var p [4]byte
		if r.IntN(2) == 0 {
			binary.LittleEndian.PutUint32(p[:], r.Uint32N(9000))
		}
		m.WriteAt(p[:1+r.IntN(4)], off)
		var rep *fsck.Report
		within(t, 60e9, fmt.Sprint("volume ", n), func() { rep, err = fsck.Check(m) })
		ours := err != nil || !rep.Clean()
		out, terr := exec.Command(e2fsck, "-fn", save(t, m)).CombinedOutput()
		theirs := terr != nil
		switch {
		case ours && theirs:
			found++
		case theirs:
			missed++
			t.Logf("offset %#x: only e2fsck: %s", off, questions(string(out)))
		case ours:
			extra++
			t.Logf("offset %#x: only we: %v", off, rep.Problems)
		}
	}
	t.Logf("both found %d, only e2fsck %d, only we %d", found, missed, extra)
	if missed > 0 {
		t.Errorf("e2fsck found damage %d times where we saw none (both: %d)", missed, found)
	}
}

// questions are the lines of e2fsck's output that are about what it found.
func questions(out string) string {
	lines := strings.Split(out, "\n")[1:]
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return l == "" || strings.HasPrefix(l, "Pass ") }), " | ")
}
