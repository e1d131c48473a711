// SPDX-License-Identifier: Apache-2.0

package gvx

import (
	"errors"
	"fmt"
	"io/fs"
	goruntime "runtime"
	"testing"
)

// TestKindsAreToldApart: an error is of its kind alone, also for who asks by package
// io/fs, and keeps its cause.
func TestKindsAreToldApart(t *testing.T) {
	cause := errors.New("cause")
	files := map[ErrorKind]error{KindNotFound: fs.ErrNotExist, KindExists: fs.ErrExist, KindPermission: fs.ErrPermission}
	for _, kind := range []ErrorKind{KindInvalid, KindNotFound, KindExists, KindPermission, KindInternal} {
		err := fmt.Errorf("wrapped: %w", errorf(kind, "do", "%w", cause))
		for _, other := range []*Error{ErrInvalid, ErrNotFound, ErrExists, ErrPermission, ErrInternal} {
			if errors.Is(err, other) != (other.Kind == kind) {
				t.Errorf("%v is %v: %v", err, other, errors.Is(err, other))
			}
		}
		for k, target := range files {
			if errors.Is(err, target) != (k == kind) {
				t.Errorf("%s is %v: %v", kind, target, errors.Is(err, target))
			}
		}
		if !errors.Is(err, cause) {
			t.Errorf("%v has lost its cause", err)
		}
	}
}

// TestSandboxesSayThatTheyNeedLinux, elsewhere, and what works on files works.
func TestSandboxesSayThatTheyNeedLinux(t *testing.T) {
	if goruntime.GOOS == "linux" {
		t.Skip("here they run")
	}
	sb, err := New(t.Context(), Config{OCIImage: "debian:12"})
	if sb != nil || !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, %v", sb, err)
	}
	var typed *Error
	if !errors.As(err, &typed) || typed.Op == "" {
		t.Errorf("%+v", err)
	}
}

// TestOpenVolumeSaysWhatIsMissing, on every system: volumes need no Linux.
func TestOpenVolumeSaysWhatIsMissing(t *testing.T) {
	if _, err := OpenVolume("no/such/volume.ext4"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}
