// SPDX-License-Identifier: Apache-2.0

// Extended attributes: those that belong to a file's data, and no others.

package gofer

import (
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
)

const (
	userPrefix     = "user."
	fileCapability = "security.capability"
	// maxXattrBytes is Linux' limit on a value and on a list.
	maxXattrBytes = 64 << 10
)

// permitted says whether guests may use an attribute. The rest is the host's:
// labels, access lists, and what its own overlays keep there.
func permitted(name string) bool {
	return strings.HasPrefix(name, userPrefix) && name != userPrefix || name == fileCapability
}

// GetXattr implements lisafs.ControlFDImpl.
func (f *file) GetXattr(name string, size uint32, buffer func(uint32) []byte) (uint16, error) {
	if !permitted(name) {
		return 0, unix.ENODATA
	}
	if size == 0 {
		// How long it is: the client wants the value, whatever size it is.
		n, err := unix.Getxattr(f.self(), name, nil)
		if err != nil || n == 0 {
			return 0, err
		}
		size = uint32(n)
	}
	n, err := unix.Getxattr(f.self(), name, buffer(min(size, maxXattrBytes-1)))
	return uint16(max(n, 0)), err
}

// SetXattr implements lisafs.ControlFDImpl.
func (f *file) SetXattr(name, value string, flags uint32) error {
	if !permitted(name) || name == fileCapability && f.tree.noSUID {
		return unix.EOPNOTSUPP
	}
	return unix.Setxattr(f.self(), name, []byte(value), int(flags))
}

// ListXattr implements lisafs.ControlFDImpl.
func (f *file) ListXattr(uint64) (lisafs.StringArray, error) {
	buf := make([]byte, maxXattrBytes)
	n, err := unix.Listxattr(f.self(), buf)
	if err != nil {
		return nil, err
	}
	var names lisafs.StringArray
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if permitted(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// RemoveXattr implements lisafs.ControlFDImpl.
func (f *file) RemoveXattr(name string) error {
	if !permitted(name) {
		return unix.ENODATA
	}
	return unix.Removexattr(f.self(), name)
}
