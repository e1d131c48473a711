// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

const (
	// fileTimeout ends a file of runc's suite that hangs: the longest takes minutes.
	fileTimeout = 20 * time.Minute
	// stuckAfter is how long a test may say nothing. One that wants an error and
	// gets a shell instead ends by the end of its input.
	stuckAfter = 45 * time.Second
	filePoll   = 50 * time.Millisecond
)

// endOfInput is what is typed on a terminal to end its input.
const endOfInput = "\x04"

// batsOften are the files that run whenever tests do, with rungv alone: those about
// processes, which take seconds. All run at night, with runc beside.
var batsOften = []string{"capabilities.bats", "create.bats", "exec.bats", "pidfd-socket.bats", "state.bats", "tty.bats"}

// batsExcluded are the files of runc's suite that say nothing of rungv.
var batsExcluded = map[string]string{
	"checkpoint.bats":            "there are no checkpoints",
	"debug.bats":                 "the lines of runc's own log",
	"help.bats":                  "the text of runc's own help",
	"version.bats":               "the text of runc's own version",
	"hooks_so.bats":              "a library that a hook adds to the host's cache",
	"idmap.bats":                 "mappings of mounts are refused",
	"memorypolicy.bats":          "memory policies are the host's",
	"mounts_sshfs.bats":          "an sshfs of the host",
	"netdev.bats":                "devices of the host's network are refused",
	"seccomp-notify.bats":        "SCMP_ACT_NOTIFY is refused",
	"seccomp-notify-compat.bats": "SCMP_ACT_NOTIFY is refused",
	"selinux.bats":               "labels of the host",
	"timens.bats":                "time namespaces are refused",
}

// verdict is what a test of the suite came to.
type verdict string

const (
	passed  verdict = "ok"
	failed  verdict = "not ok"
	skipped verdict = "skipped"
)

// TestRuncBats runs runc's own suite. Every test that fails has to be in
// testdata/runc_bats_known.txt with its reason, and every one that is there has to
// fail.
func TestRuncBats(t *testing.T) {
	testbed.NeedRoot(t, "runc's suite")
	suite := testbed.Need(t, "runc-tests")
	// What of Debian it uses is a shell and a C library.
	tree := filepath.Join(testbed.Need(t, "demo"), "rootfs.tar")
	mountOver(t, tree, filepath.Join(suite, "tests/integration/testdata", "debian-"+runtime.GOARCH+".tar.xz"))
	testbed.NeedCommand(t, "bats")
	files, names := batsFiles(t, suite), []string{"runc", "rungv"}
	if !wholeBats() && os.Getenv("GVX_CONFORMANCE") == "" {
		files, names = batsOften, names[1:]
	}
	known := readBatsKnown(t, filepath.Join("testdata", "runc_bats_known.txt"))
	home, err := testbed.NewHome()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := home.Remove(); err != nil {
			t.Error(err)
		}
	})
	binaries := map[string]string{"runc": testbed.Need(t, "runc"), "rungv": batsWrapper(t, home.Binary)}
	results := map[string]map[string]verdict{"runc": {}, "rungv": {}}
	table := "| | tests | " + strings.Join(names, ": passed, failed, skipped | ") + " |\n|---|---|" + strings.Repeat("---|", len(names)) + "\n"
	for _, file := range files {
		row := fmt.Sprintf("| %s ", file)
		for _, name := range names {
			begin := time.Now()
			r, says := runBats(t, suite, binaries[name], file)
			t.Logf("%s: %s in %v", name, file, time.Since(begin).Round(time.Second))
			if name == names[0] {
				row += fmt.Sprintf("| %d ", len(r))
			}
			row += "| " + tally(r) + " "
			for test, v := range r {
				key := file + ": " + test
				results[name][key] = v
				if name == "rungv" && v == failed && known[key] == "" && known["~"+key] == "" {
					t.Logf("%s:\n%s", key, says[test])
				}
			}
		}
		table += row + "|\n"
	}
	table += fmt.Sprintf("| all | %d ", len(results["rungv"]))
	for _, name := range names {
		table += "| " + tally(results[name]) + " "
	}
	table += "|\n"
	compareBats(t, known, results["runc"], results["rungv"])
	t.Logf("\n%s", table)
	if wholeBats() {
		testbed.Record(t, "runc's bats suite", table+"\nLeft out, and known to fail: `integration/conformance`, with reasons.")
	}
}

// wholeBats says whether all files run, with both runtimes.
func wholeBats() bool { return testbed.Nightly() && os.Getenv("GVX_CONFORMANCE") == "" }

// batsFiles lists the files to run: all, or what GVX_CONFORMANCE says.
func batsFiles(t *testing.T, suite string) []string {
	if only := os.Getenv("GVX_CONFORMANCE"); only != "" {
		return strings.Split(only, ",")
	}
	found, err := filepath.Glob(filepath.Join(suite, "tests", "integration", "*.bats"))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, path := range found {
		if batsExcluded[filepath.Base(path)] == "" {
			files = append(files, filepath.Base(path))
		}
	}
	if len(files)+len(batsExcluded) != len(found) || len(files) == 0 {
		t.Fatalf("of %d files, %d are to run and %d to leave out: the suite is another", len(found), len(files), len(batsExcluded))
	}
	return files
}

// mountOver shows a file in place of another, in the tests' own mount namespace.
func mountOver(t *testing.T, source, target string) {
	t.Helper()
	if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
		t.Fatalf("mount %s over %s: %v", source, target, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// batsWrapper is a program that tells rungv of the bundle, which the suite has in its
// working directory.
func batsWrapper(t *testing.T, binary string) string {
	script := filepath.Join(t.TempDir(), "rungv")
	text := `#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
args=() verb=''
case " $* " in *" --bundle"*|*" -b "*) verb=told ;; esac
for arg; do
	args+=("$arg")
	case $verb$arg in run|create) verb=$arg; args+=(--bundle .) ;; esac
done
exec ` + binary + ` "${args[@]}"
`
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// runBats runs a file of the suite with a runtime, in namespaces of its own and on a
// terminal, and returns what each test came to and said.
func runBats(t *testing.T, suite, binary, file string) (map[string]verdict, map[string]string) {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "gvx-bats-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	// The root of a user namespace is nobody on the host, and has to find its bundle.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), fileTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts", "sh", "-c",
		`ip link set lo up; bats --tap "$0" > "$1/tap" 2>&1; touch "$1/done"`, file, dir)
	cmd.Dir = filepath.Join(suite, "tests", "integration")
	cmd.Env = append(os.Environ(), "RUNC="+binary, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	// runc takes the controlling terminal where its streams are none.
	terminal := testbed.StartTerminal(t, cmd, 24, 80)
	said, at := int64(0), time.Now()
	for ; ctx.Err() == nil; time.Sleep(filePoll) {
		if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
			break
		}
		if st, err := os.Stat(filepath.Join(dir, "tap")); err == nil && st.Size() != said {
			said, at = st.Size(), time.Now()
		} else if time.Since(at) > stuckAfter {
			terminal.Type(t, endOfInput)
			at = time.Now()
		}
	}
	tap, err := os.ReadFile(filepath.Join(dir, "tap"))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	results, says, planned := readTAP(tap)
	if len(results) != planned || planned == 0 {
		t.Errorf("%s with %s: %d tests of %d ran: %v\n%s", file, filepath.Base(binary), len(results), planned, ctx.Err(), tap)
	}
	return results, says
}

// readTAP reads results in the Test Anything Protocol: "1..N", "ok 1 name",
// "not ok 2 name", "ok 3 name # skip why", and "# text" below each.
func readTAP(tap []byte) (results map[string]verdict, says map[string]string, planned int) {
	results, says = map[string]verdict{}, map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(tap))
	lines.Buffer(nil, len(tap)+1)
	name := ""
	for lines.Scan() {
		line := lines.Text()
		v := passed
		rest, ok := strings.CutPrefix(line, "ok ")
		if !ok {
			v = failed
			rest, ok = strings.CutPrefix(line, "not ok ")
		}
		if !ok {
			if _, err := fmt.Sscanf(line, "1..%d", &planned); err != nil && strings.HasPrefix(line, "#") {
				says[name] += line + "\n"
			}
			continue
		}
		_, name, _ = strings.Cut(rest, " ")
		if before, _, found := strings.Cut(name, " # skip"); found {
			name, v = before, skipped
		}
		results[name] = v
	}
	return results, says, planned
}

// tally counts results.
func tally(results map[string]verdict) string {
	count := map[verdict]int{}
	for _, v := range results {
		count[v]++
	}
	return fmt.Sprintf("%d, %d, %d", count[passed], count[failed], count[skipped])
}

// compareBats holds the results against what is known; runc has none where it did not
// run.
func compareBats(t *testing.T, known map[string]string, runc, rungv map[string]verdict) {
	for _, key := range slices.Sorted(maps.Keys(rungv)) {
		reason, listed := known[key]
		may := false
		if !listed {
			reason, may = known["~"+key]
		}
		switch v := rungv[key]; {
		case v == failed && !listed && !may:
			t.Errorf("%s fails, with runc it is %s", key, runc[key])
		case v == failed && strings.HasPrefix(reason, "runc too") && len(runc) > 0 && runc[key] != failed:
			t.Errorf("%s fails, with runc it is %s: %q is no reason", key, runc[key], reason)
		case v != failed && listed:
			t.Errorf("%s is %s now: take it from the list of what is known (%s)", key, v, reason)
		}
	}
	for key := range known {
		if _, ok := rungv[strings.TrimPrefix(key, "~")]; !ok && wholeBats() {
			t.Errorf("the list of what is known has %q, which the suite has not", key)
		}
	}
}

// readBatsKnown reads a list of tests, "file: name", with their reasons below a
// line that ends in a colon: those that follow it, indented, fail for it. A name
// with "~" before it may also pass.
func readBatsKnown(t *testing.T, name string) map[string]string {
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	reason := ""
	for line := range strings.Lines(string(data)) {
		test, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "\t")
		switch {
		case test == "" || strings.HasPrefix(test, "#"):
		case !indented:
			reason = strings.TrimSuffix(test, ":")
		case reason == "" || !strings.Contains(test, ".bats: "):
			t.Fatalf("%s: %q has no reason, or names no test", name, test)
		default:
			known[test] = reason
		}
	}
	return known
}
