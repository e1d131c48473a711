// SPDX-License-Identifier: Apache-2.0

// Command rungv runs containers in unprivileged, self-locked user-space
// kernels. See package runtime/cli for the command line; on Linux the same
// binary is also the sandbox process, and the guest's reaper.
//
// The directive keeps the Go runtime from holding the host's cgroup files open
// for as long as the process lives: a sandbox holds nothing that was not donated.
// It sets GOMAXPROCS itself.
//
//go:debug containermaxprocs=0
package main

import (
	"os"

	"z.gfire.dev/gvx/runtime/cli"
)

func main() {
	becomeSandbox()
	os.Exit(cli.Main(os.Args[1:]))
}
