// SPDX-License-Identifier: Apache-2.0

//go:build !unix

// Elsewhere there are no sandboxes, hence no containers to keep.

package state

import (
	"os"

	"z.gfire.dev/gvx/runtime/api"
)

var errNoLocks = api.Errorf(api.KindUnsupported, "containers run on Linux: use a Linux host")

func waitLock(string) (*os.File, error) { return nil, errNoLocks }

func tryLock(string) (*os.File, bool, error) { return nil, false, errNoLocks }

func isLocked(string) (bool, error) { return false, errNoLocks }

func waitShared(string) error { return errNoLocks }

func checkOwner(string) error { return nil }

func isNoSpace(error) bool { return false }
