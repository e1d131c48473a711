// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"
)

// explicitContainer is a container as an OCI bundle gives it.
func explicitContainer() *Container {
	return &Container{
		ID: "c", Explicit: true,
		Rootfs: Rootfs{Layers: []Layer{{FD: 5, Format: "erofs"}}},
		Process: Process{
			Args: []string{"true"}, Cwd: "/", Account: &Account{UID: 1000}, CapabilitySets: &CapabilitySets{},
			Seccomp: &Seccomp{Default: SeccompErrno, Rules: []SeccompRule{{Names: []string{"read"}, Action: SeccompAllow, Args: []SeccompArg{{Index: 5, Op: SeccompMasked}}}}},
		},
		Mounts:        []Mount{{Type: MountProc, Target: "/proc", Propagation: PropagationRSlave}},
		Devices:       []Device{{Path: "/dev/x", Type: DeviceFIFO}},
		MaskedPaths:   []string{"/proc/kcore"},
		ReadonlyPaths: []string{"/proc/sys"},
		Sysctls:       map[string]string{"net.ipv4.ip_forward": "1"},
		Namespaces:    Namespaces{User: &UserNamespace{UIDs: []IDMapping{{0, 100000, 65536}}, GIDs: []IDMapping{{0, 100000, 65536}}}},
		Propagation:   PropagationRSlave,
	}
}

func TestExplicitContainer(t *testing.T) {
	if err := explicitContainer().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Container){
		"without explicit mounts": func(c *Container) { c.Explicit, c.Mounts = false, nil },
		"unknown propagation":     func(c *Container) { c.Propagation = "r" },
		"unknown type":            func(c *Container) { c.Devices[0].Type = "x" },
		"guarded path":            func(c *Container) { c.MaskedPaths[0] = "proc" },
		"1025 sysctls":            func(c *Container) { c.Sysctls = manySysctls() },
		"sysctl":                  func(c *Container) { c.Sysctls["x"] = strings.Repeat("1", MaxSysctlBytes) },
		"out of range":            func(c *Container) { c.Namespaces.User.UIDs[0].Size = 1<<32 - 1 },
		"0 mappings":              func(c *Container) { c.Namespaces.User.GIDs = nil },
		"by number and by name":   func(c *Container) { c.Process.User = "root" },
		"one set and as five":     func(c *Container) { c.Process.Capabilities = []string{"CAP_CHOWN"} },
		"unknown action":          func(c *Container) { c.Process.Seccomp.Rules[0].Action = "notify" },
		"unknown default":         func(c *Container) { c.Process.Seccomp.Default = "" },
		"argument 6":              func(c *Container) { c.Process.Seccomp.Rules[0].Args[0].Index = 6 },
		"comparison":              func(c *Container) { c.Process.Seccomp.Rules[0].Args[0].Op = "=" },
		"more than":               func(c *Container) { c.Process.Seccomp.Rules[0].Names = make([]string, MaxSeccompNames+1) },
		"mount /proc":             func(c *Container) { c.Mounts[0].Volume = &Volume{} },
	} {
		c := explicitContainer()
		spoil(c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func manySysctls() map[string]string {
	m := make(map[string]string)
	for i := range MaxSysctls + 1 {
		m[strings.Repeat("a", 1+i%32)+strings.Repeat("b", i/32)] = "1"
	}
	return m
}
