// SPDX-License-Identifier: Apache-2.0

package lockdown

import (
	"fmt"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// maxOpenFiles bounds a process that reserves numbers: the kernel's table is as
	// long as the highest one, 8 bytes each.
	maxOpenFiles = 1 << 17
	// minOpenFiles have to be left below them.
	minOpenFiles = 256
)

// ReserveAbove moves descriptors to the highest numbers that the process may have,
// in their order, and then lowers the limit on open files to below them. From then on
// the kernel gives none of these numbers to anything else, closed or not: a filter
// may rely on them. It returns the first; fds are changed.
//
// It must be called before the allow-list, which forbids to raise the limit again
// and to choose a descriptor's number.
func ReserveAbove(fds []*api.FD) (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit on open files: %w", err)
	}
	top := min(limit.Max, maxOpenFiles)
	if top < uint64(minOpenFiles+len(fds)) {
		return 0, api.Errorf(api.KindLimit, "at most %d open files, %d of them for host directories: raise the hard limit (ulimit -Hn)", top, len(fds))
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: top, Max: limit.Max}); err != nil {
		return 0, fmt.Errorf("raise the limit on open files to %d: %w", top, err)
	}
	first := int(top) - len(fds)
	for i, fd := range fds {
		if err := unix.Dup3(int(*fd), first+i, unix.O_CLOEXEC); err != nil {
			return 0, fmt.Errorf("move descriptor %d to %d: %w", *fd, first+i, err)
		}
		unix.Close(int(*fd))
		*fd = api.FD(first + i)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(first), Max: uint64(first)}); err != nil {
		return 0, fmt.Errorf("lower the limit on open files to %d: %w", first, err)
	}
	return first, nil
}
