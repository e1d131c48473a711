// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"os"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// Runtime makes containers. What it returns has errors of runtime/api's kinds.
type Runtime interface {
	// Create makes a container up to the point where only its first process
	// has to be let run.
	Create(ctx context.Context, o CreateOptions) (Container, error)
	// CreatePod makes a sandbox without a container, up to the point where it only
	// has to be let run.
	CreatePod(ctx context.Context, o PodOptions) (Container, error)
}

// PodOptions say which sandbox to make.
type PodOptions struct {
	// ID is the pod's.
	ID string
	// Bundle is the folder of the sandbox, without config.json.
	Bundle string
	// Netns is the network namespace that was prepared for the pod, "" for none.
	Netns string
	// Config is the pod's description as it came, with its type.
	ConfigType string
	Config     []byte
}

// Streams are a process' standard streams: pipes, fifos, or three times the same
// end of a terminal. nil is /dev/null. They stay the caller's, who may close them
// when the call that took them has returned.
type Streams struct {
	Stdin, Stdout, Stderr *os.File
}

// CreateOptions say which container to make.
type CreateOptions struct {
	// ID is the container's, unique in its namespace of containerd's.
	ID string
	// Namespace is that of containerd's.
	Namespace string
	// Bundle is the folder with config.json.
	Bundle string
	// Mounts are what the root file system consists of, empty if it is the
	// directory that config.json names.
	Mounts []Mount
	// Sandbox is the container whose sandbox this one joins; nil makes a new
	// sandbox.
	Sandbox Container
	// Options are the runtime options as they came, with their type.
	OptionsType string
	Options     []byte
	Streams     Streams
}

// Mount is one of the mounts that make a root file system, in containerd's words.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

// Container is a container that exists. Its methods are safe for concurrent use.
type Container interface {
	// Start lets the first process run.
	Start(ctx context.Context) error
	// Wait returns when the first process has ended, or the sandbox has.
	Wait(ctx context.Context) (api.ExitStatus, error)
	// Signal sends a signal to the first process, or to all.
	Signal(ctx context.Context, signal int, all bool) error
	// SignalForeground sends a signal to the foreground of its terminal.
	SignalForeground(ctx context.Context, signal int) error
	Resize(ctx context.Context, rows, columns uint16) error
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Update(ctx context.Context, r *specs.LinuxResources) error
	Stats(ctx context.Context) (Stats, error)
	// Processes lists the guest's processes by their numbers inside.
	Processes(ctx context.Context) ([]int, error)
	// Exec runs an additional process.
	Exec(ctx context.Context, o ExecOptions) (Process, error)
	// Delete ends what still runs and frees everything; it may be repeated.
	Delete(ctx context.Context) error
	// PID is the host process that stands for the container.
	PID() int
}

// ExecOptions say which process to run.
type ExecOptions struct {
	ID      string
	Process *specs.Process
	Streams Streams
}

// Process is an additional process that runs.
type Process interface {
	Wait(ctx context.Context) (api.ExitStatus, error)
	Signal(ctx context.Context, signal int) error
	SignalForeground(ctx context.Context, signal int) error
	Resize(ctx context.Context, rows, columns uint16) error
	// PID is the number inside the guest.
	PID() int
}

// Stats is what a container uses. Sizes are bytes; a limit of 0 is none.
type Stats struct {
	MemoryBytes, MemoryLimitBytes, MemoryPeakBytes uint64
	CPUUser, CPUSystem, CPUThrottled               time.Duration
	Pids, PidsLimit                                uint64
	OOMKills                                       uint64
}
