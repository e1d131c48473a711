// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/boot"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/gofer"
	"z.gfire.dev/gvx/runtime/guestinit"
	"z.gfire.dev/gvx/runtime/treecopy"
)

// becomeSandbox does not return in a process that a launcher has started as a
// sandbox or as its gofer, or that runs in one as a helper.
func becomeSandbox() {
	boot.CloseStrays()
	if os.Args[0] == boot.ProcessName {
		boot.Main()
	}
	if os.Args[0] == api.GoferName {
		gofer.Main()
	}
	if os.Args[0] == api.InitName {
		guestinit.Main(os.Args)
	}
	if os.Args[0] == treecopy.GuestName {
		treecopy.GuestMain(os.Args)
	}
}

// A process that stands for a container of an OCI bundle keeps its first thread for
// what the host is to see of that: only an init function can lock it to main.
func init() {
	if container.StandsForTask(os.Args) {
		runtime.LockOSThread()
	}
}

// serve runs the command line.
func serve(run func() int) int {
	if container.StandsForTask(os.Args) {
		return container.ServeFirstThread(run)
	}
	return run()
}
