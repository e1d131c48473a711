// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hosttree

import (
	"archive/tar"
	"errors"
	"os"
)

func identify(os.FileInfo) (fileID, bool) { return fileID{}, false }

func addXattrs(*tar.Header, string, os.FileInfo) error { return nil }

func setXattr(*os.File, string, string) error { return errors.ErrUnsupported }

func makeNode(*os.Root, *tar.Header) error { return errors.ErrUnsupported }
