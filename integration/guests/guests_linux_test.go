// SPDX-License-Identifier: Apache-2.0

// Package guests runs other people's software in sandboxes of an ordinary user,
// through the command line that users have, and compares what it does with what
// it does elsewhere: CPython's own test suite against the same run under runc,
// Node.js, git, a C compiler, apt and SQLite against what their output has to
// be. It holds no product code and knows nothing of gvx but rungv's flags.
package guests

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// home is shared by the tests of this package: images are imported once.
var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// guest runs a shell script in a new sandbox of the image and returns how it
// ended. The script comes by standard input, so that it may be of any length.
func guest(t *testing.T, image string, timeout time.Duration, script string, flags ...string) testbed.Result {
	t.Helper()
	if os.Getenv("GVX_GUESTS_UNDER") == "runc" {
		return runcGuest(t, image, timeout, script)
	}
	h := home.Get(t)
	name := h.Image(t, image)
	args := append([]string{"run", "--rm", "-i", "--network", "none"}, flags...)
	args = append(args, name, "sh", "-eu", "-s")
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return testbed.Run(t, h.Command(ctx, args...), strings.NewReader(script))
}

// runcGuest is guest under runc: to tell whether a failure is the test's own, set
// GVX_GUESTS_UNDER=runc.
func runcGuest(t *testing.T, image string, timeout time.Duration, script string) testbed.Result {
	bundle := testbed.NewBundle(t, "runc", image)
	process := bundle.Spec.Process
	process.Args, process.Cwd = []string{"sh", "-eu", "-s"}, "/root"
	process.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	all := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SETFCAP", "CAP_KILL", "CAP_SYS_CHROOT"}
	process.Capabilities.Bounding, process.Capabilities.Effective, process.Capabilities.Permitted = all, all, all
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return testbed.Run(t, bundle.Command(ctx, t), strings.NewReader(script))
}

// mustGuest is guest for a script that has to succeed; it returns its output.
func mustGuest(t *testing.T, image string, timeout time.Duration, script string, flags ...string) string {
	t.Helper()
	result := guest(t, image, timeout, script, flags...)
	if result.Code != 0 {
		t.Fatalf("script failed: %v\nscript:\n%s", result, script)
	}
	t.Logf("took %v", result.Took.Round(time.Millisecond))
	return result.Stdout
}

// progress copies what a long run prints to the test's own output, so that a
// human or a CI log sees it move.
func progress(prefix string) io.Writer { return &prefixWriter{prefix: prefix} }

// prefixWriter writes whole lines to standard error, each with a prefix.
type prefixWriter struct {
	prefix  string
	pending string
}

func (w *prefixWriter) Write(data []byte) (int, error) {
	w.pending += string(data)
	for {
		line, rest, ok := strings.Cut(w.pending, "\n")
		if !ok {
			return len(data), nil
		}
		w.pending = rest
		fmt.Fprintf(os.Stderr, "%s%s\n", w.prefix, line)
	}
}
