// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package lockdown

import (
	"fmt"
	"runtime"
	"syscall"

	"z.gfire.dev/gvx/runtime/api"
)

// errUnsupported is the answer of everything that confines a process.
func errUnsupported(what string) error {
	return api.Errorf(api.KindUnsupported, "%s: sandboxes run on Linux, this is %s", what, runtime.GOOS)
}

// DetectGVisor reports false: gVisor sandboxes are Linux.
func DetectGVisor() bool { return false }

// PlanOuter plans nothing.
func PlanOuter(uint32) *Outer { return &Outer{} }

// Without returns an empty plan.
func (o *Outer) Without() *Outer { return &Outer{} }

// Apply fails.
func (o *Outer) Apply(*syscall.SysProcAttr) error { return errUnsupported("confine sandbox process") }

// Refused reports false.
func Refused(error) bool { return false }

// Doctor says that no sandbox can run here.
func Doctor(string) []Layer {
	return []Layer{{
		Name: "kernel", State: StateMissing, Fatal: true,
		Detail:  fmt.Sprintf("%s/%s", runtime.GOOS, runtime.GOARCH),
		Meaning: "sandboxes run on Linux; images and volumes can be prepared here",
	}}
}
