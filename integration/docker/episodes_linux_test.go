// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// count is how many episodes a test has: a few, or as many as are promised when
// it is a nightly one. The variable, if set, says another number, for a machine
// that is too small or a time that is too short.
func count(t *testing.T, few, promised int, variable string) int {
	t.Helper()
	if given := os.Getenv(variable); given != "" {
		n, err := strconv.Atoi(given)
		if err != nil || n < 1 {
			t.Fatalf("%s=%q is no number of episodes", variable, given)
		}
		return n
	}
	if testbed.Nightly() {
		return promised
	}
	return few
}

// startsPerProcessor is how many engines start at once on each processor.
const startsPerProcessor = 4

// TestEpisodesAtOnce runs many episodes from one golden volume at once, each with
// the scenario. All are up before the first does anything.
func TestEpisodesAtOnce(t *testing.T) {
	w := get(t)
	w.publishAll(t)
	episodes := make([]*engine, count(t, 3, 32, "GVX_EPISODES"))
	golden := goldenVolume(t, w, "busybox")
	left := w.home.NothingLeft(t)
	load := firstLine("/proc/loadavg")
	begin := time.Now()
	each := func(do func(i int)) time.Duration {
		begin := time.Now()
		var group sync.WaitGroup
		for i := range episodes {
			group.Go(func() { do(i) })
		}
		group.Wait()
		if t.Failed() {
			t.FailNow()
		}
		return time.Since(begin)
	}
	// An engine gives its containerd fifteen seconds to start, which a processor
	// that many of them share does not.
	starting := make(chan struct{}, startsPerProcessor*runtime.NumCPU())
	up := each(func(i int) {
		starting <- struct{}{}
		defer func() { <-starting }()
		episodes[i] = w.episode(t, golden, fmt.Sprintf("episode-%d", i))
		episodes[i].ready(t)
	})
	_, available := meminfo(t)
	worked := each(func(i int) { episodes[i].runScenario(t, fmt.Sprintf("episode-%d", i)) })
	closed := each(func(i int) { episodes[i].kill(t) })
	w.forget(t)
	left()
	text := fmt.Sprintf("%d episodes at once, each an engine of its own on a clone of one golden volume: all up after %v, with %d MB of the host's memory then still available; "+
		"each has built, composed, asked and removed after %v more; all killed within %v; %v in all. Load of the machine at the beginning: %s",
		len(episodes), up.Round(time.Millisecond), available>>20, worked.Round(time.Millisecond), closed.Round(time.Millisecond), time.Since(begin).Round(time.Second), load)
	t.Log(text)
	if testbed.Nightly() {
		testbed.Record(t, "Episodes with Docker engines at once", text)
	}
}

// TestResets starts, uses and kills episodes one after the other: nothing of them
// may pile up.
func TestResets(t *testing.T) {
	w := get(t)
	w.publishAll(t)
	rounds := count(t, 4, 500, "GVX_RESETS")
	golden := goldenVolume(t, w, "busybox")
	load := firstLine("/proc/loadavg")
	disk := usage(t, w)
	left := w.home.NothingLeft(t)
	var ready, closing []time.Duration
	var memory, files []int64
	for i := range rounds {
		begin := time.Now()
		e := w.episode(t, golden, "reset")
		e.ready(t)
		ready = append(ready, time.Since(begin))
		if got := e.docker(t, "run", "--rm", "busybox", "echo", "run", fmt.Sprint(i)); got != fmt.Sprintf("run %d\n", i) {
			t.Fatalf("reset %d: %q", i, got)
		}
		begin = time.Now()
		e.kill(t)
		closing = append(closing, time.Since(begin))
		unreclaimable, _ := meminfo(t)
		memory, files = append(memory, unreclaimable), append(files, openFiles(t))
	}
	w.forget(t)
	left()
	grown := usage(t, w) - disk
	const slack = 8 << 20
	if grown > slack {
		t.Errorf("the home holds %d bytes more after %d resets", grown, rounds)
	}
	text := fmt.Sprintf("%d resets one after the other, each used and killed: an engine answers after %s; its launcher is gone %s after the kill. "+
		"Left: %d KB of disk in the user's home; host's unreclaimable memory %+d KB, open files %+d (least of the last quarter against least of the first). Load of the machine at the beginning: %s",
		rounds, percentiles(ready), percentiles(closing), grown>>10, growth(memory)>>10, growth(files), load)
	t.Log(text)
	if rounds < enoughResets {
		return // What others do on the machine is more than what could be seen.
	}
	if grown := growth(memory); grown > int64(rounds)*memoryPerReset {
		t.Errorf("the host's unreclaimable memory grew by %d bytes in %d resets: %d", grown, rounds, memory)
	}
	if grown := growth(files); grown > int64(rounds)/4 {
		t.Errorf("%d more files are open on the host after %d resets: %d", grown, rounds, files)
	}
	testbed.Record(t, "Resets of episodes with Docker engines", text)
}

const (
	// enoughResets is how many show a growth, beside what else a machine does.
	enoughResets = 100
	// memoryPerReset is far below what one process that stays would hold, or
	// the page tables and sockets of one.
	memoryPerReset = 128 << 10
)

// growth compares the least of a series' last quarter with that of its first:
// what comes and goes meanwhile, of whoever, does not count.
func growth(series []int64) int64 {
	quarter := (len(series) + 3) / 4
	return slices.Min(series[len(series)-quarter:]) - slices.Min(series[:quarter])
}

// TestGrowthIsSeenBesideWhatComesAndGoes keeps growth from missing a leak.
func TestGrowthIsSeenBesideWhatComesAndGoes(t *testing.T) {
	noise := []int64{90, 0, 300, 5, 700, 0, 40, 8}
	var steady, leaking []int64
	for i := range 400 {
		steady = append(steady, 1000+noise[i%len(noise)])
		leaking = append(leaking, steady[i]+int64(i))
	}
	if got := growth(steady); got != 0 {
		t.Errorf("growth where there is none: %d", got)
	}
	if got := growth(leaking); got < 290 || got > 310 {
		t.Errorf("growth of 1 each in 400 is seen as %d over three quarters", got)
	}
}

// meminfo returns what the host holds in memory and cannot give back without
// swapping, and what is available.
func meminfo(t testing.TB) (unreclaimable, available int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "AnonPages", "Shmem", "SUnreclaim", "KernelStack", "PageTables":
			unreclaimable += n << 10
		case "MemAvailable":
			available = n << 10
		}
	}
	return unreclaimable, available
}

// openFiles is how many files are open on the whole host.
func openFiles(t testing.TB) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.Fields(firstLine("/proc/sys/fs/file-nr"))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func firstLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "?"
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// percentiles says how a list of times is spread.
func percentiles(times []time.Duration) string {
	sorted := slices.Sorted(slices.Values(times))
	at := func(p int) time.Duration { return sorted[(len(sorted)-1)*p/100].Round(100 * time.Microsecond) }
	return fmt.Sprintf("%v (p50), %v (p99), %v (most)", at(50), at(99), at(100))
}

// forget removes the records of containers whose launcher was killed by SIGKILL:
// a record and its sockets stay until somebody removes them. Nothing else may.
func (w *shared) forget(t testing.TB) {
	t.Helper()
	for _, id := range strings.Fields(w.home.MustRungv(t, "ps", "-aq")) {
		w.home.MustRungv(t, "rm", "--force", id)
	}
}

// usage is what the home's files take on disk.
func usage(t testing.TB, w *shared) int64 {
	t.Helper()
	var bytes int64
	err := filepath.Walk(w.home.Dir, func(path string, info os.FileInfo, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			bytes += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
