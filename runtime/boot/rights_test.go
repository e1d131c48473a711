// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"slices"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"

	"z.gfire.dev/gvx/runtime/api"
)

func TestCompleteEnv(t *testing.T) {
	for _, c := range []struct {
		explicit  bool
		env, want []string
	}{
		{false, []string{"A=b", "HOME=/h"}, []string{"A=b", "HOME=/h", "PATH=" + defaultPath}},
		{false, []string{"PATH=/x"}, []string{"PATH=/x", "HOME=/root"}},
		{true, []string{"A=b"}, []string{"A=b", "HOME=/root"}},
	} {
		m := &mounter{spec: &api.Container{Explicit: c.explicit}}
		if got := m.completeEnv(c.env, "/root"); !slices.Equal(got, c.want) {
			t.Errorf("explicit %v: got %q, want %q", c.explicit, got, c.want)
		}
	}
}

func TestProcessCapabilities(t *testing.T) {
	p := &api.Process{CapabilitySets: &api.CapabilitySets{
		Bounding: []string{"CAP_CHOWN", "CAP_KILL"}, Permitted: []string{"CAP_KILL", "CAP_BPF"}, Effective: []string{"CAP_KILL", "CAP_CHOWN"},
		Inheritable: []string{"CAP_KILL"}, Ambient: []string{"CAP_KILL", "CAP_BPF"},
	}}
	kill := auth.CapabilitySetOf(linux.CAP_KILL)
	want := auth.TaskCapabilities{
		BoundingCaps: kill | auth.CapabilitySetOf(linux.CAP_CHOWN), PermittedCaps: kill | auth.CapabilitySetOf(linux.CAP_BPF),
		EffectiveCaps: kill, InheritableCaps: kill, AmbientCaps: kill,
	}
	if got, err := processCapabilities(p, 1000); err != nil || *got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	p.CapabilitySets.Ambient = []string{"CAP_NOSUCH"}
	if _, err := processCapabilities(p, 0); api.KindOf(err) != api.KindInvalid {
		t.Errorf("unknown capability: %v", err)
	}
}

// TestRlimitNames checks that all limits of the runtime specification have one in
// the guest's kernel.
func TestRlimitNames(t *testing.T) {
	for name := range strings.FieldsSeq("as core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending stack") {
		if _, err := limitSet([]api.Rlimit{{Name: name, Soft: 1, Hard: 2}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSysctlFile(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":                    "/proc/sys/net/ipv4/ip_forward",
		"net.ipv4.conf.eno2/100.rp_filter":       "/proc/sys/net/ipv4/conf/eno2.100/rp_filter",
		"net.//.//.//.//.self.environ":           "/proc/sys/self/environ",
		"../../etc/passwd":                       "/proc/sys/etc.passwd",
		"net/../../../../../proc/self/oom_score": "/proc/sys/net........../proc.self.oom_score",
	} {
		got := sysctlFile(name)
		if !strings.HasPrefix(got, "/proc/sys/") {
			t.Errorf("%q leads to %s", name, got)
		}
		if strings.HasPrefix(name, "net.ipv4") && got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
