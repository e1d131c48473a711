// SPDX-License-Identifier: Apache-2.0

// Package launch starts a sandbox process and stands at its side while it
// lives: it donates descriptors, holds the control channel, carries the
// guest's standard streams to and from the user, and learns how the process
// ended. It never decides what runs in the sandbox, keeps no record of it, and
// opens no file of an image or a store: its caller does.
//
// # Life of a sandbox process
//
// [Start] numbers the descriptors, writes the spec to a sealed memory file and
// executes this very binary again as "gvx-sandbox", with an empty environment,
// in "/" and in a session of its own. The process dies with its launcher twice
// over: by the parent-death signal, and because the control channel closes.
// The parent-death signal is tied to the thread that forked, so the fork
// happens on a thread that stays until the child has been reaped.
//
// # Descriptors, as the sandbox process sees them
//
//	0, 1, 2  /dev/null
//	3        the spec
//	4…       whatever the spec names: control channel, control socket, log,
//	         layers, upper, reaper, the guest's streams
//
// Everything else is close-on-exec and stays behind.
//
// # Streams
//
// Without a terminal the guest has three pipes, copied by [Streams]; what the
// guest wrote before it ended is delivered in full, since copying stops at the
// pipe's end and not at the process'. With a terminal it has the replica of a
// pseudo-terminal whose other side is copied raw. The guest's kernel is the
// Sentry and no process of it is in the terminal's session on the host, so the
// host's line discipline has nobody to signal for ^C, ^\ and ^Z: [Streams]
// watches for those characters and reports them to its caller, who signals the
// guest's foreground process group.
package launch
