// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

const (
	// idlePrivateGoal is what an idle guest may cost in private memory.
	idlePrivateGoal = 8 << 20
	// idlePrivateMost fails a test: twice the goal is a leak, not noise.
	idlePrivateMost = 2 * idlePrivateGoal
	// crowd is how many sandboxes have to start at once on any machine.
	crowd = 64
)

// running is a sandbox that has said "ready" and waits for the end of its input.
type running struct {
	cmd   *exec.Cmd
	stdin io.Closer
	// stderr is read when something went wrong.
	stderr *strings.Builder
}

// startIdle starts a sandbox whose guest runs the script, then says "ready" and
// waits.
func startIdle(t *testing.T, ctx context.Context, script string) (*running, error) {
	h := getHome(t)
	r := &running{stderr: new(strings.Builder)}
	r.cmd = h.Command(ctx, "run", "--rm", "-i", "--network", "none", image, "/bin/sh", "-c", script+"\necho ready; read line")
	r.cmd.Stderr = r.stderr
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	r.stdin = stdin
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if line != "ready\n" {
		waitErr := r.cmd.Wait()
		return nil, fmt.Errorf("guest said %q (%v); rungv: %v: %s", line, err, waitErr, r.stderr)
	}
	return r, nil
}

// stop lets the guest end.
func (r *running) stop() error {
	r.stdin.Close()
	// "read" at the end of input fails: the shell's code is 1.
	if err := r.cmd.Wait(); r.cmd.ProcessState.ExitCode() != 1 {
		return fmt.Errorf("%v: %s", err, r.stderr)
	}
	return nil
}

// memory is what processes hold.
type memory struct{ private, proportional int64 }

// rollup adds up the memory of a process and all its descendants.
func rollup(t *testing.T, pid int) memory {
	t.Helper()
	var sum memory
	for _, p := range testbed.AddressSpaces(append(descendants(t, pid), pid)) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p))
		if err != nil {
			continue // it ended
		}
		sum.private += smapsField(string(data), "Private_Dirty:")
		sum.proportional += smapsField(string(data), "Pss:")
	}
	return sum
}

// smapsField returns the sum of a field of smaps, in bytes.
func smapsField(text, field string) int64 {
	var sum int64
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			value, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				sum += value << 10
			}
		}
	}
	return sum
}

// descendants returns the processes below pid.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	var found []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tasks {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(data)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, child)
			found = append(found, descendants(t, child)...)
		}
	}
	return found
}

// idleAfter is when a guest that only waits counts as idle, here and with the
// peers: a sandbox gives back what its boot left one second after its start.
const idleAfter = 2 * time.Second

// TestIdleMemory measures what an idle guest costs: the sandbox with its stubs,
// and the launcher beside it, which waits for its end.
func TestIdleMemory(t *testing.T) {
	getHome(t) // before the clock runs
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := startIdle(t, ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(idleAfter)
	launcher := r.cmd.Process.Pid
	all := rollup(t, launcher)
	var sandbox memory
	for _, child := range descendants(t, launcher) {
		if parentOf(child) == launcher {
			below := rollup(t, child)
			sandbox.private += below.private
			sandbox.proportional += below.proportional
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	rows := [][]string{
		{"", "private", "proportional"},
		{"sandbox with its stubs", testbed.Megabytes(sandbox.private), testbed.Megabytes(sandbox.proportional)},
		{"launcher", testbed.Megabytes(all.private - sandbox.private), testbed.Megabytes(all.proportional - sandbox.proportional)},
	}
	if testbed.Benchmarking() {
		rows = append(rows, idlePeer(t, "runsc", "--network", "none", "--ignore-cgroups"), idlePeer(t, "runc"))
	}
	testbed.Report(t, fmt.Sprintf("memory of an idle guest, a shell that waits (goal: %s private)", testbed.Megabytes(idlePrivateGoal)), rows...)
	if sandbox.private > idlePrivateMost {
		t.Errorf("an idle sandbox holds %s privately, more than %s", testbed.Megabytes(sandbox.private), testbed.Megabytes(idlePrivateMost))
	}
}

// idlePeer measures the same of a peer: all below its foreground command.
func idlePeer(t *testing.T, name string, args ...string) []string {
	bundle := testbed.NewBundle(t, name, image)
	bundle.Args = append(bundle.Args, args...)
	bundle.Spec.Process.Cwd = "/"
	bundle.Spec.Process.Args = []string{"/bin/sh", "-c", "echo ready; read line"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := bundle.Command(ctx, t)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("%s: %q %v", name, line, err)
	}
	time.Sleep(idleAfter)
	sum := rollup(t, cmd.Process.Pid)
	stdin.Close()
	cmd.Wait()
	return []string{name + ", all processes", testbed.Megabytes(sum.private), testbed.Megabytes(sum.proportional)}
}

// parentOf returns a process' parent, 0 if it is gone.
func parentOf(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, err := strconv.Atoi(strings.TrimSpace(rest))
			if err == nil {
				return parent
			}
		}
	}
	return 0
}

// TestCrowd starts many sandboxes at once, has all of them up together, and
// lets them end: none may fail, nothing may be left.
func TestCrowd(t *testing.T) {
	left := getHome(t).NothingLeft(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var (
		group    sync.WaitGroup
		mu       sync.Mutex
		up       []*running
		failures []error
	)
	begin := time.Now()
	for range crowd {
		group.Go(func() {
			r, err := startIdle(t, ctx, "")
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, err)
				return
			}
			up = append(up, r)
		})
	}
	group.Wait()
	started := time.Since(begin)
	var sum memory
	for _, r := range up {
		one := rollup(t, r.cmd.Process.Pid)
		sum.private += one.private
		sum.proportional += one.proportional
	}
	begin = time.Now()
	for _, r := range up {
		group.Go(func() {
			if err := r.stop(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, err)
			}
		})
	}
	group.Wait()
	ended := time.Since(begin)
	for i, err := range failures {
		if i == 3 {
			t.Errorf("and %d more", len(failures)-i)
			break
		}
		t.Errorf("of %d sandboxes started at once: %v", crowd, err)
	}
	each := int64(max(len(up), 1))
	testbed.Report(t, fmt.Sprintf("%d sandboxes at once", crowd),
		[]string{"", "all up after", "all gone after", "failed", "private each", "proportional each"},
		[]string{"rungv with its launchers", testbed.Milliseconds(started), testbed.Milliseconds(ended), strconv.Itoa(len(failures)), testbed.Megabytes(sum.private / each), testbed.Megabytes(sum.proportional / each)})
	left()
}

// TestPageCacheShared has two sandboxes read the same files of one image, and
// looks at how the host maps them: the layer's own pages, shared, none private
// to a sandbox.
func TestPageCacheShared(t *testing.T) {
	getHome(t) // before the clock runs
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Mapped and read by guest code: the pages are in its address space.
	const script = `python3 -c '
import mmap, time
f = open("/usr/bin/python3")
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
n = sum(m[i] for i in range(0, len(m), 4096))
print(len(m), flush=True)
time.sleep(1000)' > /tmp/size &
while ! [ -s /tmp/size ]; do sleep 0.02; done`
	var sandboxes []*running
	for range 2 {
		r, err := startIdle(t, ctx, script)
		if err != nil {
			t.Fatal(err)
		}
		sandboxes = append(sandboxes, r)
	}
	rows := [][]string{{"", "resident", "proportional", "shared", "private clean", "private dirty"}}
	for i, r := range sandboxes {
		// The stub that runs the guest's Python has the most of the layer.
		var most string
		for _, pid := range descendants(t, r.cmd.Process.Pid) {
			if layer := layerMappings(pid); smapsField(layer, "Rss:") > smapsField(most, "Rss:") {
				most = layer
			}
		}
		resident, shared, dirty := smapsField(most, "Rss:"), smapsField(most, "Shared_Clean:"), smapsField(most, "Private_Dirty:")
		rows = append(rows, []string{fmt.Sprintf("sandbox %d", i+1), testbed.Megabytes(resident), testbed.Megabytes(smapsField(most, "Pss:")), testbed.Megabytes(shared), testbed.Megabytes(smapsField(most, "Private_Clean:")), testbed.Megabytes(dirty)})
		if resident < 4<<20 {
			t.Errorf("sandbox %d maps only %s of the image's layers: guests do not run from the page cache", i+1, testbed.Megabytes(resident))
		}
		if dirty != 0 || shared < resident/2 {
			t.Errorf("sandbox %d: of %s, %s are shared and %s are its own copies", i+1, testbed.Megabytes(resident), testbed.Megabytes(shared), testbed.Megabytes(dirty))
		}
	}
	for _, r := range sandboxes {
		r.stdin.Close()
	}
	for _, r := range sandboxes {
		r.cmd.Wait()
	}
	testbed.Report(t, "two sandboxes of one image: pages of its layers in the guest process that mapped a 6 MB file", rows...)
}

// layerMappings returns the part of a process' smaps that is about layers of the
// image store.
func layerMappings(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return ""
	}
	var (
		part   strings.Builder
		inside bool
	)
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) >= 5 && !strings.HasSuffix(fields[0], ":") {
			inside = strings.Contains(line, ".erofs")
		}
		if inside {
			part.WriteString(line)
		}
	}
	return part.String()
}
