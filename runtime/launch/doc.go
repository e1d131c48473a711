// SPDX-License-Identifier: Apache-2.0

// Package launch starts a sandbox process and stands at its side while it
// lives: it donates descriptors, holds the control channel, carries the
// guest's standard streams to and from the user, and learns how the process
// ended. It never decides what runs in the sandbox, keeps no record of it, and
// opens no file of an image or a store: its caller does.
//
// # Life of a sandbox process
//
// [Fork] executes this very binary again as "gvx-sandbox", with an empty
// environment, in "/" and in a session of its own. Most of what a process needs
// before it can run a guest does not depend on the guest, so it is forked before
// anything is known of the image, and makes ready while its launcher looks for
// that. [Embryo.Start] then numbers the descriptors, writes the spec to a sealed
// memory file and hands all of it over a socket, as package handover says. A run
// that comes to nothing before that discards the process; one whose launcher is
// gone ends by itself.
//
// The process dies with its launcher twice over: by the parent-death signal, and
// because the handover or the control channel closes. The parent-death signal is
// tied to the thread that forked, so the fork happens on a thread that stays
// until the child has been reaped.
//
// # Descriptors, as the sandbox process inherits them
//
//	0, 1     /dev/null
//	2        the log
//	3        the socket of the handover
//
// Everything else is close-on-exec and stays behind. What the spec names (control
// channel, control socket, layers, upper, volumes, reaper, the guest's streams)
// comes over that socket.
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
