// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package volumes

import (
	"errors"
	"os"
)

func unlinked(dir, _ string) (*os.File, error) { return unlinkedByName(dir) }

func link(*os.File, string) error { return errors.ErrUnsupported }

func renameNew(from, to string) error { return os.Rename(from, to) }

func canLink(string) bool { return false }
