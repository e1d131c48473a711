// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// Suites of others, run by a guest on its volume. No package of Debian has them:
// the folders that they were built in are named by variables, as for the same
// suites over the library alone (integration/ext4).

// suiteTimeout bounds a whole suite.
const suiteTimeout = 2 * time.Hour

// TestPjdfstestInTheGuest runs pjdfstest, of GVX_PJDFSTEST, as the guest's root: whole on
// a volume, and on a clone what changes names and files. What fails is listed, each with
// its reason.
func TestPjdfstestInTheGuest(t *testing.T) {
	suite := os.Getenv("GVX_PJDFSTEST")
	if suite == "" {
		t.Skip("needs pjdfstest: set GVX_PJDFSTEST to the folder it was built in")
	}
	known := testbed.KnownFailures(t, filepath.Join("testdata", "pjdfstest_known.txt"))
	b := newBed(t)
	b.image = b.h.Image(t, "full")
	b.must("echo golden > /v/golden", "--mount", b.mount("golden.ext4", "size=4g"))
	for name, c := range map[string]struct {
		volume, tests string
		flags         []string
	}{
		"volume": {"v.ext4", ".", []string{"size=4g"}},
		"clone":  {"golden.ext4", "rename link unlink rmdir symlink truncate ftruncate chmod chown", []string{"clone=" + b.path("ep.delta")}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
			defer cancel()
			tests := "/suite/tests/" + strings.Join(strings.Fields(c.tests), " /suite/tests/")
			r := testbed.Run(t, b.h.Command(ctx, "run", "--rm", "--network", "none", "--privileged", "-v", suite+":/suite:ro", "--mount", b.mount(c.volume, c.flags...),
				b.image, "sh", "-c", "mkdir /v/t && cd /v/t && exec prove -r "+tests+" 2>&1"), nil)
			failed, ran := pjdfstestFailures(r.Stdout)
			if ran == 0 {
				t.Fatalf("pjdfstest ran nothing: %v", r)
			}
			t.Logf("%d tests, %d failed", ran, len(failed))
			for _, test := range failed {
				if known[test] == "" {
					t.Errorf("%s fails", test)
				}
			}
			for test, reason := range known {
				if name == "volume" && !slices.Contains(failed, test) {
					t.Errorf("%s passes now: take it off the list (%s)", test, reason)
				}
			}
			if t.Failed() {
				t.Log(r.Stdout)
			}
			b.check(b.path(c.volume))
		})
	}
}

var (
	proveFile  = regexp.MustCompile(`(?m)^\S*/tests/(?:\.?/)?(\S+\.t)\s+\(Wstat: `)
	proveTests = regexp.MustCompile(`(?m)^Files=\d+, Tests=(\d+),`)
	// proveFailed is followed by more lines of numbers when there are many.
	proveFailed = regexp.MustCompile(`^  Failed tests?:\s+(.*)$`)
)

// pjdfstestFailures are the tests that prove(1) reports as failed, as FILE:NUMBER,
// and how many ran. A file that came to no proper end is FILE:end.
func pjdfstestFailures(output string) (failed []string, ran int) {
	if m := proveTests.FindStringSubmatch(output); m != nil {
		ran, _ = strconv.Atoi(m[1])
	}
	file, isList := "", false
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if m := proveFile.FindStringSubmatch(line); m != nil {
			file, isList = m[1], false
			continue
		}
		numbers := ""
		if m := proveFailed.FindStringSubmatch(line); m != nil && file != "" {
			numbers, isList = m[1], true
		} else if isList && strings.HasPrefix(line, "        ") {
			numbers = line
		} else {
			isList = false
			if file != "" && (strings.HasPrefix(line, "  Non-zero exit") || strings.HasPrefix(line, "  Non-zero wait") || strings.HasPrefix(line, "  Parse errors")) {
				failed = append(failed, file+":end")
			}
			continue
		}
		for part := range strings.FieldsFuncSeq(numbers, func(r rune) bool { return r == ',' || r == ' ' }) {
			first, last, isRange := strings.Cut(part, "-")
			from, _ := strconv.Atoi(first)
			to := from
			if isRange {
				to, _ = strconv.Atoi(last)
			}
			for n := from; n <= to; n++ {
				failed = append(failed, fmt.Sprintf("%s:%d", file, n))
			}
		}
	}
	return failed, ran
}

// TestFailuresOfProve: what a suite prints is read whole.
func TestFailuresOfProve(t *testing.T) {
	failed, ran := pjdfstestFailures(`/suite/tests/open/00.t .. ok
Test Summary Report
-------------------
/suite/tests/chmod/12.t      (Wstat: 0 Tests: 14 Failed: 4)
  Failed tests:  2, 7-8,
                14
/suite/tests/link/00.t       (Wstat: 256 (exited 1) Tests: 3 Failed: 1)
  Failed test:  3
  Non-zero exit status: 1
Files=238, Tests=8798, 12 wallclock secs
Result: FAIL
`)
	if got, want := strings.Join(failed, " "), "chmod/12.t:2 chmod/12.t:7 chmod/12.t:8 chmod/12.t:14 link/00.t:3 link/00.t:end"; got != want || ran != 8798 {
		t.Errorf("%q, %d tests; want %q, 8798", got, ran, want)
	}
}

// TestFsxInTheGuest runs fsx, of the xfstests that GVX_XFSTESTS names, on a volume
// and on a clone, with what it does by default: mappings, holes, clones of ranges.
func TestFsxInTheGuest(t *testing.T) {
	suite := os.Getenv("GVX_XFSTESTS")
	if suite == "" {
		t.Skip("needs fsx: set GVX_XFSTESTS to the folder in which xfstests was built")
	}
	operations, seeds := 20000, 2
	if testbed.Nightly() {
		operations, seeds = 100000, 4
	}
	b := newBed(t)
	tools := b.copyProgram("fsx", filepath.Join(suite, "ltp", "fsx"))
	run := func(seed int) string {
		return fmt.Sprintf("LD_LIBRARY_PATH=/tools /tools/fsx -q -N %d -S %d -l 1048576 /v/fsx > /tmp/out 2>&1 || { tail -n 100 /tmp/out; exit 1; }", operations, seed)
	}
	flags := []string{"-v", tools + ":/tools:ro", "--tmpfs", "/tmp"}
	for seed := range seeds {
		b.must(run(seed+1), append(flags, "--mount", b.mount("v.ext4", "size=1g"))...)
		b.check(b.path("v.ext4"))
		// The clone begins with the file that the base has.
		b.must(run(seed+101), append(flags, "--mount", b.mount("v.ext4", "clone=ephemeral"))...)
		b.progress(seed+1, seeds, "%d operations each", operations)
	}
}
