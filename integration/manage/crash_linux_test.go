// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSupervisorKilled: the sandbox ends with it, what was attached is told,
// and state says so.
func TestSupervisorKilled(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		name := b.box(t, "echo ready; sleep 1000")
		eventually(t, "it runs", func() bool { return b.must(t, "logs", name) == "ready" })
		supervisor, sandbox := b.pids(t, name)
		attached, _ := b.background(t, "attach", "--no-stdin", name)
		client, _ := b.background(t, "exec", name, "sleep", "1000")
		follower, _ := b.background(t, "logs", "-f", name)
		time.Sleep(300 * time.Millisecond)
		if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the sandbox is gone", func() bool { return syscall.Kill(sandbox, 0) != nil })
		for what, cmd := range map[string]interface{ Wait() error }{"attach": attached, "exec": client, "logs": follower} {
			ended := make(chan struct{})
			go func() {
				cmd.Wait()
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Errorf("%s waits for ever", what)
			}
		}
		if got := b.must(t, "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}} {{.State.Error}}", name); !strings.HasPrefix(got, "exited 137 launcher died") {
			t.Errorf("inspect: %s", got)
		}
		if got := b.must(t, "logs", name); got != "ready" {
			t.Errorf("its log: %q", got)
		}
		b.must(t, "rm", name)

		gone := b.box(t, "sleep 1000", "--rm")
		supervisor, _ = b.pids(t, gone)
		if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "nothing is listed", func() bool { return !strings.Contains(b.must(t, "ps", "-a", "--format", "{{.Names}}"), gone) })
		left()
	})
}

// TestSandboxKilledDetached: the supervisor says how it ended, and ends.
func TestSandboxKilledDetached(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		name := b.box(t, "sleep 1000")
		_, sandbox := b.pids(t, name)
		if err := syscall.Kill(sandbox, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if got := b.must(t, "wait", name); got != "137" {
			t.Errorf("wait: %s", got)
		}
		if got := b.must(t, "inspect", "-f", "{{.State.Error}}", name); !strings.Contains(got, "killed by signal 9") {
			t.Errorf("inspect: %s", got)
		}
		b.must(t, "rm", name)
		left()
	})
}

// TestKilledAtAnyMoment kills who starts a container, its supervisor or its
// sandbox at random moments of its life, and looks that nothing is left.
func TestKilledAtAnyMoment(t *testing.T) {
	rounds := 12
	if os.Getenv("GVX_NIGHTLY") != "" {
		rounds = 300
	}
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 1))
		for i := range rounds {
			name := fmt.Sprintf("any-%d", names.Add(1))
			caller, _ := b.background(t, "run", "-d", "--rm", "--name", name, "--network", "none", image, "sh", "-c", "echo x; sleep 1000")
			time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond)
			switch i % 3 {
			case 0:
				caller.Process.Kill()
			default:
				// Whoever runs for this container alone: its supervisor, or the
				// sandbox, if it has come that far.
				for _, process := range b.home.Processes(t) {
					var pid int
					fmt.Sscan(process, &pid)
					sandbox := strings.Contains(process, "gvx-sandbox")
					if i%3 == 1 && strings.Contains(process, " supervise") || i%3 == 2 && sandbox {
						syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			}
			caller.Wait()
			// It may run, if only its caller was killed and late enough.
			b.run(t, nil, "rm", "-f", name)
		}
		eventually(t, "nothing is listed", func() bool { return b.must(t, "ps", "-aq", "--filter", "name=any-") == "" })
		left()
	})
}

// TestManyDetached: many containers, made by concurrent callers and removed,
// leave no process, file or socket behind.
func TestManyDetached(t *testing.T) {
	count := 12
	if os.Getenv("GVX_NIGHTLY") != "" {
		count = 100
	}
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		var wg sync.WaitGroup
		slots := make(chan struct{}, 4)
		for i := range count {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				name := fmt.Sprintf("many-%d-%t", i, b.root)
				if r := b.run(t, nil, "run", "-d", "--name", name, image, "sh", "-c", "echo $HOSTNAME; sleep 1000"); r.Code != 0 {
					t.Error(r)
					return
				}
				if r := b.run(t, nil, "exec", name, "true"); r.Code != 0 {
					t.Error(r)
				}
			})
		}
		wg.Wait()
		if got := strings.Count(b.must(t, "ps", "-q", "--filter", "name=many-")+"\n", "\n"); got != count {
			t.Errorf("%d of %d run", got, count)
		}
		ids := strings.Fields(b.must(t, "ps", "-aq", "--filter", "name=many-"))
		for i := 0; i < len(ids); i += 10 {
			b.must(t, append([]string{"rm", "-f"}, ids[i:min(i+10, len(ids))]...)...)
		}
		left()
	})
}
