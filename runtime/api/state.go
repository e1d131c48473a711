// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
)

// State is where a container is in its life.
type State string

// The states of the OCI runtime specification, in order.
const (
	StateCreating State = "creating"
	StateCreated  State = "created"
	StateRunning  State = "running"
	StateStopped  State = "stopped"
)

// Kind classifies an error across the control channel, the SDK and the
// command line, which maps it to an exit code.
type Kind string

const (
	// KindInvalid is bad input: a flag, a spec, a reference.
	KindInvalid Kind = "invalid"
	// KindNotFound is a thing that does not exist: an image, a container.
	KindNotFound Kind = "not-found"
	// KindExists is a name or id already in use.
	KindExists Kind = "exists"
	// KindState is an operation that the present state does not allow.
	KindState Kind = "state"
	// KindCommandNotFound is a guest command that does not exist: exit code 127.
	KindCommandNotFound Kind = "command-not-found"
	// KindCommandNotExecutable is a guest command that cannot run: exit code 126.
	KindCommandNotExecutable Kind = "command-not-executable"
	// KindImage is a broken, hostile or unsupported image, or one to be run that
	// does not exist.
	KindImage Kind = "image"
	// KindVolume is a damaged volume, or a file that is none.
	KindVolume Kind = "volume"
	// KindKilled is a process of ours that somebody on the host killed: a person,
	// or the host when it was short of memory.
	KindKilled Kind = "killed"
	// KindLimit is a named limit that was reached.
	KindLimit Kind = "limit"
	// KindNoSpace is a full disk or quota.
	KindNoSpace Kind = "no-space"
	// KindPermission is something the host refuses to this user.
	KindPermission Kind = "permission"
	// KindUnsupported is something this host or version cannot do.
	KindUnsupported Kind = "unsupported"
	// KindUnavailable is a host or registry that does not answer, or fails.
	KindUnavailable Kind = "unavailable"
	// KindInternal is our own fault.
	KindInternal Kind = "internal"
)

// Error is an error with a kind. Its message names operation, object and
// cause; the kind is for programs.
type Error struct {
	Kind Kind
	// Err holds the message and the chain.
	Err error
}

// Error returns the message, without the kind.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the chain below the kind.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an error of the given kind; %w works as in fmt.Errorf.
func Errorf(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of the outermost [Error] in err's chain, and
// KindInternal when there is none. KindOf(nil) is "".
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}
