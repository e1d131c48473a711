// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"math"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// allocateModes are the modes of fallocate(2) that volumes know besides 0.
const allocateModes = linux.FALLOC_FL_KEEP_SIZE | linux.FALLOC_FL_PUNCH_HOLE | linux.FALLOC_FL_ZERO_RANGE

// allocateOnVolumes lets fallocate(2) reserve, punch and zero ranges of files on
// volumes. gVisor's refuses all modes but 0 before it asks the file system, and
// its file system in memory would take any for 0.
func allocateOnVolumes(fallocate kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		mode, off, n := args[1].Uint64(), args[2].Int64(), args[3].Int64()
		if mode == 0 || mode&^allocateModes != 0 {
			return fallocate(t, number, args)
		}
		file := t.GetFile(args[0].Int())
		if file == nil {
			return 0, nil, linuxerr.EBADF
		}
		defer file.DecRef(t)
		switch {
		case !file.IsWritable():
			return 0, nil, linuxerr.EBADF
		case !isOnVolume(t, file):
			return fallocate(t, number, args)
		case off < 0 || n <= 0:
			return 0, nil, linuxerr.EINVAL
		case n > math.MaxInt64-off:
			return 0, nil, linuxerr.EFBIG
		}
		return 0, nil, file.Allocate(t, mode, uint64(off), uint64(n))
	}
}

// isOnVolume reports whether a file is on a volume, or on an overlay whose upper
// layer is: an overlay says of itself what its upper layer says, but for the
// type, and only what has a place on a host has an identity.
func isOnVolume(t *kernel.Task, file *vfs.FileDescription) bool {
	st, err := file.StatFS(t)
	if err != nil {
		return false
	}
	return st.Type == linux.EXT_SUPER_MAGIC || st.Type == linux.OVERLAYFS_SUPER_MAGIC && st.FSID != [2]int32{}
}
