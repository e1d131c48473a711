// SPDX-License-Identifier: Apache-2.0

// Containers of OCI bundles: what is told of them.

package container

import (
	"encoding/json"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// TaskState is what the runtime specification wants to be told of a container.
type TaskState struct {
	specs.State
	// Rootfs, Created and Owner are what `runc list` and `runc state` add.
	Rootfs  string `json:"rootfs"`
	Created string `json:"created"`
	Owner   string `json:"owner"`
}

// MarshalJSON puts the members in runc's order, by which some who read it go.
func (t TaskState) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Version     string               `json:"ociVersion"`
		ID          string               `json:"id"`
		Pid         int                  `json:"pid"`
		Status      specs.ContainerState `json:"status"`
		Bundle      string               `json:"bundle"`
		Rootfs      string               `json:"rootfs"`
		Created     string               `json:"created"`
		Annotations map[string]string    `json:"annotations,omitempty"`
		Owner       string               `json:"owner"`
	}{t.Version, t.ID, t.Pid, t.Status, t.Bundle, t.Rootfs, t.Created, t.Annotations, t.Owner})
}

// errNoTask is the answer where a container of an image is asked what only one of
// a bundle knows.
func errNoTask(ref string) error {
	return api.Errorf(api.KindUnsupported, "container %s was not created from an OCI bundle", ref)
}

// SupervisorReport is how a supervisor's caller hears of it.
type SupervisorReport struct {
	Created func(id, control string)
	Started func()
}

// TaskArgument ends the arguments of a process that stands for a bundle's container:
// its main has to leave its first thread to ServeFirstThread.
const TaskArgument = "--task"
