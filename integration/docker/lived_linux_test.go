// SPDX-License-Identifier: Apache-2.0

package docker

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

// TestEpisodesAsUsersLiveThem runs what `make demo` ends with: a golden volume
// with Python, Redis and PostgreSQL, and episodes of it in which a repository is
// edited, built, composed with a cache and a database, and tested.
func TestEpisodesAsUsersLiveThem(t *testing.T) {
	if !testbed.Nightly() {
		t.Skip("minutes, most of them for the golden volume: make nightly, or make demo")
	}
	w := get(t)
	episodes := count(t, 4, 4, "GVX_EPISODES")
	// A store and a client's folder of its own: the script imports an image
	// under the name that other tests have from the registry.
	dir := w.home.Path("tmp", "lived")
	left := w.home.NothingLeft(t)
	for _, name := range []string{"", "run", "data", "images", "client"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		w.home.Chown(t, filepath.Join(dir, name))
	}
	for name, entry := range map[string]string{"dind": "dind", "python": "demo", "redis": "redis", "postgres": "postgres"} {
		if err := os.Symlink(w.home.Layout(t, entry), filepath.Join(dir, "images", name)); err != nil {
			t.Fatal(err)
		}
	}
	plugins := filepath.Join(testbed.Need(t, "engine"), "usr/local/libexec/docker/cli-plugins")
	if output, err := exec.Command("cp", "-r", "--reflink=auto", plugins, filepath.Join(dir, "client", "cli-plugins")).CombinedOutput(); err != nil {
		t.Fatalf("copy the client's plugins: %v: %s", err, output)
	}
	script := filepath.Join(dir, "episodes.sh")
	text, err := os.ReadFile(filepath.Join(testbed.Tree(), "install", "episodes.sh"))
	if err == nil {
		err = os.WriteFile(script, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	cmd := w.home.CommandAs(ctx, "/bin/bash", script, filepath.Join(dir, "images"), fmt.Sprint(episodes))
	cmd.Env = append(userEnvironment(w), "TMPDIR="+dir, "DOCKER_CONFIG="+filepath.Join(dir, "client"),
		"XDG_RUNTIME_DIR="+filepath.Join(dir, "run"), "XDG_DATA_HOME="+filepath.Join(dir, "data"))
	result := testbed.Run(t, cmd, nil)
	t.Logf("%v\n%s", result.Took.Round(time.Millisecond), result.Stdout)
	if got := strings.Count(result.Stdout, "   pass\n"); result.Code != 0 || got != episodes {
		t.Errorf("%d of %d episodes passed: %v", got, episodes, result)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	left()
}
