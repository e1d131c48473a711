// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestExamplesOfTheDocumentation runs the examples of package gvx as they are, with
// images of the names that they use in an ordinary user's own store. Each prints what
// its comment says.
func TestExamplesOfTheDocumentation(t *testing.T) {
	testbed.NeedRoot(t, "to become another user")
	h := home.Get(t)
	for name, image := range map[string]string{"debian:12": "demo", "python:3.11-slim": "python", "docker:dind": "dind"} {
		h.MustRungv(t, "image", "import", "--progress", "none", "oci:"+h.Layout(t, image)+":latest", name)
	}
	program := h.Path("bin", "examples.test")
	build := exec.Command("go", "test", "-c", "-o", program, "./pkg/gvx")
	build.Dir = testbed.Tree()
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the examples: %v\n%s", err, output)
	}
	left := h.NothingLeft(t)
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	cmd := h.CommandAs(ctx, program, "-test.v", "-test.run=^Example", "-test.timeout="+suiteTimeout.String())
	cmd.Env = append(cmd.Env, "GVX_EXAMPLES=1", "GVX_RUNGV="+h.Binary)
	result := testbed.Run(t, cmd, nil)
	t.Log(result.Stdout)
	if result.Code != 0 || strings.Count(result.Stdout, "--- PASS: Example") < 9 {
		t.Errorf("the examples failed with exit code %d: %s", result.Code, result.Stderr)
	}
	left()
}
