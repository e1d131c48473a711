// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// check is one question to an engine.
type check struct {
	name, engine, script, want string
}

// checksOf reads testdata/matrix.txt.
func checksOf(t *testing.T) []check {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "matrix.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var checks []check
	for _, part := range strings.Split("\n"+string(text), "\n== ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		script, want, ok := strings.Cut(rest, "\n--\n")
		if !ok {
			script, ok = strings.CutSuffix(strings.TrimRight(rest, "\n"), "\n--")
		}
		if !ok {
			t.Fatalf("matrix.txt: check %q has no answer", name)
		}
		c := check{script: script, want: strings.TrimRight(want, "\n")}
		c.name, c.engine, _ = strings.Cut(name, " | ")
		checks = append(checks, c)
	}
	return checks
}

// engines are the images that the matrix is asked of, newest first.
var engines = []string{"dind", "dind-debian"}

// dindNames are the names of an engine's image in the registry; the newest is
// the one that the document names.
func dindNames(entry string) []string {
	if entry == "dind" {
		return []string{"docker:dind", "docker:29-dind"}
	}
	return []string{"docker:20-dind"}
}

// TestMatrix asks both engines everything in testdata/matrix.txt, at the same time.
func TestMatrix(t *testing.T) {
	w := get(t)
	checks := checksOf(t)
	w.publish(t, "busybox", "busybox:latest")
	t.Cleanup(func() {
		if left := w.home.Processes(t); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	for _, entry := range engines {
		w.publish(t, entry, dindNames(entry)...)
		outside := freePort(t)
		volume := w.home.Path("data", "matrix-"+entry+".ext4")
		// One after the other: an engine ends itself when its start takes too long.
		e := w.start(t, dindNames(entry)[0], "matrix-"+entry,
			"-p", fmt.Sprintf("127.0.0.1:%d:18080", outside),
			"--mount", "type=volume,src="+volume+",dst=/var/lib/docker")
		t.Logf("%s answers after %v", entry, e.ready(t))
		t.Run(entry, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(e.output.String(), "(nf_tables)\n") {
				t.Errorf("want the iptables that works here, of nftables:\n%s", tail(e.output.String()))
			}
			dir, passed := t.TempDir(), 0
			for _, c := range checks {
				if c.engine != "" && c.engine != entry {
					continue
				}
				if t.Run(c.name, func(t *testing.T) {
					got := e.sh(t, dir, fmt.Sprintf("OUTSIDE=%d\n", outside)+c.script)
					if !matches(c.want, got) {
						t.Errorf("%s\nanswers:\n%s\nwanted:\n%s", c.script, got, c.want)
					}
				}) {
					passed++
				}
			}
			t.Logf("%s: %d of %d checks pass", entry, passed, len(checks))
			if t.Failed() {
				t.Logf("engine:\n%s", tail(e.output.String()))
			}
			e.interrupt(t)
		})
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestMatchesTellsApart keeps the matrix from passing whatever comes.
func TestMatchesTellsApart(t *testing.T) {
	for _, c := range []struct {
		want, output string
		match        bool
	}{
		{"a\nb", "a\nb", true},
		{"a\nb", "a\nb\nc", false},
		{"a", "", false},
		{"", "", true},
		{"", "x", false},
		{"~ [0-9]+", "12", true},
		{"~ [0-9]+", "12x", false},
		{"...\nb", "x\ny\nb", true},
		{"...\nb", "x\ny", false},
		{"a.c", "abc", false},
	} {
		if got := matches(c.want, c.output); got != c.match {
			t.Errorf("matches(%q, %q) = %v", c.want, c.output, got)
		}
	}
	if len(checksOf(t)) < 80 && testbed.CI() {
		t.Errorf("the matrix has %d checks: 80 are promised", len(checksOf(t)))
	}
}
