// SPDX-License-Identifier: Apache-2.0

// Suites that other people wrote.

package ext4

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/integration/testbed"
)

// lockTests are about a server that keeps file locks itself. Here the kernel
// does, as for every local file system, and the library knows of none.
var lockTests = []string{"FcntlFlockLocksFile", "FcntlFlockSetLk"}

// TestPosixtest runs go-fuse's own suite for file systems.
func TestPosixtest(t *testing.T) {
	m := serve(t, filepath.Join(scratch(t), "v.ext4"), 1<<30)
	for name, test := range posixtest.All {
		if slices.Contains(lockTests, name) {
			continue
		}
		dir := filepath.Join(m.dir, name)
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { test(t, dir) })
	}
	m.finish()
}

// stress runs fsstress with one seed over a mount, for so many operations of
// each process.
func stress(t *testing.T, dir string, seed, operations int) *exec.Cmd {
	t.Helper()
	work := filepath.Join(dir, "stress")
	if err := os.MkdirAll(work, 0o777); err != nil {
		t.Fatal(err)
	}
	return exec.Command(testbed.Need(t, "fsstress"), "-d", work, "-s", fmt.Sprint(seed), "-n", fmt.Sprint(operations), "-p", "4")
}

// amount is how much of something the nightly run does, and the short one.
func amount(nightly, short int) int {
	if testbed.Nightly() {
		return nightly
	}
	return short
}

// TestStress runs fsstress over volumes of several kinds.
func TestStress(t *testing.T) {
	kinds := map[string][]string{
		"ours":     nil,
		"defaults": {},
		"small":    {"-b", "1024", "-I", "128", "-O", "^metadata_csum,^64bit,^dir_index"},
		"orphans":  {"-O", "orphan_file"},
	}
	for kind, options := range kinds {
		t.Run(kind, func(t *testing.T) {
			volume := filepath.Join(scratch(t), "v.ext4")
			size := int64(1 << 30)
			if options != nil {
				makeVolume(t, volume, size, options...)
				size = 0
			}
			for seed := range amount(10, 1) {
				m := serve(t, volume, size)
				size = 0
				if out, err := stress(t, m.dir, seed+1, amount(20000, 1500)).CombinedOutput(); err != nil {
					t.Fatalf("fsstress, seed %d: %v\n%s", seed+1, err, clip(string(out)))
				}
				m.finish()
			}
		})
	}
}

// TestStressKilled kills the server under fsstress. The volume must then be
// mended by us and by e2fsck alike.
func TestStressKilled(t *testing.T) {
	volume := filepath.Join(scratch(t), "v.ext4")
	size, kept := int64(1<<30), 0
	for round := range amount(40, 4) {
		m := serve(t, volume, size)
		size = 0
		run := stress(t, m.dir, round+1, 1<<30)
		run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(200+round*370%1500) * time.Millisecond)
		m.kill()
		syscall.Kill(-run.Process.Pid, syscall.SIGKILL) // its workers too
		run.Wait()
		copied := volume + ".copy"
		if out, err := exec.Command("cp", "--sparse=always", volume, copied).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		if out, err := exec.Command("e2fsck", "-fp", copied).CombinedOutput(); err != nil && run.ProcessState != nil {
			if code := exitCode(err); code > 1 { // 1: mended the journal and orphans
				t.Fatalf("round %d: e2fsck -p finds more to mend than a journal: %v\n%s", round, err, clip(string(out)))
			}
		}
		check(t, copied)
		serve(t, volume, 0).finish()
		// The stress's folder is rebuilt each round: old trees only fill up.
		fs, err := ext4lite.OpenFile(volume, ext4lite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		names, err := names(fs, "stress")
		kept += names
		if err == nil {
			var root *ext4lite.Inode
			if root, err = fs.Root(); err == nil {
				err = root.RemoveAll("stress")
				root.Release()
			}
		}
		if e := fs.Close(); err == nil {
			err = e
		}
		if err != nil {
			t.Fatal(err)
		}
		check(t, volume)
	}
	if kept == 0 {
		t.Error("nothing of the stress has reached any volume")
	}
}

// names counts those in a folder.
func names(fs *ext4lite.FS, path string) (int, error) {
	dir, err := fs.Walk(path)
	if errors.Is(err, ext4lite.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer dir.Release()
	n := -2 // "." and ".."
	err = dir.ReadDir(0, func(ext4lite.DirEntry) bool { n++; return true })
	return n, err
}

func exitCode(err error) int {
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return -1
}

// TestPjdfstest runs pjdfstest whole, if GVX_PJDFSTEST names a folder in which
// it was built. No package of Debian has it.
func TestPjdfstest(t *testing.T) {
	suite := os.Getenv("GVX_PJDFSTEST")
	if suite == "" {
		t.Skip("needs pjdfstest: set GVX_PJDFSTEST to the folder it was built in")
	}
	m := serve(t, filepath.Join(scratch(t), "v.ext4"), 4<<30)
	run := exec.Command(testbed.NeedCommand(t, "prove"), "-r", "-Q", filepath.Join(suite, "tests"))
	run.Dir = m.dir
	out, err := run.CombinedOutput()
	t.Log(clip(string(out)))
	if err != nil { // prove names what failed
		t.Error(err)
	}
	m.finish()
}

// TestXfstests runs what of xfstests is for any file system and is quick, nightly all
// that its authors run unattended, if GVX_XFSTESTS names a folder in which it was built.
// GVX_XFSTESTS_SOME names some tests in place of a group. testdata/xfstests_known.txt
// lists what fails, each with its reason; what passes must not be in it.
func TestXfstests(t *testing.T) {
	suite := os.Getenv("GVX_XFSTESTS")
	if suite == "" {
		t.Skip("needs xfstests: set GVX_XFSTESTS to the folder it was built in")
	}
	known := testbed.KnownFailures(t, "testdata/xfstests_known.txt")
	x := newXfstests(t, suite)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
	defer cancel()
	args := []string{"-fuse"}
	if !mayRaiseLimits() {
		t.Logf("this machine does not let root raise limits: without %v", limitTests)
		args = append(args, "-e", strings.Join(limitTests, ","))
	}
	switch some := strings.Fields(os.Getenv("GVX_XFSTESTS_SOME")); {
	case len(some) > 0:
		args = append(args, some...)
	case testbed.Nightly():
		args = append(args, "-g", "auto")
	default:
		args = append(args, "-g", "quick")
	}
	run := exec.CommandContext(ctx, filepath.Join(suite, "check"), args...)
	run.WaitDelay = time.Minute // A server that is left keeps the output open.
	run.Dir, run.Env = suite, append(os.Environ(), "HOST_OPTIONS="+x.config, "RESULT_BASE="+filepath.Join(x.dir, "results"))
	out, err := run.CombinedOutput()
	t.Logf("%v\n%s", err, clip(string(out)))
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "[failed") || strings.Contains(line, "- output mismatch") {
			t.Log(strings.TrimSpace(line))
		}
	}
	ran := words(string(out), "Ran: ")
	if len(ran) == 0 {
		t.Fatal("xfstests ran nothing")
	}
	failed, notRun := words(string(out), "Failures: "), words(string(out), "Not run: ")
	for _, name := range failed {
		if known[name] == "" {
			t.Errorf("%s fails", name)
		}
	}
	t.Logf("%d tests, of which %d cannot run here, %d fail", len(ran), len(notRun), len(failed))
	for name, reason := range known {
		if slices.Contains(ran, name) && !slices.Contains(failed, name) && !slices.Contains(notRun, name) {
			t.Errorf("%s passes now: take it off the list (%s)", name, reason)
		}
	}
}

// limitTests set resource limits above the present ones.
var limitTests = []string{"generic/394", "generic/531", "generic/564"}

func mayRaiseLimits() bool {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		return false
	}
	raised := unix.Rlimit{Cur: old.Cur, Max: old.Max + 1}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return false
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &old) == nil
}

// words are those of the line that begins with a mark.
func words(output, mark string) []string {
	for line := range strings.Lines(output) {
		if rest, ok := strings.CutPrefix(line, mark); ok {
			return strings.Fields(rest)
		}
	}
	return nil
}

// xfstests is where a run of xfstests keeps its volumes and configuration.
type xfstests struct{ dir, config string }

// mountHelper is what mount(8) runs for this type of file system.
const mountHelper = "/sbin/mount.fuse.ext4lite"

func newXfstests(t *testing.T, suite string) *xfstests {
	t.Helper()
	for _, name := range []string{"fsgqa", "fsgqa2", "123456-fsgqa"} {
		if exec.Command("id", name).Run() != nil {
			t.Fatalf("many tests of xfstests act as user %s and do not run without: useradd --badname -m %s", name, name)
		}
	}
	x := &xfstests{dir: scratch(t)}
	x.config = filepath.Join(x.dir, "config")
	helper := fmt.Sprintf(helperScript, serverBinary(t))
	if err := os.WriteFile(mountHelper, []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(mountHelper) })
	var config strings.Builder
	for _, v := range []string{"test", "scratch"} {
		volume, dir := filepath.Join(x.dir, v+".img"), filepath.Join(x.dir, v)
		makeVolume(t, volume, 10<<30)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH); check(t, volume) })
		upper := strings.ToUpper(v)
		fmt.Fprintf(&config, "export %s_DEV=%s\n", upper, volume)
		fmt.Fprintf(&config, "export %s=%s\n", map[string]string{"test": "TEST_DIR", "scratch": "SCRATCH_MNT"}[v], dir)
	}
	config.WriteString("export FSTYP=fuse\nexport FUSE_SUBTYP=.ext4lite\n")
	if err := os.WriteFile(x.config, []byte(config.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return x
}

// helperScript starts the server as mount(8) expects it: in the background,
// once the one before has left the volume.
const helperScript = `#!/bin/bash
volume=$1 dir=$2
shift 2
while [ $# -gt 0 ]; do
	case $1 in -o) options=$options,$2; shift ;; esac
	shift
done
case $options, in
*,remount,*) exec mount -i -o "${options#,}" "$dir" ;;
esac
for i in $(seq 100); do
	coproc SERVER { exec setsid %s -o "${options#,}" "$volume" "$dir"; }
	read -r -t 60 line <&${SERVER[0]} && [ "$line" = mounted ] && exit 0
	sleep 0.1
done
exit 32
`

// TestBrokenVolumes has ext4lite's own test go through the broken volumes of
// e2fsprogs' tests.
func TestBrokenVolumes(t *testing.T) {
	run := exec.Command("go", "test", "-count=1", "-v", "-run", "^TestE2fsprogsImages$", "./ext4lite")
	run.Dir = testbed.Tree()
	run.Env = append(os.Environ(), "GVX_E2FSPROGS_TESTS="+testbed.Need(t, "e2fsprogs-tests"))
	out, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(out), " images: ") {
		t.Fatalf("%v\n%s", err, clip(string(out)))
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, " images: ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
