// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/integration/testbed"
)

// What is run where: every module for the nightly run, a named part in CI, and
// what differs from runc with a reason each.
var (
	//go:embed testdata/python_ci.txt
	pythonCI string
	//go:embed testdata/python_excluded.txt
	pythonExcluded string
	//go:embed testdata/python_known.txt
	pythonKnown string
)

const (
	// pythonUser is who runs the suite, as CPython's own machines do: root
	// would skip what is about permissions.
	pythonUser = "tester"
	pythonUID  = 1000
	pythonHome = "/home/tester"
	// pythonTestSeconds bounds one module, by the suite's own means.
	pythonTestSeconds = 600
	// pythonCITimeout and pythonNightlyTimeout bound one whole run.
	pythonCITimeout      = 25 * time.Minute
	pythonNightlyTimeout = 100 * time.Minute
	// pythonFiles are the limits on open files, here and there: many tests look
	// at every number that a descriptor may have, and a million of them in each
	// of hundreds of processes takes an hour.
	pythonFiles, pythonFilesHard = 1024, 4096
	// pythonIgnored are tests that run nowhere. The UDP-Lite ones take their
	// whole module down where the kernel has no UDP-Lite, as gVisor has not.
	pythonIgnored = "*UDPLITE*"
	// minNightlyModules is what was promised: a broad selection.
	minNightlyModules = 150
)

// pythonEnv is the whole environment of the suite, here and there.
var pythonEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + pythonHome, "LANG=C.UTF-8"}

// TestPython runs CPython's test suite in a sandbox and under runc, both as the
// same ordinary guest user over the same image, and looks at every test that
// ends worse in the sandbox.
func TestPython(t *testing.T) {
	known, err := parseKnown(pythonKnown)
	if err != nil {
		t.Fatalf("list of known differences: %v", err)
	}
	selection, timeout := words(pythonCI), pythonCITimeout
	if testbed.Nightly() {
		selection, timeout = append([]string{"-x"}, words(pythonExcluded)...), pythonNightlyTimeout
	}
	script := pythonScript(selection)

	baseline := runSuite(t, "runc", runcPython(t, timeout), script)
	here := runSuite(t, "rungv", rungvPython(t, timeout), script)
	t.Logf("runc:  modules %s; tests %s", count(baseline.modules), count(baseline.tests))
	t.Logf("rungv: modules %s; tests %s", count(here.modules), count(here.tests))
	if testbed.Nightly() && len(here.modules) < minNightlyModules {
		t.Errorf("only %d modules ran, %d were promised", len(here.modules), minNightlyModules)
	}

	differences := compare(here, baseline)
	unknown, stale := judge(differences, known, here)
	if suspects := modulesOf(unknown, stale); len(suspects) > 0 {
		// Tests that look at a clock fail now and then on a busy machine, on
		// either side: what is blamed on the sandbox must happen twice there.
		t.Logf("once more, alone: %s", strings.Join(suspects, " "))
		again := runSuite(t, "rungv", rungvPython(t, timeout), pythonScript(suspects))
		unknownAgain, staleAgain := judge(compare(again, baseline.only(again)), known, again)
		unknown, stale = both(unknown, unknownAgain), both(stale, staleAgain)
	}
	for _, d := range unknown {
		t.Errorf("%s: %s in the sandbox, %s under runc, and not in testdata/python_known.txt", d.id, d.here, d.baseline)
	}
	for _, pattern := range stale {
		t.Errorf("%s is in testdata/python_known.txt, ran, and is no difference any more: take it off the list", pattern)
	}
	if testbed.Nightly() {
		recordPython(t, here, baseline, differences, known)
	}
}

// pythonScript runs the selected modules and prints the JUnit file.
func pythonScript(selection []string) string {
	return fmt.Sprintf(`cd %s
code=0
python3 -m test -j2 -u network --timeout %d -i '%s' --junit-xml /tmp/junit.xml %s >&2 || code=$?
cat /tmp/junit.xml
exit $code
`, pythonHome, pythonTestSeconds, pythonIgnored, strings.Join(selection, " "))
}

// suiteCommand is one way to run the suite's script, which comes by stdin.
type suiteCommand struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
}

// rungvPython makes the command that runs the suite in a sandbox.
func rungvPython(t *testing.T, timeout time.Duration) suiteCommand {
	h := home.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	args := []string{"run", "--rm", "-i", "--network", "none", "--hostname", "guest", "-u", pythonUser, "-w", pythonHome,
		"--ulimit", fmt.Sprintf("nofile=%d:%d", pythonFiles, pythonFilesHard)}
	for _, variable := range pythonEnv {
		args = append(args, "-e", variable)
	}
	args = append(args, h.Image(t, "python"), "sh", "-s")
	return suiteCommand{h.Command(ctx, args...), cancel}
}

// runcPython makes the command that runs the suite under runc.
func runcPython(t *testing.T, timeout time.Duration) suiteCommand {
	bundle := testbed.NewBundle(t, "runc", "python")
	process := bundle.Spec.Process
	process.Args = []string{"sh", "-s"}
	process.User = specs.User{UID: pythonUID, GID: pythonUID}
	process.Cwd = pythonHome
	process.Env = pythonEnv
	process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: pythonFiles, Hard: pythonFilesHard}}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	return suiteCommand{bundle.Command(ctx, t), cancel}
}

// runSuite runs the script and reads what it gave.
func runSuite(t *testing.T, name string, run suiteCommand, script string) *suiteResult {
	t.Helper()
	defer run.cancel()
	var junit, log bytes.Buffer
	run.cmd.Stdin = strings.NewReader(script)
	run.cmd.Stdout = &junit
	run.cmd.Stderr = io.MultiWriter(&log, progress(name+": "))
	start := time.Now()
	// The suite's exit code says that something failed; what is in the files.
	err := run.cmd.Run()
	result, parseErr := parseSuite(log.String(), junit.String())
	if parseErr != nil {
		t.Fatalf("%s: %v (the run ended with: %v)", name, parseErr, err)
	}
	t.Logf("%s took %v (%v)", name, time.Since(start).Round(time.Second), err)
	return result
}

// recordPython writes the nightly run's outcome to RESULTS.md.
func recordPython(t *testing.T, here, baseline *suiteResult, differences []difference, known []knownDifference) {
	var text strings.Builder
	fmt.Fprintf(&text, "| | modules | tests |\n|---|---|---|\n")
	fmt.Fprintf(&text, "| runc | %s | %s |\n", count(baseline.modules), count(baseline.tests))
	fmt.Fprintf(&text, "| rungv | %s | %s |\n\n", count(here.modules), count(here.tests))
	fmt.Fprintf(&text, "Worse than under runc: %d.\n\n", len(differences))
	for _, d := range differences {
		reason := "**not explained**"
		i := slices.IndexFunc(known, func(k knownDifference) bool { ok, _ := path.Match(k.pattern, d.id); return ok })
		if i >= 0 {
			reason = known[i].reason
		}
		fmt.Fprintf(&text, "- `%s`: %s there, %s here. %s\n", d.id, d.baseline, d.here, reason)
	}
	testbed.Record(t, "CPython's test suite", text.String())
}

// words splits a list file into its words, without comments.
func words(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		list = append(list, strings.Fields(line)...)
	}
	return list
}
