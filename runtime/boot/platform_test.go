// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/gomaxprocs"
	"gvisor.dev/gvisor/pkg/ring0"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// TestPlatformInCrowdedAddressSpace makes a platform in an empty root where
// half of the addresses that it could choose for its stub are taken. It draws
// another one; for that it needs a /proc/self/maps.
func TestPlatformInCrowdedAddressSpace(t *testing.T) {
	const child = "GVX_TEST_CROWDED"
	if os.Getenv(child) != "" {
		crowdedChild(t)
		return
	}
	for range 6 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = []string{child + "=1"}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 1, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 1, HostID: os.Getgid(), Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP},
		}
		out, err := cmd.CombinedOutput()
		if _, ran := err.(*exec.ExitError); err != nil && !ran {
			t.Skipf("needs user namespaces: %v", err)
		}
		if bytes.Contains(out, []byte(unix.ENOTSUP.Error())) {
			t.Skip("needs a test binary without cgo")
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

func crowdedChild(t *testing.T) {
	gomaxprocs.SetBase(2)
	cpuid.Initialize()
	ring0.InitDefault()
	// The stub goes into the last 128th of the address space.
	const pieces = 64
	span := uintptr(linux.TaskSize) >> 7
	start := uintptr(linux.TaskSize) - span
	for i := range uintptr(pieces) {
		size := span / pieces
		// Where something is already the address is as taken as can be.
		_, _, _ = unix.Syscall6(unix.SYS_MMAP, start+i*size, size/2, unix.PROT_NONE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE, 0, 0)
	}
	if err := lockdown.Shed(lockdown.ShedOptions{Keep: []int{0, 1, 2}, EmptyRoot: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := newPlatform(&api.HeadStart{Platform: "systrap", Cores: 2}); err != nil {
		t.Fatal(err)
	}
}
