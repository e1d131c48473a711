// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"z.gfire.dev/gvx/runtime/api"
)

// kinds are containerd's words for ours. What is missing is "unknown": a guest's
// command that does not exist, too, since containerd's "not found" is about tasks.
var kinds = map[api.Kind]error{
	api.KindInvalid:     errdefs.ErrInvalidArgument,
	api.KindNotFound:    errdefs.ErrNotFound,
	api.KindExists:      errdefs.ErrAlreadyExists,
	api.KindState:       errdefs.ErrFailedPrecondition,
	api.KindImage:       errdefs.ErrInvalidArgument,
	api.KindLimit:       errdefs.ErrResourceExhausted,
	api.KindNoSpace:     errdefs.ErrResourceExhausted,
	api.KindPermission:  errdefs.ErrPermissionDenied,
	api.KindUnsupported: errdefs.ErrNotImplemented,
	api.KindUnavailable: errdefs.ErrUnavailable,
	api.KindVolume:      errdefs.ErrInvalidArgument,
}

// toGRPC gives an error the form in which it crosses to containerd. The text is
// all that a user sees of it, so it goes whole.
func toGRPC(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errgrpc.ToGRPC(err)
	}
	if class, ok := kinds[api.KindOf(err)]; ok {
		// Joined, not wrapped: containerd's class has its own text, which the
		// message need not repeat.
		return errgrpc.ToGRPC(classified{err, class})
	}
	return errgrpc.ToGRPC(err)
}

// classified is an error with containerd's class.
type classified struct {
	error
	class error
}

// Unwrap returns the chains of both.
func (c classified) Unwrap() []error { return []error{c.error, c.class} }

// fail makes an error of one of containerd's classes.
func fail(class error, format string, args ...any) error {
	return errgrpc.ToGRPC(classified{fmt.Errorf(format, args...), class})
}
