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
	"runtime/debug"

	"z.gfire.dev/gvx/runtime/cli"
)

// commandGCPercent has the first collection at 32 MiB instead of 4; a pull of a
// large image still collects.
const commandGCPercent = 800

func main() {
	becomeSandbox()
	// A command ends before garbage matters: what the packages set up at start
	// alone would have the collector run once, in every `rungv run`.
	debug.SetGCPercent(commandGCPercent)
	os.Exit(serve(func() int { return cli.Main(os.Args[1:]) }))
}
