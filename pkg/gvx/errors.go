// SPDX-License-Identifier: Apache-2.0

package gvx

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"z.gfire.dev/gvx/runtime/api"
)

// ErrorKind says what kind of thing went wrong.
type ErrorKind string

// The kinds of error.
const (
	KindInvalid     ErrorKind = "invalid"     // a field of the configuration, an argument
	KindRuntime     ErrorKind = "runtime"     // rungv is missing, too old, or cannot be run
	KindImage       ErrorKind = "image"       // an image is missing, broken or refused
	KindVolume      ErrorKind = "volume"      // a volume is damaged or refused
	KindNotFound    ErrorKind = "not found"   // a file, a volume, a sandbox does not exist
	KindExists      ErrorKind = "exists"      // a name or file is taken
	KindStart       ErrorKind = "start"       // the guest's command is missing or cannot be run
	KindLimit       ErrorKind = "limit"       // a named limit or the disk is exhausted
	KindOOM         ErrorKind = "oom"         // the memory limit killed the guest
	KindTimeout     ErrorKind = "timeout"     // a context's deadline passed
	KindCanceled    ErrorKind = "canceled"    // a context was cancelled
	KindExit        ErrorKind = "exit"        // a command ended with a status other than 0
	KindKilled      ErrorKind = "killed"      // somebody on the host killed rungv or the sandbox, or the host was short of memory
	KindOutput      ErrorKind = "output"      // a Writer of the caller's did not take all that was written
	KindState       ErrorKind = "state"       // not now: closed, not started, started already
	KindPermission  ErrorKind = "permission"  // the host refuses
	KindUnavailable ErrorKind = "unavailable" // a registry or service does not answer
	KindUnsupported ErrorKind = "unsupported" // not on this host, not in this version
	KindInternal    ErrorKind = "internal"    // a fault of gvx
)

// For errors.Is: an [Error] is equal to the value of its kind.
var (
	ErrInvalid     = &Error{Kind: KindInvalid}
	ErrRuntime     = &Error{Kind: KindRuntime}
	ErrImage       = &Error{Kind: KindImage}
	ErrVolume      = &Error{Kind: KindVolume}
	ErrNotFound    = &Error{Kind: KindNotFound}
	ErrExists      = &Error{Kind: KindExists}
	ErrStart       = &Error{Kind: KindStart}
	ErrLimit       = &Error{Kind: KindLimit}
	ErrOOM         = &Error{Kind: KindOOM}
	ErrTimeout     = &Error{Kind: KindTimeout}
	ErrCanceled    = &Error{Kind: KindCanceled}
	ErrExit        = &Error{Kind: KindExit}
	ErrKilled      = &Error{Kind: KindKilled}
	ErrOutput      = &Error{Kind: KindOutput}
	ErrState       = &Error{Kind: KindState}
	ErrPermission  = &Error{Kind: KindPermission}
	ErrUnavailable = &Error{Kind: KindUnavailable}
	ErrUnsupported = &Error{Kind: KindUnsupported}
	ErrInternal    = &Error{Kind: KindInternal}
)

// Error is every error of this package.
type Error struct {
	Kind ErrorKind
	// Op is what was being done: "create sandbox".
	Op string
	// Exit is how the guest or command ended, where it did.
	Exit *ExitStatus
	// Err is the cause.
	Err error
}

// Error says what was being done, and why it failed.
func (e *Error) Error() string {
	switch {
	case e.Err == nil && e.Op == "":
		return "gvx: " + string(e.Kind)
	case e.Err == nil:
		return fmt.Sprintf("gvx: %s: %s", e.Op, e.Kind)
	}
	return fmt.Sprintf("gvx: %s: %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the Err… value of the error's kind, or what package
// io/fs has for it: fs.ErrNotExist, fs.ErrExist, fs.ErrPermission.
func (e *Error) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return e.Kind == KindNotFound
	case fs.ErrExist:
		return e.Kind == KindExists
	case fs.ErrPermission:
		return e.Kind == KindPermission
	}
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Err == nil && t.Kind == e.Kind
}

// errorf makes an error; %w works as in fmt.Errorf.
func errorf(kind ErrorKind, op, format string, args ...any) *Error {
	return &Error{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}

// contextError is what a context that is done means for op.
func contextError(op string, ctx context.Context) *Error {
	kind := KindCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = KindTimeout
	}
	return &Error{Kind: kind, Op: op, Err: context.Cause(ctx)}
}

// kinds translates rungv's kinds of error. What is not here is internal.
var kinds = map[api.Kind]ErrorKind{
	api.KindInvalid:              KindInvalid,
	api.KindNotFound:             KindNotFound,
	api.KindExists:               KindExists,
	api.KindState:                KindState,
	api.KindCommandNotFound:      KindStart,
	api.KindCommandNotExecutable: KindStart,
	api.KindImage:                KindImage,
	api.KindVolume:               KindVolume,
	api.KindKilled:               KindKilled,
	api.KindLimit:                KindLimit,
	api.KindNoSpace:              KindLimit,
	api.KindPermission:           KindPermission,
	api.KindUnsupported:          KindUnsupported,
	api.KindUnavailable:          KindUnavailable,
}

// failure is the error that rungv reported.
func failure(op string, e *api.Event) *Error {
	kind, ok := kinds[e.Kind]
	if !ok {
		kind = KindInternal
	}
	return &Error{Kind: kind, Op: op, Err: errors.New(e.Message)}
}
