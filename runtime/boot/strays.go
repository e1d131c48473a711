// SPDX-License-Identifier: Apache-2.0

package boot

import (
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
)

// gVisor's package gofer opens a pipe when a program that links it begins, which it
// needs to open pipes of the host: here none is ([mountTree]). Without
// close-on-exec it would go to every program that such a process executes, the
// guest's command behind the reaper among them. Its numbers are not exported.
//
//go:linkname tempPipeReadFD gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer.tempPipeReadFD
var tempPipeReadFD int

//go:linkname tempPipeWriteFD gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer.tempPipeWriteFD
var tempPipeWriteFD int

// CloseStrays closes what packages have opened before main. It must be called first
// in main, whatever the process is going to be.
func CloseStrays() {
	for _, fd := range []*int{&tempPipeReadFD, &tempPipeWriteFD} {
		if *fd > unix.Stderr {
			unix.Close(*fd)
		}
		*fd = -1
	}
}
