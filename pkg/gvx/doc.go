// SPDX-License-Identifier: Apache-2.0

// Package gvx runs sandboxes from Go: each an OCI image in one unprivileged
// process that is its own kernel, with its own network and, where wanted, a
// copy-on-write volume that holds all of a Docker engine's state.
//
// The package owns the life of the sandboxes it makes, and translates between
// Go values and the rungv command, which does the work. It links no kernel and
// opens no network: it executes rungv ([Config.RuntimePath], else $GVX_RUNGV,
// else what PATH has), one process for each sandbox, and follows it over a
// socket.
//
// # Life cycle
//
//	New ──► Start ──► Wait ──► Close
//	        └─── Run ────┘
//
// [New] checks the configuration, fetches the image where it is missing, and
// prepares everything up to the guest's first instruction: what can fail for
// reasons of configuration fails there. [Sandbox.Start] lets the guest run and
// [Sandbox.Wait] tells how it ended; [Sandbox.Run] is both. While the guest runs,
// [Sandbox.Exec], the file methods, [Sandbox.Stats] and others act on it.
// [Sandbox.Close] ends it, whatever it is doing, and gives everything back. Call
// it always, as with a file.
//
// A sandbox does not outlive its program. When the program ends, also by
// SIGKILL, the operating system closes the socket, and rungv ends the sandbox
// and removes what it made on the host.
//
// # Contexts
//
// The context of New bounds the preparation only. That of Run bounds the run: when
// it is done, the guest is killed. Those of other methods bound the call; Wait
// just stops waiting.
//
// # Errors
//
// Errors of this package are of type *[Error], with an [ErrorKind]. Compare with
// errors.Is and the Err… values:
//
//	if errors.Is(err, gvx.ErrImage) { … }
//
// Those of [VolumeFS]' methods of package io/fs are *[io/fs.PathError], as that package
// wants them. A guest that exits with a status other than zero is no error of Run. What
// may help to try again is [ErrUnavailable], [ErrLimit] and [ErrKilled]; [ErrInternal] is a
// fault to be reported.
//
// # Stability
//
// All exported names, the kinds of error and what their comments say follow semantic
// versioning with the module: they may still change before version 1.0, with a note in
// the changelog. Fields and kinds may be added at any time: name fields in literals, and
// let a switch over kinds have a default. Not stable are the texts of errors and
// warnings, the documents of [Sandbox.Inspect] and [Volumes.Inspect] beyond docker's own
// fields, and the socket's protocol: rungv and the package must agree on its version,
// which is checked, with an error that says what to update.
//
// # Platforms
//
// The package builds for Linux, macOS and Windows; sandboxes need Linux. Elsewhere
// New returns [ErrUnsupported], and what works on files, [OpenVolume], works.
package gvx
