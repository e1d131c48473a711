// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-gvx-v2 lets containerd run containers in sandboxes of gvx:
// see package shim. The same binary is also the sandbox process, its gofer, and the
// guest's helpers.
//
// The directive keeps the Go runtime from holding the host's cgroup files open for
// as long as the process lives: a sandbox holds nothing that was not donated.
//
//go:debug containermaxprocs=0
package main

import (
	"os"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/boot"
	"z.gfire.dev/gvx/runtime/gofer"
	"z.gfire.dev/gvx/runtime/guestinit"
	"z.gfire.dev/gvx/shim"
)

func main() {
	boot.CloseStrays()
	switch os.Args[0] {
	case boot.ProcessName:
		boot.Main()
	case api.GoferName:
		gofer.Main()
	case api.InitName:
		guestinit.Main(os.Args)
	}
	shim.Main()
}
