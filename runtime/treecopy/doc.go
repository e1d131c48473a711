// SPDX-License-Identifier: Apache-2.0

// Package treecopy copies files and directories as a tar stream between two
// sides that do not trust each other: a host and a container's inside.
//
// The host's side calls [Pack], [Resolve] and [Unpack] in rungv. The
// container's side is this same binary, run inside the container as a process
// of its own ([GuestMain]), where the container's kernel resolves every path:
// so a link in a container leads nowhere but into that container. On the host
// every entry is placed below one directory that is open, whatever names and
// links the stream holds; no device, pipe or socket is made there, and no
// set-user-id bit survives.
//
// It owns no connection to a sandbox, and decides nothing about who may copy.
package treecopy

// GuestName is argv[0] of the container's side.
const GuestName = "gvx-copy"

// Exit codes of the container's side.
const (
	exitFailed   = 1
	exitNotFound = 2
)

const (
	// maxTimes bounds how many directories' times are kept to be set at the
	// end, when nothing is written into them any more.
	maxTimes = 1 << 20
	// maxLinks bounds how many files with several names are remembered.
	maxLinks = 1 << 20
	// copyBytes is what is read and written at once.
	copyBytes = 256 << 10
)

// missingError says that the path a user gave does not exist.
type missingError struct{ error }

func (e missingError) Unwrap() error { return e.error }

// paxXattr is the prefix under which GNU tar and others keep attributes.
const paxXattr = "SCHILY.xattr."

// Source describes what is copied.
type Source struct {
	// Base is its name where the destination is a directory.
	Base string
	// Dir says that it is one; Contents that only what is in it is meant.
	Dir      bool
	Contents bool
}
