// SPDX-License-Identifier: Apache-2.0

package container

import (
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/state"
)

// updateHostCgroup changes the host's limits that back the sandbox's own.
func updateHostCgroup(rec *state.Record, l control.Limits) error {
	return hostcgroup.Update(rec.Sandbox.PID, rec.ID, hostcgroup.Change{MemoryBytes: l.MemoryBytes, CPUMillis: l.CPUMillis})
}
