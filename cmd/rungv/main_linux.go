// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/boot"
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
