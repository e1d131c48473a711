// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// exampleNoFile is runc's, too.
const exampleNoFile = 1024

// Example is the document that `rungv spec` writes: runc's, so that scripts which
// edit that one find what they look for.
func Example() *specs.Spec {
	caps := func() []string { return []string{"CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"} }
	quiet := func(more ...string) []string { return append([]string{"nosuid", "noexec", "nodev"}, more...) }
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs", Readonly: true},
		Process: &specs.Process{
			Terminal:        true,
			Args:            []string{"sh"},
			Env:             []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"},
			Cwd:             "/",
			NoNewPrivileges: true,
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps(), Permitted: caps(), Effective: caps()},
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: exampleNoFile, Soft: exampleNoFile}},
		},
		Hostname: "rungv",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: quiet("mode=1777", "size=65536k")},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: quiet()},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: quiet("ro")},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: quiet("relatime", "ro")},
		},
		Linux: &specs.Linux{
			MaskedPaths: []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace}},
		},
	}
}

// RootlessExample is the document of `rungv spec --rootless`: that of a user who
// has one uid and one gid. A sandbox needs no user namespace for that, and its
// network is its own without one of the host's; so, unlike runc's, it keeps its
// network namespace and binds nothing of the host.
func RootlessExample(uid, gid uint32) *specs.Spec {
	s := Example()
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: uid, ContainerID: 0, Size: 1}}
	s.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: gid, ContainerID: 0, Size: 1}}
	for i := range s.Mounts {
		m := &s.Mounts[i]
		m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "gid=") || strings.HasPrefix(o, "uid=") })
	}
	s.Linux.Resources = nil
	return s
}
