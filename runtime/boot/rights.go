// SPDX-License-Identifier: Apache-2.0

// What a guest process may do, and what it finds in its environment.

package boot

import (
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"

	"z.gfire.dev/gvx/runtime/api"
)

// unnamedCapabilities are those that gVisor has a number for and no name.
var unnamedCapabilities = map[string]linux.Capability{
	"CAP_PERFMON":            linux.CAP_PERFMON,
	"CAP_BPF":                linux.CAP_BPF,
	"CAP_CHECKPOINT_RESTORE": linux.CAP_CHECKPOINT_RESTORE,
}

// capabilitySet is the set of the capabilities named.
func capabilitySet(names []string) (set auth.CapabilitySet, err error) {
	for _, n := range names {
		c, ok := linux.CapabilityFromString(n)
		if !ok {
			c, ok = unnamedCapabilities[n]
		}
		if !ok {
			return 0, api.Errorf(api.KindInvalid, "unknown capability %q", n)
		}
		set |= auth.CapabilitySetOf(c)
	}
	return set, nil
}

// processCapabilities are those that a process begins with.
func processCapabilities(p *api.Process, uid uint32) (*auth.TaskCapabilities, error) {
	if p.CapabilitySets == nil {
		return taskCapabilities(p.Capabilities, uid)
	}
	caps, s := &auth.TaskCapabilities{}, p.CapabilitySets
	for _, set := range []struct {
		to    *auth.CapabilitySet
		names []string
	}{{&caps.BoundingCaps, s.Bounding}, {&caps.EffectiveCaps, s.Effective}, {&caps.InheritableCaps, s.Inheritable},
		{&caps.PermittedCaps, s.Permitted}, {&caps.AmbientCaps, s.Ambient}} {
		var err error
		if *set.to, err = capabilitySet(set.names); err != nil {
			return nil, err
		}
	}
	// As capset(2) and prctl(2) have it: an ambient capability is permitted and
	// inheritable, an effective one permitted.
	caps.EffectiveCaps &= caps.PermittedCaps
	caps.AmbientCaps &= caps.PermittedCaps & caps.InheritableCaps
	return caps, nil
}

// taskCapabilities is docker's rule: all listed capabilities bound the
// process, and root has them effective.
func taskCapabilities(names []string, uid uint32) (*auth.TaskCapabilities, error) {
	set, err := capabilitySet(names)
	if err != nil {
		return nil, err
	}
	caps := &auth.TaskCapabilities{BoundingCaps: set}
	if uid == 0 {
		caps.PermittedCaps, caps.EffectiveCaps = set, set
	}
	return caps, nil
}

// completeEnv adds HOME where it is missing, and PATH unless the container is an
// OCI bundle's.
func (m *mounter) completeEnv(env []string, home string) []string {
	out := append([]string(nil), env...)
	has := func(name string) bool {
		for _, e := range env {
			if strings.HasPrefix(e, name+"=") {
				return true
			}
		}
		return false
	}
	if !m.spec.Explicit && !has("PATH") {
		out = append(out, "PATH="+defaultPath)
	}
	if !has("HOME") {
		out = append(out, "HOME="+home)
	}
	return out
}
