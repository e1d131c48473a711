// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// What may become of an episode of which somebody killed a process, or which its
// own program ended. A command whose process on the host is killed alone exits by
// that signal, or does not start if that comes early enough.
var expected = []string{"ok", "killed", "state", "canceled", "exit", "start"}

// rollout is a run of the example.
type rollout struct {
	h      *testbed.Home
	golden string
	count  int
	// outcomes counts, over all runs.
	outcomes map[string]int
	killed   int
}

// buildEpisodes builds the example with the race detector, which ends it with an
// exit code of its own.
func buildEpisodes(t *testing.T, h *testbed.Home) string {
	t.Helper()
	program := h.Path("bin", "episodes")
	build := exec.Command("go", "build", "-race", "-o", program, "./integration/sdk/episodes")
	build.Dir, build.Env = testbed.Tree(), append(os.Environ(), "CGO_ENABLED=1")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, output)
	}
	return program
}

// TestManyEpisodesUnderFire runs the example of a rollout worker while the worker
// itself and, at night, its sandboxes are killed at random: nothing is left, no episode sees
// another, and every failure has a type.
func TestManyEpisodesUnderFire(t *testing.T) {
	testbed.NeedRoot(t, "to become another user")
	r := &rollout{h: home.Get(t), count: 8, outcomes: map[string]int{}}
	rounds := 1
	if testbed.Nightly() {
		r.count, rounds = 64, 5
	}
	image := r.h.Image(t, "demo")
	program := buildEpisodes(t, r.h)
	r.golden = r.h.Path("data", "golden.ext4")
	r.h.MustRungv(t, "run", "--rm", "--network", "none", "--mount", "type=volume,src="+r.golden+",dst=/v,size=64m", image, "sh", "-c", "echo golden > /v/golden")
	begin := time.Now()
	for range rounds {
		if testbed.Nightly() {
			r.run(t, program, "sandboxes", true)
		}
		r.run(t, program, "caller", true)
		r.run(t, program, "", false)
	}
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(r.outcomes)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", r.outcomes[k], k))
	}
	text := fmt.Sprintf("`integration/sdk/episodes`, built with the race detector, as an ordinary user, %d episodes at once, %d times each: with processes of its sandboxes killed at random (%d),\n"+
		"with the program killed at a random moment, and left alone. Outcomes told: %s. No process, file or directory was left after any run, no episode saw another's\n"+
		"work, every failure had a type, and no goroutine or descriptor stayed in the program. %v in all.",
		r.count, rounds, r.killed, strings.Join(kinds, ", "), time.Since(begin).Round(time.Second))
	t.Log(text)
	if testbed.Nightly() && !t.Failed() {
		testbed.Record(t, "64 episodes under fire, by the Go SDK", text)
	}
}

// run is one run of the example, of which something is killed; chaos has it end
// some episodes itself.
func (r *rollout) run(t *testing.T, program, kill string, chaos bool) {
	t.Helper()
	left := r.h.NothingLeft(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := r.h.CommandAs(ctx, program, "-rungv", r.h.Binary, "-image", "demo", "-golden", r.golden, "-count", fmt.Sprint(r.count), fmt.Sprintf("-chaos=%v", chaos))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var group sync.WaitGroup
	switch kill {
	case "sandboxes":
		group.Go(func() { r.snipe(t, over) })
	case "caller":
		time.AfterFunc(time.Duration(500+rand.IntN(5000))*time.Millisecond, func() { _ = cmd.Process.Kill() })
	}
	err := cmd.Wait()
	close(over)
	group.Wait()
	if (err != nil) != (kill == "caller") && !(kill == "caller" && bytes.Count(out.Bytes(), []byte("\n")) == r.count) {
		t.Errorf("%s killed: %v: %s", kill, err, &errs)
	}
	r.judge(t, kill, &out)
	r.h.MustRungv(t, "ps", "-aq") // Sweeps records of launchers that were killed with their program.
	left()
}

// snipe kills processes of the sandboxes at random until the run is over.
func (r *rollout) snipe(t *testing.T, over chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(50+rand.IntN(400)) * time.Millisecond):
		}
		list := r.h.Processes(t)
		if len(list) == 0 {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(list[rand.IntN(len(list))], &pid); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			r.killed++
		}
	}
}

// judge reads what the example printed.
func (r *rollout) judge(t *testing.T, kill string, out *bytes.Buffer) {
	t.Helper()
	told := 0
	for lines := json.NewDecoder(out); lines.More(); told++ {
		var line struct {
			Episode         int
			Outcome, Detail string
		}
		if err := lines.Decode(&line); err != nil {
			if kill == "caller" {
				break // Cut off.
			}
			t.Fatal(err)
		}
		r.outcomes[line.Outcome]++
		if !slices.Contains(expected, line.Outcome) || kill == "" && line.Outcome != "ok" {
			t.Errorf("%q killed: episode %d: %s: %s", kill, line.Episode, line.Outcome, line.Detail)
		}
	}
	if kill != "caller" && told != r.count {
		t.Errorf("%q killed: %d episodes of %d told how they ended", kill, told, r.count)
	}
}
