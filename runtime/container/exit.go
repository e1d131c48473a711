// SPDX-License-Identifier: Apache-2.0

package container

import "z.gfire.dev/gvx/runtime/api"

// Docker's exit codes for a container that did not run.
const (
	exitOwnFailure    = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// ExitCode is docker's exit code for an error: 127 for a command that does not
// exist, 126 for one that cannot run, 125 for a failure of ours.
func ExitCode(err error) int {
	switch api.KindOf(err) {
	case "":
		return 0
	case api.KindCommandNotFound:
		return exitNotFound
	case api.KindCommandNotExecutable:
		return exitNotExecutable
	}
	return exitOwnFailure
}
