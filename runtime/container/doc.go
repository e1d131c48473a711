// SPDX-License-Identifier: Apache-2.0

// Package container is what the command line and the shim do with containers:
// run one, signal it, ask it, remove it. It joins the image store, the
// container records, the conversion and the launcher, and owns the order of
// these steps and what is undone when one fails.
//
// It never parses a flag, prints nothing and knows no exit code but those that
// docker gives a container: its callers speak to the user.
//
// # A run
//
//  1. The record is entered and its name taken: a conflict is found before
//     anything is downloaded.
//  2. The image is pulled if need be, and pinned.
//  3. Image and options become a spec; upper file, control socket and streams
//     are made; the sandbox process starts and everything is donated to it.
//  4. The guest runs or its failure is reported; record: running.
//  5. Signals, the terminal's size and what the user types go in, output comes
//     out, until the first process ends.
//  6. The sandbox ends, its last output is delivered; record: stopped, or gone
//     with AutoRemove.
//
// A detached container has the same life in a process of its own, its
// supervisor: a session leader without terminal that whoever asked for it
// starts from this binary, hears until the guest runs, and leaves. Its output
// goes to a log and to those who attach. Nothing outlives it: the kernel kills
// the sandbox with it, the lock on the record falls, and what is left are the
// files of the container's directory, which the next listing or removal takes.
//
// What fails in steps 1 to 3 leaves nothing: the container never existed. From
// step 4 on its record tells what happened.
package container

import (
	"io"
	"os"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/volumes"
)

// Runner runs containers. Its fields are set once, before the first call.
type Runner struct {
	State  *state.Store
	Images *images.Store
	// Volumes are the volumes that a run may mount, and where what guests write
	// to their root is kept, in unlinked files.
	Volumes *volumes.Store
	// Log, if not nil, takes the sandbox's log as it comes, and LogLevel says
	// how much of it there is ("warning" if empty).
	Log      io.Writer
	LogLevel string
	// Debug, if not nil, is told what only a debugging user wants to know.
	Debug func(format string, args ...any)
	// Warn is told what went wrong without ending the run.
	Warn func(format string, args ...any)
}

// RunOptions describe one run.
type RunOptions struct {
	// Image is a reference in any form that the store pulls.
	Image string
	Pull  images.PullOptions
	// PullDone, if not nil, is called when the pull has ended, before anything
	// is written to the user's terminal by the guest.
	PullDone func()

	Name       string
	AutoRemove bool
	// CIDFile, if not empty, is a file that gets the id; it must not exist.
	CIDFile string
	convert.Options

	// Stdin is read when Options.Interactive is set.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	// Ready and Start, if not nil, hold the guest back: Ready is called when all
	// is prepared, and the guest runs once Start is closed.
	Ready func()
	Start <-chan struct{}
	// Created, if not nil, is told the id and the place of the control socket
	// once the container has a record, and Started once its first process runs.
	Created func(id, control string)
	Started func()
	// Gone, if not nil, is closed when the program that asked for the run has
	// ended: the run ends at once, as if it had been killed.
	Gone <-chan struct{}
	// SignalProxy sends the signals that this process gets to the guest.
	SignalProxy bool
	DetachKeys  []byte

	// Log, if not nil, keeps the guest's output in the container's directory.
	// Only with Detached.
	Log *state.LogConfig
	// Detached says that this process is there for the container alone: see
	// [Runner.Supervise].
	Detached bool

	// handle is set for a container that was created before; hub, with
	// Detached, is where its streams go.
	handle *state.Handle
	hub    *hub
}
