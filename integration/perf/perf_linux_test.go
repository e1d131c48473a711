// SPDX-License-Identifier: Apache-2.0

// Package perf measures rungv beside its peers, in one run, in turn, on the
// machine at hand: `make bench`. Figures of different runs or machines say
// little, so nothing here asserts a time; what does not depend on the clock
// (memory held, pages shared, starts that fail) is asserted in every test run.
package perf

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest of all measurements.
const image = "demo"

// home is shared by the tests of this package.
var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// getHome returns the package's home with the image imported.
func getHome(t *testing.T) *testbed.Home {
	t.Helper()
	h := home.Get(t)
	h.Image(t, image)
	return h
}

// benchmarking says whether figures are wanted, and so enough rounds.
func benchmarking() bool { return os.Getenv("GVX_BENCH") != "" }

// rounds is how often something is measured: the given number for figures, a
// few times else, to see that it works.
func rounds(forFigures int) int {
	if benchmarking() {
		return forFigures
	}
	return 3
}

// needBench skips what is only worth its time for figures.
func needBench(t *testing.T) {
	t.Helper()
	if !benchmarking() {
		t.Skip("a measurement: make bench")
	}
}

// report prints a table to standard output, where `make bench` shows it.
func report(t *testing.T, title string, rows ...[]string) {
	t.Helper()
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s\n", title)
	for _, row := range rows {
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(&text, "  %-*s", widths[i], cell)
			} else {
				fmt.Fprintf(&text, "  %*s", widths[i], cell)
			}
		}
		text.WriteByte('\n')
	}
	t.Log(text.String())
}

// median returns the middle of the durations.
func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// contender is a runtime in a measurement of starts.
type contender struct {
	name string
	run  func(t *testing.T, script string) testbed.Result
	took []time.Duration
}

// peer makes a contender of runc or runsc.
func peer(t *testing.T, name string, args ...string) *contender {
	bundle := testbed.NewBundle(t, name, image)
	bundle.Args = append(bundle.Args, args...)
	bundle.Spec.Process.Cwd = "/"
	return &contender{name: name, run: func(t *testing.T, script string) testbed.Result {
		bundle.Spec.Process.Args = []string{"/bin/sh", "-c", script}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return testbed.Run(t, bundle.Command(ctx, t), nil)
	}}
}

// ours makes the contender that this is about.
func ours(t *testing.T) *contender {
	h := getHome(t)
	return &contender{name: "rungv", run: func(t *testing.T, script string) testbed.Result {
		return h.Rungv(t, nil, "run", "--rm", "--network", "none", image, "/bin/sh", "-c", script)
	}}
}

// TestBoot measures from the start of the runtime's process to its end, with a
// guest that does nothing, the runtimes in turn.
func TestBoot(t *testing.T) {
	contenders := []*contender{ours(t), peer(t, "runc"), peer(t, "runsc", "--network", "none", "--ignore-cgroups")}
	n := rounds(31)
	for round := range n + 1 {
		for _, c := range contenders {
			result := c.run(t, "exit 0")
			if result.Code != 0 {
				t.Fatalf("%s: %v", c.name, result)
			}
			if round > 0 { // the first warms caches
				c.took = append(c.took, result.Took)
			}
		}
	}
	base := median(contenders[0].took)
	rows := [][]string{{"", "median", "min", "max", "rungv is"}}
	for _, c := range contenders {
		rows = append(rows, []string{c.name, milliseconds(median(c.took)), milliseconds(slices.Min(c.took)), milliseconds(slices.Max(c.took)),
			fmt.Sprintf("%.2f of it", float64(base)/float64(median(c.took)))})
	}
	report(t, fmt.Sprintf("boot to exit of a guest that does nothing, %d rounds in turn (goals: 1.0 of runc, 0.25 of runsc)", n), rows...)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
