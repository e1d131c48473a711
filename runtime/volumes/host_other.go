// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package volumes

import (
	"errors"
	"os"

	"z.gfire.dev/gvx/ext4lite"
)

func isNoSpace(err error) bool { return errors.Is(err, ext4lite.ENOSPC) }

// diskBytes is the length: how much of it is sparse is not asked here.
func diskBytes(fi os.FileInfo) int64 { return fi.Size() }
