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

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// publishAll puts what the document pulls into the registry. Debian's packages
// stand in for the official images.
func (w *shared) publishAll(t testing.TB) {
	t.Helper()
	w.publish(t, "busybox", "busybox:latest")
	w.publish(t, "dind", dindNames("dind")...)
	w.publish(t, "demo", "python:3.11-slim")
	w.publish(t, "redis", "redis:7-alpine")
	w.publish(t, "postgres", "postgres:16-alpine")
}

// TestStepsOfTheDocument runs steps 1 and 2 of the document word for word, as an
// ordinary user, with /srv on an XFS whose files can share blocks.
func TestStepsOfTheDocument(t *testing.T) {
	w := get(t)
	w.publishAll(t)
	mountReflinks(t, w)

	step := func(file, more string) string {
		t.Helper()
		script, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		cmd := w.home.CommandAs(ctx, "/bin/bash", "-c", more+string(script))
		cmd.Env = append(userEnvironment(w), "DOCKER_CONFIG="+w.home.Path("client-of-user"))
		begin := time.Now()
		result := testbed.Run(t, cmd, nil)
		t.Logf("%s: exit code %d after %v", file, result.Code, time.Since(begin).Round(time.Millisecond))
		return result.Stdout + result.Stderr
	}
	output := step("step1.sh", "")
	for _, image := range []string{"python:3.11-slim", "redis:7-alpine", "postgres:16-alpine"} {
		if !strings.Contains(output, "Status: Downloaded newer image for "+image) {
			t.Errorf("step 1 did not pull %s:\n%s", image, tail(output))
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(golden, &st); err != nil {
		t.Fatal(err)
	}
	t.Logf("golden volume: %d MiB long, %d MiB on disk", st.Size>>20, st.Blocks*512>>20)
	if output, err := exec.Command("e2fsck", "-fn", golden).CombinedOutput(); err != nil {
		t.Errorf("e2fsck of the golden volume: %v\n%s", err, output)
	}
	w.forget(t)
	left := w.home.NothingLeft(t) // But for the image, which step 1 has pulled.

	// Without a network: what the episode has comes from the golden volume.
	output = step("step2.sh", "")
	for _, image := range []string{"python:3.11-slim", "redis:7-alpine", "postgres:16-alpine"} {
		if !strings.Contains(output, image) {
			t.Errorf("the episode has no %s:\n%s", image, tail(output))
		}
	}
	w.forget(t)
	left()
	if entries, err := os.ReadDir(episodes); err != nil || len(entries) != 0 {
		t.Errorf("left in %s: %v, %v", episodes, entries, err)
	}
}

// userEnvironment is the home's user's, with rungv and docker in its PATH.
func userEnvironment(w *shared) []string {
	var env []string
	for _, e := range w.home.Env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			e = "PATH=" + filepath.Dir(w.home.Binary) + ":" + path
		}
		env = append(env, e)
	}
	return env
}

// goldenVolume makes a golden volume with the images given, once per test.
func goldenVolume(t *testing.T, w *shared, pull ...string) string {
	t.Helper()
	volume := w.home.Path("data", "golden-"+filepath.Base(t.Name())+".ext4")
	seed := w.start(t, "docker:dind", "seed", "--mount", "type=volume,src="+volume+",dst=/var/lib/docker,size=8g")
	seed.ready(t)
	for _, image := range pull {
		seed.docker(t, "pull", "-q", image)
	}
	seed.interrupt(t)
	t.Cleanup(func() { os.Remove(volume) })
	return volume
}

// episode starts an engine on a clone of a golden volume that goes with it.
func (w *shared) episode(t testing.TB, golden, name string, flags ...string) *engine {
	t.Helper()
	return w.start(t, "docker:dind", name, append(flags, "-m", "4g", "--cpus", "2",
		"--mount", "type=volume,src="+golden+",dst=/var/lib/docker,clone=ephemeral")...)
}

// scenario is what a well-behaved episode does: builds, runs, composes. What goes
// wrong is told with all that the engine knows of it.
const scenario = `set -e
explain() {
	echo "failed: $1"; cat log
	docker compose ps -a; docker compose logs --no-color
	docker events --since 10m --until 0s --format '{{.Time}} {{.Type}} {{.Action}} {{.Actor.Attributes.name}} {{.Actor.Attributes.exitCode}}' | tail -n 40
	for id in $(docker ps -aq); do docker inspect -f '{{.Name}} {{json .State}} {{json .NetworkSettings.Networks}}' $id; done
	exit 1
}
mkdir -p app && cd app
printf 'FROM busybox\nCOPY page /www/index.html\nCMD ["httpd","-f","-h","/www"]\n' > Dockerfile
echo "page of $NAME" > page
cat > compose.yaml <<END
services:
  web: {build: ., healthcheck: {test: "wget -q -O - http://127.0.0.1/", interval: 300ms, retries: 100}}
  test: {image: busybox, command: "wget -O - http://web/", depends_on: {web: {condition: service_healthy}}}
END
docker compose up -d --build --wait web >log 2>&1 || explain up
docker compose run --rm -T test 2>log || explain run
docker compose down -v -t 0 >log 2>&1 || explain down
docker ps -aq | wc -l
`

func (e *engine) runScenario(t testing.TB, name string) {
	t.Helper()
	want := fmt.Sprintf("page of %s\n0", name)
	if got := e.sh(t, t.TempDir(), "NAME="+name+"\n"+scenario); got != want {
		t.Errorf("scenario of %s answers:\n%s\nwanted:\n%s\nengine:\n%s", name, got, want, tail(e.output.String()))
	}
}
