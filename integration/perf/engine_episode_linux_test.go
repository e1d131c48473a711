// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

const (
	// idleEngineGoal is what an episode with an idle engine may hold of memory
	// that is neither shared nor reclaimable.
	idleEngineGoal = 45 << 20
	// idleEngineMost fails a test: twice the goal is a leak, not noise.
	idleEngineMost = 2 * idleEngineGoal
	// busyGuests is how many processes an engine's container has when it is
	// killed with its episode.
	busyGuests = 70
)

// goldenEngine makes a volume with the package's image in an engine.
func goldenEngine(t *testing.T, client *engineClient) string {
	t.Helper()
	h := getHome(t)
	h.Image(t, engineImage)
	archive, volume := engineMaterial(t, t.TempDir()), h.Path("data", "golden.ext4")
	e := beginOurs(t, h, "seed", "src="+volume+",size=16g")
	e.ready(t)
	e.script(t, client, t.TempDir(), "docker load -q -i "+archive+"; docker run --rm demo true")
	if err := e.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-e.ended
	t.Cleanup(func() { os.Remove(volume) })
	return volume
}

// family is a launcher with all processes below it, by descriptors that say when
// they are gone.
type family []unix.PollFd

func familyOf(t *testing.T, launcher int) family {
	t.Helper()
	var f family
	for _, pid := range append(descendants(t, launcher), launcher) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // It ended.
		}
		f = append(f, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return f
}

// await waits until all of it is gone.
func (f family) await(t *testing.T) {
	t.Helper()
	for _, one := range f {
		for {
			_, err := unix.Poll([]unix.PollFd{one}, int(time.Minute.Milliseconds()))
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		unix.Close(int(one.Fd))
	}
}

// resets is how many episodes are measured: $GVX_RESETS, or the number given.
func resets(t *testing.T, number int) int {
	t.Helper()
	given := os.Getenv("GVX_RESETS")
	if given == "" {
		return number
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("GVX_RESETS=%q is no number of episodes", given)
	}
	return n
}

// TestEpisodes measures what a trainer waits for: a reset, from the start of
// rungv until an engine on a clone of a golden volume answers `docker info`, and
// a close, from kill -9 of the launcher until its last process is gone.
func TestEpisodes(t *testing.T) {
	needBench(t)
	client := newEngineClient(t)
	golden := goldenEngine(t, client)
	h := getHome(t)
	episode := func(t *testing.T, prepare string) (reset, closed time.Duration, processes int) {
		began := time.Now()
		e := beginOurs(t, h, "episode", "clone=ephemeral,src="+golden, "-m", "4g", "--cpus", "2")
		e.ready(t)
		reset = time.Since(began)
		if prepare != "" {
			e.script(t, client, t.TempDir(), prepare)
		}
		time.Sleep(time.Second) // Idle.
		f := familyOf(t, e.cmd.Process.Pid)
		began = time.Now()
		if err := e.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		f.await(t)
		closed = time.Since(began)
		<-e.ended
		return reset, closed, len(f)
	}
	var opened, idle, busy []time.Duration
	var idleProcesses, busyProcesses int
	for range resets(t, 100) {
		t.Run("idle", func(t *testing.T) {
			reset, closed, n := episode(t, "")
			opened, idle, idleProcesses = append(opened, reset), append(idle, closed), n
		})
	}
	crowd := fmt.Sprintf(`docker run -d demo sh -c 'for i in $(seq %d); do sleep 1000 & done; touch /up; wait' >id
until docker exec $(cat id) test -e /up; do sleep 0.1; done`, busyGuests)
	for range min(20, resets(t, 100)) {
		t.Run("busy", func(t *testing.T) {
			_, closed, n := episode(t, crowd)
			busy, busyProcesses = append(busy, closed), n
		})
	}
	row := func(name string, list []time.Duration) []string {
		sorted := slices.Sorted(slices.Values(list))
		return []string{name, testbed.Milliseconds(sorted[len(sorted)/2]), testbed.Milliseconds(sorted[(len(sorted)-1)*99/100]), testbed.Milliseconds(sorted[0]), strconv.Itoa(len(sorted))}
	}
	testbed.Report(t, "episodes with a Docker engine (goals: close 10 ms when idle, 30 ms with 70 guest processes)",
		[]string{"", "p50", "p99", "min", "episodes"},
		row("reset, to docker info", opened),
		row(fmt.Sprintf("close, idle engine (%d host processes)", idleProcesses), idle),
		row(fmt.Sprintf("close, %d guest processes more (%d host processes)", busyGuests, busyProcesses), busy))
	forgetKilled(t, h)
}

// forgetKilled removes what killed launchers have left of their records.
func forgetKilled(t *testing.T, h *testbed.Home) {
	t.Helper()
	for id := range strings.FieldsSeq(h.MustRungv(t, "ps", "-aq")) {
		h.MustRungv(t, "rm", "--force", id)
	}
}

// held is memory of an episode that nobody else shares and that the host cannot
// take back.
type held struct{ guest, processes, tables int64 }

func (m held) sum() int64 { return m.guest + m.processes + m.tables }

// heldBy adds up what a launcher and all below it hold: the guest's memory file,
// anonymous memory, and what the host's kernel has for them in page tables.
func heldBy(t *testing.T, launcher int) held {
	t.Helper()
	var m held
	seen := map[uint64]bool{}
	for _, pid := range testbed.AddressSpaces(append(descendants(t, launcher), launcher)) {
		dir := fmt.Sprintf("/proc/%d", pid)
		rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		if err != nil {
			continue // It ended.
		}
		m.processes += smapsField(string(rollup), "Pss_Anon:")
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err == nil {
			m.tables += smapsField(string(status), "VmPTE:")
		}
		files, _ := filepath.Glob(filepath.Join(dir, "fd", "*"))
		for _, file := range files {
			var st unix.Stat_t
			name, err := os.Readlink(file)
			if err != nil || !strings.HasPrefix(name, "/memfd:") || unix.Stat(file, &st) != nil || seen[st.Ino] {
				continue
			}
			seen[st.Ino] = true
			m.guest += st.Blocks * 512
		}
	}
	return m
}

// TestIdleEngineMemory measures what an episode costs whose engine does nothing:
// soon after its start, and for figures when it has settled, too.
func TestIdleEngineMemory(t *testing.T) {
	h := getHome(t)
	h.Image(t, engineImage)
	volume := h.Path("data", "idle.ext4")
	t.Cleanup(func() { os.Remove(volume) })
	e := beginOurs(t, h, "idle", "src="+volume+",size=8g", "-m", "4g", "--cpus", "2")
	e.ready(t)
	rows := [][]string{{"", "guest's memory", "anonymous", "page tables", "sum"}}
	after := []time.Duration{5 * time.Second}
	if testbed.Benchmarking() {
		after = append(after, time.Minute, 3*time.Minute)
	}
	var m held
	ready := time.Now()
	for _, wait := range after {
		time.Sleep(time.Until(ready.Add(wait)))
		m = heldBy(t, e.cmd.Process.Pid)
		rows = append(rows, []string{fmt.Sprintf("after %v", wait), testbed.Megabytes(m.guest), testbed.Megabytes(m.processes), testbed.Megabytes(m.tables), testbed.Megabytes(m.sum())})
	}
	testbed.Report(t, fmt.Sprintf("memory of an episode with an idle Docker engine, not shared and not reclaimable (goal: %s)", testbed.Megabytes(idleEngineGoal)), rows...)
	if m.guest == 0 || m.processes == 0 {
		t.Errorf("nothing of the episode was seen: %+v", m)
	}
	if m.sum() > idleEngineMost {
		t.Errorf("an episode with an idle engine holds %s, more than %s", testbed.Megabytes(m.sum()), testbed.Megabytes(idleEngineMost))
	}
	if err := e.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-e.ended
}
