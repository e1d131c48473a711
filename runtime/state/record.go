// SPDX-License-Identifier: Apache-2.0

// What is known of a container, and the states it may go through.

package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
)

// RecordVersion is the version of record.json that this package writes and
// reads.
const RecordVersion = 1

// Record is one container.
type Record struct {
	// Version is RecordVersion.
	Version int `json:"version"`
	// ID is 64 hexadecimal digits, Name unique among a user's containers.
	ID    string    `json:"id"`
	Name  string    `json:"name"`
	State api.State `json:"state"`

	CreatedAt  time.Time `json:"createdAt"`
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`

	// Launcher answers for the container, Sandbox is its sandbox process.
	Launcher ProcessID `json:"launcher"`
	Sandbox  ProcessID `json:"sandbox,omitzero"`

	// Exit is how it ended; nil before, and when it never ran.
	Exit *api.ExitStatus `json:"exit,omitempty"`
	// Error says why it could not start, or how it was lost.
	Error string `json:"error,omitempty"`

	// Image is the reference that the user gave, ImageID what it meant.
	Image   string `json:"image"`
	ImageID string `json:"imageID,omitempty"`
	// Options are what the user asked for, Process what became of it.
	Options    convert.Options `json:"options"`
	Process    api.Process     `json:"process,omitzero"`
	Hostname   string          `json:"hostname,omitempty"`
	StopSignal int             `json:"stopSignal,omitempty"`
	AutoRemove bool            `json:"autoRemove,omitempty"`
	// Log says where the guest's output is kept; nil where nobody keeps it.
	Log *LogConfig `json:"log,omitempty"`
	// Detached says that the container has a launcher of its own.
	Detached bool `json:"detached,omitempty"`
	// Paused is the amendment's: the guest was told to pause.
	Paused bool `json:"-"`

	// Links are the host's interfaces that the sandbox has taken over.
	Links []api.Link `json:"links,omitempty"`
	// Ports are the published ports, with the numbers that the host chose.
	Ports []api.Port `json:"ports,omitempty"`

	// Mounts are the volumes that are open for it.
	Mounts []Mount `json:"mounts,omitempty"`

	// Task is what there is to know of a container that an OCI bundle describes;
	// nil for one of an image. Its name is the id that its engine gave it.
	Task *Task `json:"task,omitempty"`

	// Phases and Layers are the sandbox's boot report: when it reached what,
	// and which isolation layers hold.
	Phases []control.Phase `json:"phases,omitempty"`
	Layers []string        `json:"layers,omitempty"`
}

// Task is a container of an OCI bundle.
type Task struct {
	// Version is the bundle's ociVersion, Bundle its directory and Rootfs the
	// root's on the host.
	Version string `json:"version"`
	Bundle  string `json:"bundle"`
	Rootfs  string `json:"rootfs,omitempty"`
	// Annotations are the bundle's.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Sandbox is the id of the container whose sandbox this one has joined.
	Sandbox string `json:"sandbox,omitempty"`
	// Cgroup is where the host's cgroup is, by controller; empty where there is
	// none. CgroupPath and Systemd are what the bundle and the caller said.
	Cgroup     map[string]string `json:"cgroup,omitempty"`
	CgroupPath string            `json:"cgroupPath,omitempty"`
	Systemd    bool              `json:"systemd,omitempty"`
	// Poststop are the hooks to run once the container is deleted.
	Poststop []specs.Hook `json:"poststop,omitempty"`
}

// LogConfig is how much of a guest's output is kept, in files in the container's
// directory.
type LogConfig struct {
	MaxSizeBytes int64 `json:"maxSizeBytes"`
	MaxFiles     int   `json:"maxFiles"`
}

// ProcessID names a process for good: numbers are used again.
type ProcessID struct {
	PID int `json:"pid"`
	// StartTicks is the process' start time in clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
}

// ShortID is the part of the id that people are shown.
func (r *Record) ShortID() string { return r.ID[:min(len(r.ID), shortIDDigits)] }

// shortIDDigits is docker's length of a short id.
const shortIDDigits = 12

// TransitionError says that a container cannot go from one state to another.
type TransitionError struct {
	ID       string
	From, To api.State
}

// Error implements error.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("container %s is %s and cannot become %s", e.ID, e.From, e.To)
}

// next lists the states that may follow each state.
var next = map[api.State][]api.State{
	api.StateCreating: {api.StateCreated, api.StateRunning, api.StateStopped},
	api.StateCreated:  {api.StateRunning, api.StateStopped},
	api.StateRunning:  {api.StateStopped},
	api.StateStopped:  {},
}

// SetState moves the record to another state, or returns a [TransitionError]
// inside an [api.Error] of KindState.
func (r *Record) SetState(to api.State) error {
	if !slices.Contains(next[r.State], to) {
		return api.Errorf(api.KindState, "%w", &TransitionError{ID: r.ShortID(), From: r.State, To: to})
	}
	r.State = to
	return nil
}

// check refuses a record that no program of ours could have written.
func (r *Record) check(id string) error {
	_, known := next[r.State]
	switch {
	case r.Version > RecordVersion:
		return api.Errorf(api.KindUnsupported, "container %s: its record has version %d, this program knows %d: a newer rungv wrote it", id, r.Version, RecordVersion)
	case r.Version < 1 || r.ID != id || !known || r.checkName() != nil:
		return api.Errorf(api.KindInternal, "container %s: its record is damaged: remove it with rungv rm -f", id)
	}
	return nil
}
