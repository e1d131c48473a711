// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// podMemoryMost bounds the memory of an idle pod with two containers: the shim, the
// sandbox and what serves files, pages that they share counted in parts.
const podMemoryMost = 60 << 20

// memorySettles is how long what starting took may take to be given back.
const memorySettles = 4 * time.Second

// TestPodMemory measures it, with a pause container and without.
func TestPodMemory(t *testing.T) {
	c := newSandboxer(t)
	c.CRIPause(t, "erofs")
	image := c.CRIImage(t, "erofs", "demo")
	for _, handler := range []string{"gvx", sandboxHandler} {
		t.Run(handler, func(t *testing.T) { podMemory(t, c, handler, image) })
	}
}

func podMemory(t *testing.T, c *testbed.Containerd, handler, image string) {
	t.Helper()
	p := runPod(t, c, handler, "pod", nil)
	for _, name := range []string{"one", "two"} {
		p.run(image, name, nil, "sleep", "1000")
	}
	time.Sleep(memorySettles)
	total, parts := memoryOf(t, c)
	t.Logf("%d MiB: %s", total>>20, strings.Join(parts, ", "))
	if total > podMemoryMost {
		t.Errorf("a pod of two idle containers takes %d MiB, more than %d", total>>20, podMemoryMost>>20)
	}
	p.remove()
	nothingLeft(t, c)
}

// memoryOf is what all processes of pods take, pages that several share counted in parts,
// and what each does.
func memoryOf(t *testing.T, c *testbed.Containerd) (total int64, parts []string) {
	t.Helper()
	processes := c.Processes(t)
	for _, pid := range testbed.AddressSpaces(slices.Sorted(maps.Keys(processes))) {
		n := proportionalBytes(t, pid)
		total += n
		name, _, _ := strings.Cut(processes[pid], " ")
		parts = append(parts, fmt.Sprintf("%s %d KiB", name, n>>10))
	}
	return total, parts
}

// proportionalBytes is a process' share of the memory it uses.
func proportionalBytes(t *testing.T, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // gone, or a stub without memory of its own
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Pss:" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	return 0
}
