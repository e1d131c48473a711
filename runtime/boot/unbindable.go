// SPDX-License-Identifier: Apache-2.0

// Unbindable mounts, which gVisor takes for private ones.

package boot

import (
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// maxUnbindable bounds how many mounts are remembered. Their numbers are never
// used again, so those of mounts that are gone stay.
const maxUnbindable = 4096

// unbindableMounts are those that may not be bound elsewhere, by their numbers.
type unbindableMounts struct {
	mu sync.Mutex
	m  map[uint64]struct{}
}

// set notes whether a mount is unbindable, and says whether there was room.
func (u *unbindableMounts) set(id uint64, is bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !is {
		delete(u.m, id)
		return true
	}
	if len(u.m) >= maxUnbindable {
		return false
	}
	if u.m == nil {
		u.m = make(map[uint64]struct{})
	}
	u.m[id] = struct{}{}
	return true
}

func (u *unbindableMounts) has(id uint64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.m[id]
	return ok
}

// mountCall refuses to bind what is unbindable, and learns what is. Of the mounts
// below one that is bound with all of them, gVisor still takes every one along.
func (sb *sandbox) mountCall(mount kernel.SyscallFn) kernel.SyscallFn {
	const propagation = linux.MS_PRIVATE | linux.MS_SLAVE | linux.MS_SHARED | linux.MS_UNBINDABLE
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		flags := args[3].Uint64()
		if flags&linux.MS_BIND != 0 && flags&linux.MS_REMOUNT == 0 && sb.isUnbindable(t, args[0]) {
			return 0, nil, linuxerr.EINVAL
		}
		ret, control, err := mount(t, number, args)
		if err == nil && flags&propagation != 0 && flags&(linux.MS_BIND|linux.MS_REMOUNT|linux.MS_MOVE) == 0 {
			if vd, found := resolve(t, linux.AT_FDCWD, args[1], true); found == nil {
				id := vd.Mount().ID
				vd.DecRef(t)
				if !sb.unbindable.set(id, flags&linux.MS_UNBINDABLE != 0) {
					return 0, nil, linuxerr.ENOSPC
				}
			}
		}
		return ret, control, err
	}
}

func (sb *sandbox) isUnbindable(t *kernel.Task, source arch.SyscallArgument) bool {
	vd, err := resolve(t, linux.AT_FDCWD, source, true)
	if err != nil {
		return false // mount(2) says what is wrong with it.
	}
	defer vd.DecRef(t)
	return sb.unbindable.has(vd.Mount().ID)
}
