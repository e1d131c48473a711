// SPDX-License-Identifier: Apache-2.0

// Package sdk runs the SDK's suite, package suite, as an ordinary user: how
// programs use it. The suite runs as root too, by itself.
package sdk

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// suiteTimeout bounds the whole suite: it takes a minute.
const suiteTimeout = 15 * time.Minute

// TestSuiteAsOrdinaryUser builds the suite and runs it as somebody who owns
// nothing but a home folder.
func TestSuiteAsOrdinaryUser(t *testing.T) {
	testbed.NeedRoot(t, "to become another user")
	h := home.Get(t)
	layout := h.Layout(t, "demo")
	program := h.Path("bin", "suite.test")
	// With the race detector, which links C: the SDK is mostly goroutines.
	build := exec.Command("go", "test", "-c", "-race", "-o", program, "./integration/sdk/suite")
	build.Dir, build.Env = testbed.Tree(), append(os.Environ(), "CGO_ENABLED=1")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v\n%s", err, output)
	}
	work := h.Path("suite")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	h.Chown(t, work)
	reflinks := h.Path("reflinks")
	if err := os.Mkdir(reflinks, 0o755); err != nil {
		t.Fatal(err)
	}
	h.MountXFS(t, h.Path("reflinks.xfs"), reflinks, 512<<20)
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	cmd := h.CommandAs(ctx, program, "-test.v", "-test.timeout="+suiteTimeout.String())
	cmd.Env = append(cmd.Env, "GVX_SDK_BINARY="+h.Binary, "GVX_SDK_LAYOUT="+layout, "GVX_SDK_ROOT="+filepath.Join(work, "root"), "GVX_SDK_REFLINKS="+reflinks,
		"CI="+os.Getenv("CI"), "GVX_NIGHTLY="+os.Getenv("GVX_NIGHTLY"))
	result := testbed.Run(t, cmd, nil)
	t.Log(result.Stdout)
	if result.Code != 0 {
		t.Errorf("the suite failed with exit code %d: %s", result.Code, result.Stderr)
	}
}
