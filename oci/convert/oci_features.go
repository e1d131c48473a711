// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"z.gfire.dev/gvx/runtime/api"
)

// oldestOCI is the oldest version of the specification that is understood.
const oldestOCI = "1.0.0"

// AnnotationVersion is where the features document has the runtime's version.
const AnnotationVersion = AnnotationPrefix + "version"

// seccompArchs are the architectures that a guest's calls can be of.
var seccompArchs = []string{string(specs.ArchAARCH64), string(specs.ArchX86_64)}

// Features is the document of `rungv features`: what of a bundle this package
// gives a meaning to. What a guest's kernel has not is missing from it, or false.
func Features(version string) *features.Features {
	yes, no := true, false
	options := slices.Collect(maps.Keys(ociMountFlags))
	for _, p := range []api.Propagation{api.PropagationPrivate, api.PropagationSlave, api.PropagationShared, api.PropagationUnbindable} {
		options = append(options, string(p), "r"+string(p))
	}
	slices.Sort(options)
	var actions, operators, flags []string
	for a := range seccompActions {
		actions = append(actions, string(a))
	}
	for o := range seccompOps {
		operators = append(operators, string(o))
	}
	for _, f := range seccompFlags {
		flags = append(flags, string(f))
	}
	slices.Sort(actions)
	slices.Sort(operators)
	slices.Sort(flags)
	return &features.Features{
		OCIVersionMin: oldestOCI,
		OCIVersionMax: specs.Version,
		Hooks:         []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"},
		MountOptions:  options,
		Linux: &features.Linux{
			Namespaces: []string{string(specs.CgroupNamespace), string(specs.IPCNamespace), string(specs.MountNamespace), string(specs.NetworkNamespace),
				string(specs.PIDNamespace), string(specs.UserNamespace), string(specs.UTSNamespace)},
			Capabilities: slices.Clone(capabilityNames),
			Cgroup:       &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &no, Rdma: &no},
			Seccomp: &features.Seccomp{
				Enabled: &yes, Actions: actions, Operators: operators, Archs: seccompArchs, KnownFlags: flags, SupportedFlags: flags,
			},
			Apparmor:        &features.Apparmor{Enabled: &no},
			Selinux:         &features.Selinux{Enabled: &no},
			IntelRdt:        &features.IntelRdt{Enabled: &no, Schemata: &no, Monitoring: &no},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &no}},
			NetDevices:      &features.NetDevices{Enabled: &no},
		},
		Annotations: map[string]string{AnnotationVersion: version},
		// They name files of the host.
		PotentiallyUnsafeConfigAnnotations: []string{AnnotationVolume, AnnotationSandbox},
	}
}
