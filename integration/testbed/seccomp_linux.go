// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// DockerProfile is docker's default seccomp profile, as docker makes it for a
// container without capabilities on this machine.
func DockerProfile(t testing.TB) *specs.LinuxSeccomp {
	t.Helper()
	data, err := os.ReadFile(Need(t, "seccomp-profile"))
	if err != nil {
		t.Fatal(err)
	}
	type condition struct {
		Caps, Arches []string
		MinKernel    string
	}
	var profile struct {
		DefaultAction   specs.LinuxSeccompAction
		DefaultErrnoRet *uint
		Syscalls        []struct {
			specs.LinuxSyscall
			Includes, Excludes condition
		}
	}
	if err := json.Unmarshal(data, &profile); err != nil {
		t.Fatalf("docker's seccomp profile: %v", err)
	}
	architecture, machine := specs.ArchX86_64, "amd64"
	if runtime.GOARCH == "arm64" {
		architecture, machine = specs.ArchAARCH64, "arm64"
	}
	seccomp := &specs.LinuxSeccomp{DefaultAction: profile.DefaultAction, DefaultErrnoRet: profile.DefaultErrnoRet, Architectures: []specs.Arch{architecture}}
	for _, rule := range profile.Syscalls {
		// No capability is held; every kernel here is newer than any that the
		// profile asks for.
		if len(rule.Includes.Caps) > 0 || len(rule.Includes.Arches) > 0 && !slices.Contains(rule.Includes.Arches, machine) ||
			slices.Contains(rule.Excludes.Arches, machine) {
			continue
		}
		seccomp.Syscalls = append(seccomp.Syscalls, rule.LinuxSyscall)
	}
	if len(seccomp.Syscalls) < 5 {
		t.Fatalf("docker's seccomp profile gave only %d rules", len(seccomp.Syscalls))
	}
	return seccomp
}
