// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// ShimName is containerd's shim of gvx, and Runtime what containerd calls it.
const (
	ShimName = "containerd-shim-gvx-v2"
	Runtime  = "io.containerd.gvx.v2"
)

// SharedShim is the shim for all tests of a package, built when the first asks for
// it: $GVX_SHIM if that is set.
type SharedShim struct {
	once sync.Once
	dir  string
	err  error
}

// Get returns the program's path.
func (s *SharedShim) Get(t testing.TB) string {
	t.Helper()
	if given := os.Getenv("GVX_SHIM"); given != "" {
		return given
	}
	s.once.Do(func() {
		if s.dir, s.err = os.MkdirTemp("/var/tmp", "gvx-shim-"); s.err != nil {
			return
		}
		// Sandboxes are other users.
		if s.err = os.Chmod(s.dir, 0o755); s.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", filepath.Join(s.dir, ShimName), "./cmd/"+ShimName)
		build.Dir = Tree()
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		output, err := build.CombinedOutput()
		if s.err = err; err != nil {
			t.Logf("build %s: %s", ShimName, output)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return filepath.Join(s.dir, ShimName)
}

// Remove deletes it; for MainAlone.
func (s *SharedShim) Remove(code int) int {
	if s.dir != "" && os.RemoveAll(s.dir) != nil && code == 0 {
		return 1
	}
	return code
}
