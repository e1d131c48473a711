// SPDX-License-Identifier: Apache-2.0

// Package testbed gives integration tests what they run against: the real rungv
// binary, an ordinary user with a store of his own, guest images, and the peers
// (runc, runsc, a registry) that testbed.sh has built.
//
// What a test gets is gone when the test or its package ends, but for the cache
// of built things, which outlives the tree. It holds no test of its own and
// knows nothing of gvx but the command line: tests come in by the front door.
package testbed

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// CI says whether a missing piece is a failure instead of a skip.
func CI() bool { return os.Getenv("CI") == "true" }

// Nightly says whether the long tests run too.
func Nightly() bool { return os.Getenv("GVX_NIGHTLY") != "" }

// Missing ends the test because the machine lacks something: it skips, saying
// so, and fails when CI=true.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if CI() {
		t.Fatalf("missing, and CI=true: "+format, args...)
	}
	t.Skipf("missing: "+format, args...)
}

// NeedRoot ends the test unless it runs as root; for is what root is needed for.
func NeedRoot(t testing.TB, purpose string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root, for %s", purpose)
	}
}

// NeedCommand returns the path of a program of the host.
func NeedCommand(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "command %s on the host", name)
	}
	return path
}

// needed remembers paths of test bed entries: each costs a shell script.
var needed sync.Map

// Need returns the path of an entry of the test bed: "runc", "runsc",
// "registry", "seccomp-profile", or an image's folder.
func Need(t testing.TB, name string) string {
	t.Helper()
	if path, ok := needed.Load(name); ok {
		return path.(string)
	}
	script := exec.Command(filepath.Join(Tree(), "integration", "testbed", "testbed.sh"), "path", name)
	var stderr bytes.Buffer
	script.Stderr = &stderr
	output, err := script.Output()
	if err != nil {
		Missing(t, "%s in the test bed: %s", name, strings.TrimSpace(stderr.String()))
	}
	path := strings.TrimSpace(string(output))
	needed.Store(name, path)
	return path
}

// Tree returns the root of the source tree.
func Tree() string {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) {
		// Built with -trimpath: tests run in their package's folder.
		dir, err := filepath.Abs("../..")
		if err != nil {
			panic(err)
		}
		return dir
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
