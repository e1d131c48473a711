// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package container

import (
	"context"
	"path/filepath"

	"z.gfire.dev/gvx/runtime/api"
)

const controlSocket = "control.sock"

// Run needs Linux.
func (r *Runner) Run(context.Context, RunOptions) (api.ExitStatus, error) {
	return api.ExitStatus{}, api.Errorf(api.KindUnsupported, "run a container: sandboxes need Linux: use a Linux host")
}

func socketPath(dir string) (string, func(), error) {
	return filepath.Join(dir, controlSocket), func() {}, nil
}

func killProcess(int) error {
	return api.Errorf(api.KindUnsupported, "kill a sandbox: sandboxes need Linux")
}
