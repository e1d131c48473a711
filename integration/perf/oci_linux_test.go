// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// bundleRuntime is a runtime with a bundle, and what was measured of it.
type bundleRuntime struct {
	name   string
	bundle *testbed.Bundle

	life, exec []time.Duration
}

func (r *bundleRuntime) call(args ...string) error {
	cmd := exec.Command(r.bundle.Runtime, append(r.bundle.Args[:len(r.bundle.Args):len(r.bundle.Args)], args...)...)
	// Not a pipe: the container of a create would hold it open.
	said, err := os.CreateTemp(r.bundle.Dir, "said-")
	if err != nil {
		return err
	}
	defer os.Remove(said.Name())
	defer said.Close()
	cmd.Stderr = said
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("%s %q: %w: %s", r.name, args, err, text)
	}
	return nil
}

// TestBundleLatency measures the calls that engines make: the whole life of a
// container of a bundle, and an exec in one that runs, beside runc and runsc in the
// same run. It demands nothing.
func TestBundleLatency(t *testing.T) {
	testbed.NeedRoot(t, "OCI bundles with overlays")
	runtimes := []*bundleRuntime{{name: "rungv"}, {name: "runc"}, {name: "runsc"}}
	for _, r := range runtimes {
		program := r.name
		if program == "rungv" {
			program = "runc"
		}
		r.bundle = testbed.NewBundle(t, program, "demo")
		if r.name == "rungv" {
			r.bundle.Runtime = getHome(t).Binary
		}
		write := func(args ...string) {
			r.bundle.Spec.Process.Args = args
			doc, err := json.Marshal(r.bundle.Spec)
			if err == nil {
				err = os.WriteFile(filepath.Join(r.bundle.Dir, "config.json"), doc, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		write("sleep", "1000")
		for _, call := range [][]string{{"create", "--bundle", r.bundle.Dir, r.stays()}, {"start", r.stays()}} {
			if err := r.call(call...); err != nil {
				t.Fatal(err)
			}
		}
		defer func() { _ = r.call("delete", "--force", r.stays()) }()
	}
	for n := range testbed.Rounds(21) {
		for _, r := range runtimes {
			id := fmt.Sprint(r.name, "-life-", n)
			begun := time.Now()
			for _, call := range [][]string{{"create", "--bundle", r.bundle.Dir, id}, {"start", id}, {"delete", "--force", id}} {
				if err := r.call(call...); err != nil {
					t.Fatal(err)
				}
			}
			r.life = append(r.life, time.Since(begun))
			begun = time.Now()
			if err := r.call("exec", r.stays(), "true"); err != nil {
				t.Fatal(err)
			}
			r.exec = append(r.exec, time.Since(begun))
		}
	}
	rows := [][]string{{"", "create, start, delete", "ratio", "exec", "ratio"}}
	for _, r := range runtimes {
		life, run := testbed.Median(r.life), testbed.Median(r.exec)
		rows = append(rows, []string{
			r.name, testbed.Milliseconds(life), fmt.Sprintf("%.2f", float64(testbed.Median(runtimes[0].life))/float64(life)),
			testbed.Milliseconds(run), fmt.Sprintf("%.2f", float64(testbed.Median(runtimes[0].exec))/float64(run)),
		})
	}
	testbed.Report(t, "Calls of an engine: medians, and rungv as a multiple of each", rows...)
}

// stays is the container that runs all the time. Cgroups are named after ids.
func (r *bundleRuntime) stays() string { return r.name + "-stays" }
