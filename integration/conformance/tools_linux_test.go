// SPDX-License-Identifier: Apache-2.0

// Package conformance runs other people's suites for OCI runtimes against rungv,
// and against runc in the same run: what differs has its reason in testdata.
//
// The suites are theirs, unchanged. All of it happens in namespaces of the tests'
// own (testbed.MainAlone).
package conformance

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.MainAlone(m, nil)) }

const (
	// programTimeout ends a program that hangs: the slowest takes some 20 s.
	programTimeout = 90 * time.Second
	// together is how many programs run at once. Most of them wait most of the
	// time.
	together = 6
	// cgroupPrograms use cgroups of fixed names: they run one after the other.
	cgroupPrograms = "linux_cgroups_"
)

// outcome is how a program of the suite ended. One that says nothing and ends well
// is all right: some speak up for failures only.
type outcome struct {
	passed, failed int
	// err is why the program itself failed, "" if it did not.
	err string
	// says are the lines of the failures.
	says []string
}

func (o *outcome) ok() bool { return o.failed == 0 && o.err == "" }

func (o *outcome) String() string {
	text := fmt.Sprintf("%d passed, %d failed", o.passed, o.failed)
	if o.err != "" {
		text += ", " + o.err
	}
	return text
}

// TestRuntimeTools runs the validation suite of runtime-tools. Every program that
// is not all right has to be in testdata/runtime_tools_known.txt with its reason,
// and every one that is there has to fail.
func TestRuntimeTools(t *testing.T) {
	testbed.NeedRoot(t, "the validation suite of runtime-tools")
	suite := testbed.Need(t, "runtime-tools")
	home, err := testbed.NewHome()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := home.Remove(); err != nil {
			t.Error(err)
		}
	})
	programs := programsOf(t, suite)
	if only := os.Getenv("GVX_CONFORMANCE"); only != "" {
		programs = strings.Split(only, ",")
	}
	known := testbed.KnownFailures(t, filepath.Join("testdata", "runtime_tools_known.txt"))
	results := make(map[string]map[string]*outcome)
	for _, runtime := range []string{"runc", "rungv"} {
		binary := home.Binary
		if runtime == "runc" {
			binary = testbed.Need(t, "runc")
		}
		script := wrapper(t, runtime, binary)
		results[runtime] = runSuite(t, suite, script, programs)
		// Some programs give a container a second for something: together with
		// others that may not be enough.
		for name, o := range results[runtime] {
			if !o.ok() && known[name] == "" {
				results[runtime][name] = runProgram(t, suite, script, name)
			}
		}
	}
	compare(t, known, results["runc"], results["rungv"])
}

// programsOf lists the programs of the suite.
func programsOf(t *testing.T, suite string) []string {
	entries, err := os.ReadDir(suite)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "runtimetest" && filepath.Ext(e.Name()) != ".gz" {
			names = append(names, e.Name())
		}
	}
	// Fewer would say that the suite was not built whole.
	const least = 58
	if len(names) < least {
		t.Fatalf("the suite has %d programs, want %d", len(names), least)
	}
	return names
}

// wrapper is a program that runs a runtime with a state of its own: the suite
// knows no flags.
func wrapper(t *testing.T, name, binary string) string {
	dir := t.TempDir()
	script := filepath.Join(dir, name)
	text := fmt.Sprintf("#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\nexec %s --root %s/state \"$@\"\n", binary, dir)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// runSuite runs programs and returns how each ended.
func runSuite(t *testing.T, suite, runtime string, programs []string) map[string]*outcome {
	results := make(map[string]*outcome, len(programs))
	var mu, cgroups sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, together)
	begin := time.Now()
	for _, name := range programs {
		running.Go(func() {
			if strings.HasPrefix(name, cgroupPrograms) {
				cgroups.Lock()
				defer cgroups.Unlock()
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			o := runProgram(t, suite, runtime, name)
			mu.Lock()
			results[name] = o
			mu.Unlock()
		})
	}
	running.Wait()
	t.Logf("%s: %d programs in %v", filepath.Base(runtime), len(programs), time.Since(begin).Round(time.Second))
	return results
}

// runProgram runs one program of the suite and reads what it says, in the Test
// Anything Protocol.
func runProgram(t *testing.T, suite, runtime, name string) *outcome {
	ctx, cancel := context.WithTimeout(t.Context(), programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(suite, name))
	cmd.Dir = suite
	cmd.Env = append(os.Environ(), "RUNTIME="+runtime, "TMPDIR="+t.TempDir())
	cmd.WaitDelay = time.Second
	// What a container without a mount namespace mounts goes with the program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	o := &outcome{}
	lines := bufio.NewScanner(strings.NewReader(string(output)))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "not ok"):
			o.failed++
			o.says = append(o.says, line)
		case strings.HasPrefix(line, "ok"):
			o.passed++
		}
	}
	if err != nil {
		o.err = err.Error()
		o.says = append(o.says, strings.TrimSpace(stderr.String()))
	}
	return o
}

// compare holds the outcomes against each other and against what is known.
func compare(t *testing.T, known map[string]string, runc, rungv map[string]*outcome) {
	passed := map[string]int{}
	names := make([]string, 0, len(rungv))
	for name := range rungv {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		mine, peer := rungv[name], runc[name]
		if mine.ok() {
			passed["rungv"]++
		}
		if peer.ok() {
			passed["runc"]++
		}
		reason, listed := known[name]
		may := false
		if !listed {
			reason, may = known["~"+name]
			listed = may
		}
		switch {
		case mine.ok() && may:
		case mine.ok() && listed:
			t.Errorf("%s is all right now: take it from the list of what is known (%s)", name, reason)
		case !mine.ok() && !listed:
			t.Errorf("%s: %v (runc: %v)\n\t%s", name, mine, peer, strings.Join(mine.says, "\n\t"))
		case !mine.ok():
			t.Logf("%s: %v (runc: %v): %s", name, mine, peer, reason)
		}
	}
	t.Logf("all right: rungv %d, runc %d of %d", passed["rungv"], passed["runc"], len(names))
	if passed["rungv"] <= passed["runc"] && len(names) > 1 {
		t.Errorf("rungv has %d programs all right, runc %d: it shall have more", passed["rungv"], passed["runc"])
	}
	for name := range known {
		if os.Getenv("GVX_CONFORMANCE") == "" && !slices.Contains(names, strings.TrimPrefix(name, "~")) {
			t.Errorf("the list of what is known has %q, which the suite has not", name)
		}
	}
}
