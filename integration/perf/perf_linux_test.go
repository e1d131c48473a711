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

// needBench skips what is only worth its time for figures.
func needBench(t *testing.T) {
	t.Helper()
	if !testbed.Benchmarking() {
		t.Skip("a measurement: make bench")
	}
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
	n := testbed.Rounds(31)
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
	base := testbed.Median(contenders[0].took)
	rows := [][]string{{"", "median", "min", "max", "rungv is"}}
	for _, c := range contenders {
		rows = append(rows, []string{c.name, testbed.Milliseconds(testbed.Median(c.took)), testbed.Milliseconds(slices.Min(c.took)), testbed.Milliseconds(slices.Max(c.took)),
			fmt.Sprintf("%.2f of it", float64(base)/float64(testbed.Median(c.took)))})
	}
	testbed.Report(t, fmt.Sprintf("boot to exit of a guest that does nothing, %d rounds in turn (goals: 1.0 of runc, 0.25 of runsc)", n), rows...)
}
