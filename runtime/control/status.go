// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"z.gfire.dev/gvx/runtime/api"
)

// ErrClosed says that the sandbox closed the control channel: it has ended or
// it is ending.
var ErrClosed = errors.New("the sandbox closed its control channel")

// codeOf gives each kind its nearest status code, for readers of the wire that
// know nothing of kinds. It is also the set of kinds that may cross.
var codeOf = map[api.Kind]codes.Code{
	api.KindInvalid:              codes.InvalidArgument,
	api.KindNotFound:             codes.NotFound,
	api.KindExists:               codes.AlreadyExists,
	api.KindState:                codes.FailedPrecondition,
	api.KindCommandNotFound:      codes.NotFound,
	api.KindCommandNotExecutable: codes.PermissionDenied,
	api.KindImage:                codes.DataLoss,
	api.KindLimit:                codes.ResourceExhausted,
	api.KindNoSpace:              codes.ResourceExhausted,
	api.KindPermission:           codes.PermissionDenied,
	api.KindUnsupported:          codes.Unimplemented,
	api.KindInternal:             codes.Internal,
}

// ToStatus turns an error of the sandbox into one that ttrpc carries with its
// kind. ToStatus(nil) is nil.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	kind := api.KindOf(err)
	code, ok := codeOf[kind]
	if !ok {
		kind, code = api.KindInternal, codes.Internal
	}
	return status.Error(code, string(kind)+": "+Clean(err.Error(), maxMessageBytes))
}

// FromStatus turns what a ttrpc call returned into an [api.Error] with the
// kind that [ToStatus] gave it. A channel that closed is [ErrClosed]; a
// context's end stays what it is.
func FromStatus(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ttrpc.ErrClosed):
		return ErrClosed
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		// Not from the sandbox but from the connection: reset, broken pipe.
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if kind, text, ok := strings.Cut(s.Message(), ": "); ok {
		if _, known := codeOf[api.Kind(kind)]; known {
			return api.Errorf(api.Kind(kind), "%s", Clean(text, maxMessageBytes))
		}
	}
	text := Clean(s.Message(), maxMessageBytes)
	if s.Code() == codes.Unimplemented {
		return api.Errorf(api.KindUnsupported, "the sandbox cannot do this: %s", text)
	}
	return api.Errorf(api.KindInternal, "sandbox: %s", text)
}

// Clean makes text from a sandbox fit for a terminal or a log: valid UTF-8, no
// control characters (a guest must not move its user's cursor) except tab and
// newline, at most limitBytes long.
func Clean(text string, limitBytes int) string {
	if len(text) > limitBytes {
		cut := limitBytes
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == utf8.RuneError || !unicode.IsPrint(r) && !unicode.IsSpace(r) || unicode.IsControl(r):
			return '�'
		}
		return r
	}, text)
}
