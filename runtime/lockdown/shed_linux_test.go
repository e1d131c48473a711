// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// report is what a child says about itself.
type report struct {
	Err    string
	Layers []string
	Files  []string
	FDs    []string
}

func runReport(t *testing.T, cmd *exec.Cmd) report {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		if strings.Contains(err.Error(), "operation not permitted") {
			t.Skipf("needs root or user namespaces: %v", err)
		}
		t.Fatalf("child: %v, output %q", err, out)
	}
	return decodeReport(t, bytes.NewReader(out))
}

func decodeReport(t *testing.T, from io.Reader) report {
	t.Helper()
	var r report
	if err := json.NewDecoder(from).Decode(&r); err != nil {
		t.Fatalf("decode the child's report: %v", err)
	}
	if r.Err != "" {
		t.Fatalf("child: %s", r.Err)
	}
	return r
}

func say(r report) {
	json.NewEncoder(os.Stdout).Encode(r)
}

// shedAndSeal runs the real sequence; the answer is written under the filter.
func shedAndSeal(o ShedOptions) report {
	r := report{}
	fail := func(err error) report { r.Err = err.Error(); return r }
	if err := Shed(o); err != nil {
		return fail(err)
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return fail(err)
	}
	for _, e := range entries {
		r.Files = append(r.Files, e.Name())
	}
	for fd := 0; fd < 64; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			r.FDs = append(r.FDs, fmt.Sprint(fd))
		}
	}
	p, err := Filter(FilterOptions{ListenFD: -1})
	if err != nil {
		return fail(err)
	}
	if r.Layers, err = Seal(p); err != nil {
		return fail(err)
	}
	return r
}

func childShed()      { say(shedAndSeal(ShedOptions{Keep: []int{4}})) }
func childEmptyRoot() { say(shedAndSeal(ShedOptions{EmptyRoot: true})) }

// TestShed starts a process with two stray descriptors and a session of its
// own, and asks it what is left.
func TestShed(t *testing.T) {
	cmd := childCommand(t, "shed")
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	cmd.ExtraFiles = []*os.File{null, null, null} // 3, 4, 5
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r := runReport(t, cmd)
	for _, want := range []string{LayerNoNewPrivs, LayerCapabilities, LayerNoCore, LayerNotDumpable, LayerSession, LayerEnvironment, LayerSeccomp} {
		if !slices.Contains(r.Layers, want) {
			t.Errorf("layer %q does not hold: %q", want, r.Layers)
		}
	}
	if os.Getuid() == 0 && !slices.Contains(r.Layers, LayerBounding) {
		t.Errorf("root could not empty the bounding set: %q", r.Layers)
	}
	if slices.Contains(r.Layers, LayerEmptyRoot) {
		t.Errorf("an empty root is claimed and / holds %q", r.Files)
	}
	if !slices.Contains(r.FDs, "4") || slices.Contains(r.FDs, "3") || slices.Contains(r.FDs, "5") {
		t.Errorf("descriptors %q are open, want the donated 4 and not 3 and 5", r.FDs)
	}
}

// TestEmptyRoot gives a child a mount namespace, as root directly and as a
// user through a user namespace.
func TestEmptyRoot(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	cmd := childCommand(t, "empty-root")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 1879048192, Gid: 1879048192}
	} else {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	}
	r := runReport(t, cmd)
	if !slices.Equal(r.Files, []string{"proc"}) {
		t.Errorf("the root holds %q, want the platform's %s alone", r.Files, emptyMaps)
	}
	for _, want := range []string{LayerEmptyRoot, LayerUID, LayerCapabilities} {
		if !slices.Contains(r.Layers, want) {
			t.Errorf("layer %q does not hold: %q", want, r.Layers)
		}
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(after), "gvx-empty") && !strings.Contains(string(before), "gvx-empty") {
		t.Error("the empty root travelled into the parent's mount table")
	}
}

func TestGreets(t *testing.T) {
	for log, want := range map[string]bool{
		"<6>[    0.000000] Starting gVisor...\n<6>[    0.1": true,
		"[    0.000000] Starting gVisor...":                 true,
		"":                                                  false, "Starting gVisor...": false,
		"[ 1299.000000] Starting gVisor...\n":                 false,
		"[    0.000000] Starting gVisor... not\n":             false,
		"[    0.000000] x\n[    0.000000] Starting gVisor...": false,
	} {
		if got := greets([]byte(log)); got != want {
			t.Errorf("greets(%q) = %t, want %t", log, got, want)
		}
	}
	t.Logf("DetectGVisor here: %t", DetectGVisor())
}
