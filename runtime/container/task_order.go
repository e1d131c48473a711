// SPDX-License-Identifier: Apache-2.0

// Orders for containers of OCI bundles: what a supervisor is told, as JSON.

package container

import "z.gfire.dev/gvx/runtime/api"

// TaskCreate is what `rungv create` is told.
type TaskCreate struct {
	ID     string `json:"id"`
	Bundle string `json:"bundle"`
	// PIDFile gets the number of the container's process, ConsoleSocket its
	// terminal.
	PIDFile       string `json:"pidFile,omitempty"`
	ConsoleSocket string `json:"consoleSocket,omitempty"`
	// PIDFDSocket gets a descriptor of the process.
	PIDFDSocket string `json:"pidfdSocket,omitempty"`
	Systemd     bool   `json:"systemd,omitempty"`
	// HostNetwork lets a bundle without a network namespace have the host's network.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// PreserveFDs is how many descriptors after its streams the container gets of
	// this process'.
	PreserveFDs int `json:"preserveFDs,omitempty"`
}

// TaskExec is an additional process that goes on without whoever wants it.
type TaskExec struct {
	// Container is an id.
	Container string      `json:"container"`
	Process   api.Process `json:"process"`
	// PIDFile gets the number of the host's process that stands for it,
	// ConsoleSocket its terminal.
	PIDFile       string `json:"pidFile,omitempty"`
	ConsoleSocket string `json:"consoleSocket,omitempty"`
	// PIDFDSocket gets a descriptor of that process.
	PIDFDSocket string `json:"pidfdSocket,omitempty"`
	// PreserveFDs is how many descriptors after its streams the process gets of this
	// one's.
	PreserveFDs int `json:"preserveFDs,omitempty"`
	// Cgroups are where that process is below the container's cgroup, by controller:
	// see [hostcgroup.Container.AddBelow].
	Cgroups map[string]string `json:"cgroups,omitempty"`
}
