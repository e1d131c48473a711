// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// Where the program of the SDK's announcement has its volumes.
const (
	snapshots = "/srv/rl-snapshots"
	episodes  = "/srv/rl-episodes"
	golden    = snapshots + "/golden-docker.ext4"
)

// mountReflinks mounts an XFS, whose files can share blocks, on /srv, in the mount
// namespace of the tests.
func mountReflinks(t *testing.T, w *shared) {
	t.Helper()
	w.home.MountXFS(t, w.home.Path("srv.xfs"), "/srv", 8<<30)
	for _, dir := range []string{snapshots, episodes} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		w.home.Chown(t, dir)
	}
}

// TestProgramOfTheAnnouncement builds and runs, byte for byte, the Go program
// that the SDK was announced with, as an ordinary user: it clones a golden volume
// by `cp --reflink=always`, and has an engine inside run Python.
func TestProgramOfTheAnnouncement(t *testing.T) {
	w := get(t)
	w.publishAll(t)
	mountReflinks(t, w)

	program := w.home.Path("bin", "episode")
	build := exec.Command("go", "build", "-o", program, "./testdata/document")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, output)
	}

	seed := w.start(t, "docker:dind", "seed", "--mount", "type=volume,src="+golden+",dst=/var/lib/docker")
	seed.ready(t)
	seed.docker(t, "pull", "-q", "python:3.11-slim")
	seed.interrupt(t)

	left := w.home.NothingLeft(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := w.home.CommandAs(ctx, program)
	cmd.Env = userEnvironment(w)
	result := testbed.Run(t, cmd, nil)
	if want := `episode 1 finished: exit=0 stdout="42\n"`; result.Code != 0 || !strings.Contains(result.Stderr, want) {
		t.Errorf("want %s: %v", want, result)
	}
	left()
	if entries, err := os.ReadDir(episodes); err != nil || len(entries) != 0 {
		t.Errorf("left in %s: %v, %v", episodes, entries, err)
	}
}
