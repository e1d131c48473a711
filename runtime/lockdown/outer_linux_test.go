// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOuterSeal runs the whole way a sandbox process goes: planned, started
// inside its outer layers, shed and sealed.
func TestOuterSeal(t *testing.T) {
	o := PlanOuter(DefaultUIDBase + 7)
	if err := o.granted(); err != nil {
		if !Refused(err) {
			t.Fatal(err)
		}
		t.Logf("this host refuses %v: %v", o.Namespaces, err)
		o = o.Without()
	}
	t.Logf("plan: %+v", *o)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	name := "shed"
	if o.EmptyRoot {
		name = "empty-root"
	}
	done := make(chan error, 1)
	onOwnThread(func() {
		a := &syscall.SysProcAttr{}
		if err := o.Apply(a); err != nil {
			done <- err
			return
		}
		p, err := os.StartProcess(ownBinary, []string{"sandbox"}, &os.ProcAttr{
			Env: []string{"GVX_LOCKDOWN_CHILD=" + name}, Files: []*os.File{nil, w, os.Stderr}, Sys: a,
		})
		if err != nil {
			done <- err
			return
		}
		state, err := p.Wait()
		if err == nil && !state.Success() {
			err = errors.New(state.String())
		}
		done <- err
	})
	err = <-done
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	rep := decodeReport(t, r)
	want := []string{LayerNoNewPrivs, LayerCapabilities, LayerNoCore, LayerNotDumpable, LayerSession, LayerEnvironment, LayerSeccomp, LayerUID}
	if o.EmptyRoot {
		want = append(want, LayerEmptyRoot)
	}
	if os.Getuid() == 0 {
		want = append(want, LayerBounding)
	}
	for _, l := range want {
		if !slices.Contains(rep.Layers, l) {
			t.Errorf("layer %q does not hold: %q", l, rep.Layers)
		}
	}
	t.Logf("holds: %s", strings.Join(rep.Layers, ", "))
}

func TestPlan(t *testing.T) {
	o := PlanOuter(DefaultUIDBase)
	if (o.UID != 0) != (os.Getuid() == 0) {
		t.Errorf("uid %d planned for user %d", o.UID, os.Getuid())
	}
	if o.EmptyRoot && !slices.Contains(o.Namespaces, "mnt") {
		t.Error("an empty root is planned without a mount namespace")
	}
	if w := o.Without(); len(w.Namespaces) != 0 || w.EmptyRoot || w.UID != o.UID {
		t.Errorf("without namespaces: %+v", *w)
	}
}

func TestRefused(t *testing.T) {
	if !Refused(&os.PathError{Op: "fork/exec", Path: "x", Err: unix.EPERM}) || Refused(unix.ENOENT) || Refused(unix.ENOMEM) {
		t.Error("wrong classification")
	}
}

// TestSandboxRuleset checks the rulesets of each version of the interface
// against the bits that the kernel knew then.
func TestSandboxRuleset(t *testing.T) {
	for _, tc := range []struct {
		abi             int
		emptyRoot       bool
		fs, net, scoped uint64
		size            uintptr
	}{
		{0, false, 0, 0, 0, 8},
		{1, false, 0x1fff, 0, 0, 8},
		{2, false, 0x3fff, 0, 0, 8},
		{3, false, 0x7fff, 0, 0, 8},
		{4, false, 0x7fff, 3, 0, 16},
		{5, false, 0xffff, 3, 0, 16},
		{6, false, 0xffff, 3, 3, 24},
		{9, false, 0xffff, 3, 3, 24},
		{3, true, 0, 0, 0, 8},
		{4, true, 0, 3, 0, 16},
		{6, true, 0, 3, 3, 24},
	} {
		r := sandboxRuleset(tc.abi, "/bin/rungv", tc.emptyRoot)
		if r.FS != tc.fs || r.Net != tc.net || r.Scoped != tc.scoped || r.attrSize() != tc.size {
			t.Errorf("ABI %d, empty root %t: %#x %#x %#x, %d bytes; want %#x %#x %#x, %d", tc.abi, tc.emptyRoot, r.FS, r.Net, r.Scoped, r.attrSize(), tc.fs, tc.net, tc.scoped, tc.size)
		}
		if (r.FS == 0) != (len(r.Rules) == 0) {
			t.Errorf("ABI %d, empty root %t: rules %v for file rights %#x", tc.abi, tc.emptyRoot, r.Rules, r.FS)
		}
		const writes = 1<<1 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<14
		for _, rule := range r.Rules {
			if rule.Access&writes != 0 {
				t.Errorf("ABI %d: rule for %s gives a right to write: %#x", tc.abi, rule.Path, rule.Access)
			}
			if rule.Access&^r.FS != 0 {
				t.Errorf("ABI %d: rule for %s gives %#x, more than is handled", tc.abi, rule.Path, rule.Access)
			}
		}
	}
}

// TestRestrictThread needs a kernel with Landlock switched on.
func TestRestrictThread(t *testing.T) {
	abi := LandlockABI()
	if abi == 0 {
		t.Skip("this kernel has no Landlock, or does not use it")
	}
	result := make(chan error, 1)
	onOwnThread(func() {
		if err := restrictThread(sandboxRuleset(abi, ownBinary, false)); err != nil {
			result <- err
			return
		}
		if fd, err := unix.Open("/etc/passwd", unix.O_RDONLY|unix.O_CLOEXEC, 0); !errors.Is(err, unix.EACCES) {
			unix.Close(fd)
			result <- errors.New("/etc/passwd could be opened")
			return
		}
		fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		result <- err
	})
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	// The test's other threads are free.
	if _, err := os.ReadFile("/etc/passwd"); err != nil {
		t.Errorf("the restriction left its thread: %v", err)
	}
}
