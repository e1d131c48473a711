// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestStartWithClone measures what an ephemeral clone adds to a start, in turn
// (goal: at most 2 ms).
func TestStartWithClone(t *testing.T) {
	needBench(t)
	h := getHome(t)
	golden := h.Path("tmp", "golden.ext4")
	flags := []string{"run", "--rm", "--network", "none"}
	h.MustRungv(t, slices.Concat(flags, []string{"--mount", "type=volume,src=" + golden + ",dst=/v", image, "sh", "-c", "head -c 300000000 /dev/zero > /v/big"})...)
	defer os.Remove(golden)
	names := []string{"without", "with a clone"}
	more := [][]string{nil, {"--mount", "type=volume,src=" + golden + ",dst=/v,clone=ephemeral"}}
	took, used := make([][]time.Duration, 2), make([][]time.Duration, 2)
	n := testbed.Rounds(31)
	for range n {
		for i := range more {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			cmd := h.Command(ctx, slices.Concat(flags, more[i], []string{image, "true"})...)
			result := testbed.Run(t, cmd, nil)
			if cancel(); result.Code != 0 {
				t.Fatal(result)
			}
			took[i] = append(took[i], result.Took)
			used[i] = append(used[i], cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		}
	}
	rows := [][]string{{"", "median", "min", "processor time, median", "min"}}
	for i, name := range names {
		rows = append(rows, []string{name, testbed.Milliseconds(testbed.Median(took[i])), testbed.Milliseconds(slices.Min(took[i])), testbed.Milliseconds(testbed.Median(used[i])), testbed.Milliseconds(slices.Min(used[i]))})
	}
	rows = append(rows, []string{"a clone adds", testbed.Milliseconds(testbed.Median(took[1]) - testbed.Median(took[0])), testbed.Milliseconds(slices.Min(took[1]) - slices.Min(took[0])),
		testbed.Milliseconds(testbed.Median(used[1]) - testbed.Median(used[0])), testbed.Milliseconds(slices.Min(used[1]) - slices.Min(used[0]))})
	testbed.Report(t, fmt.Sprintf("boot to exit of `true` with and without a volume's clone, %d rounds in turn (goal: 2 ms)", n), rows...)
}
