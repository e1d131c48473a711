// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"path/filepath"
	"testing"
)

// TestDoctor checks the report's form; what it finds is the host's affair.
func TestDoctor(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range Doctor(filepath.Join(t.TempDir(), "not", "yet")) {
		t.Logf("%-22s %-8s %-40s %s", l.Name, l.State, l.Detail, l.Meaning)
		if l.Name == "" || l.Meaning == "" || seen[l.Name] {
			t.Errorf("layer %+v: no name, no meaning, or twice", l)
		}
		seen[l.Name] = true
		if l.State != StateUsed && l.State != StatePresent && l.State != StateMissing {
			t.Errorf("layer %q: state %q", l.Name, l.State)
		}
	}
	for _, want := range []string{"kernel", LayerSeccomp, "seccomp-notify", "ptrace", "user namespace", "net namespace", "landlock", "cgroup", "memfd", "reflink", "disk"} {
		if !seen[want] {
			t.Errorf("no line for %q", want)
		}
	}
}
