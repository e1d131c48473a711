// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"sync"
	"weak"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// A volume as the upper layer of an overlay.
//
// gVisor's overlay keeps whiteouts with plain operations on its upper layer, and
// ends the Sentry when one fails that it has already acted upon: a full or
// failing disk would end the sandbox. Through the mounts that overlays use, and
// no others, the volume answers so that this cannot happen:
//
//   - a rename leaves a whiteout in the same transaction, since the overlay puts
//     one there next; so the two can neither be torn apart by a crash, nor can
//     the second fail;
//   - making a whiteout where there is one succeeds;
//   - the last inodes of a volume are set aside for whiteouts;
//   - once a volume has failed and takes no more changes, a whiteout and the
//     mark of an opaque directory are reported made. The sandbox lives on to see
//     every other change refused.
//
// And it cures that overlay renames over its own whiteout in its caller's name,
// whom a sticky directory keeps from removing what is root's.

// whiteoutInodes are set aside for whiteouts: more than there are operations of
// overlays under way at once.
const whiteoutInodes = 64

// uppers are the mounts through which overlays use a file system as their upper
// layer. They are not kept alive.
type uppers struct {
	mu sync.RWMutex
	m  map[weak.Pointer[vfs.Mount]]struct{}
}

// MarkUpper tells the file system of mnt, if it is one of this package, that an
// overlay uses that mount as its upper layer. It must be used by nobody else.
func MarkUpper(mnt *vfs.Mount) {
	fs, ok := mnt.Filesystem().Impl().(*filesystem)
	if !ok || fs.w == nil {
		return
	}
	fs.uppers.mu.Lock()
	defer fs.uppers.mu.Unlock()
	for w := range fs.uppers.m {
		if w.Value() == nil {
			delete(fs.uppers.m, w)
		}
	}
	if fs.uppers.m == nil {
		fs.uppers.m = make(map[weak.Pointer[vfs.Mount]]struct{})
	}
	fs.uppers.m[weak.Make(mnt)] = struct{}{}
}

// isUpper reports whether an overlay uses mnt as its upper layer.
func (fs *filesystem) isUpper(mnt *vfs.Mount) bool {
	fs.uppers.mu.RLock()
	defer fs.uppers.mu.RUnlock()
	if len(fs.uppers.m) == 0 {
		return false
	}
	_, ok := fs.uppers.m[weak.Make(mnt)]
	return ok
}

// isWhiteout reports whether the inode hides a name of lower layers.
func (i *inode) isWhiteout() bool {
	if i.kind != linux.S_IFCHR {
		return false
	}
	a := i.attr()
	return a.RdevMajor == 0 && a.RdevMinor == 0
}

// makesWhiteout reports whether an overlay makes a whiteout through mnt.
func (fs *filesystem) makesWhiteout(mnt *vfs.Mount, opts *vfs.MknodOptions) bool {
	return opts.Mode.FileType() == linux.S_IFCHR && opts.DevMajor == 0 && opts.DevMinor == 0 && fs.isUpper(mnt)
}

// forgive turns the error of a change that an overlay cannot do without into
// success, if the volume has failed for good.
func (fs *filesystem) forgive(mnt *vfs.Mount, err error) error {
	if err == nil || mnt.ReadOnly() || !fs.isUpper(mnt) {
		return err
	}
	if fs.w.Failed() != nil {
		return nil
	}
	return err
}

// roomForFile reports ENOSPC if only the inodes for whiteouts are left.
func (fs *filesystem) roomForFile() error {
	if fs.w.StatFS().FilesFree <= whiteoutInodes {
		return linuxerr.ENOSPC
	}
	return nil
}
