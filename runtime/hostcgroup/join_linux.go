// SPDX-License-Identifier: Apache-2.0

// Groups that others have made, for processes of the host that are no container's.

package hostcgroup

import (
	"fmt"
	"os"
	"path"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"

	"z.gfire.dev/gvx/runtime/api"
)

// Join moves a process of the host into the cgroup at path, below the root of each
// hierarchy, which has to exist in one at least.
func Join(p string, pid int) error {
	m, err := manager.New(&cgroups.Cgroup{Path: path.Clean("/" + p), Resources: &cgroups.Resources{SkipDevices: true}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	joined := false
	for _, dir := range m.GetPaths() {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := cgroups.WriteCgroupProc(dir, pid); err != nil {
			return availability(fmt.Sprintf("move process %d", pid), err)
		}
		joined = true
	}
	if !joined {
		return api.Errorf(api.KindNotFound, "no such cgroup")
	}
	return nil
}
