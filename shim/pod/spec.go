// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"path"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Annotations by which a bundle says that it is a pod's sandbox, and what the pod may
// use: containerd's own pods have them, too.
const (
	annotationKind   = "io.kubernetes.cri.container-type"
	annotationID     = "io.kubernetes.cri.sandbox-id"
	annotationPeriod = "io.kubernetes.cri.sandbox-cpu-period"
	annotationQuota  = "io.kubernetes.cri.sandbox-cpu-quota"
	annotationMemory = "io.kubernetes.cri.sandbox-memory"
)

// Spec is the document of a sandbox with nothing of the pod's in it, whose network
// is the namespace at a path; "" is one of its own.
func (c *Config) Spec(id, netns string) *specs.Spec {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	s := &specs.Spec{
		Version:  specs.Version,
		Process:  &specs.Process{Args: []string{"/pause"}, Cwd: "/", NoNewPrivileges: true},
		Root:     &specs.Root{Path: "rootfs", Readonly: true},
		Hostname: c.Hostname,
		// Kernel parameters are files there.
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}}},
		Annotations: map[string]string{
			annotationKind: "sandbox", annotationID: id,
			annotationPeriod: number(c.CPUPeriod), annotationQuota: number(c.CPUQuota), annotationMemory: number(c.MemoryBytes),
		},
		Linux: &specs.Linux{Sysctl: c.Sysctls, CgroupsPath: c.cgroupsPath(id)},
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	if c.Network != ModeNode {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: netns})
	}
	if c.HasUser && c.User != ModeNode {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		s.Linux.UIDMappings, s.Linux.GIDMappings = c.UIDs, c.GIDs
	}
	return s
}

// cgroupsPath is the sandbox's cgroup on the host, as containerd names those of its
// pods: by systemd's words where the parent is a slice.
func (c *Config) cgroupsPath(id string) string {
	switch base := path.Base(c.CgroupParent); {
	case c.CgroupParent == "":
		return ""
	case strings.HasSuffix(base, ".slice"):
		return base + ":cri-containerd:" + id
	}
	return path.Join(c.CgroupParent, id)
}
