// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
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
//   - where no layer below has the name there is nothing to hide: a rename leaves no
//     whiteout, and the one that the overlay then asks for is reported made, as is
//     the mark of an opaque directory. An image made of such a layer would carry
//     them all;
//   - making a whiteout where there is one succeeds, and where there is a file: the
//     overlay asks for one after a rename of one name of a file to another of its
//     names, too, which changes nothing;
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

// Lowers are the layers below an overlay's upper one, topmost first. They carry no
// references: the overlay holds them for as long as it uses its upper layer.
type Lowers struct {
	VFS   *vfs.VirtualFilesystem
	Creds *auth.Credentials // that may search all of them
	Roots []vfs.VirtualDentry

	// spared is where a rename has left no whiteout, until the overlay asks for it:
	// it has no two renames under way at once.
	spared atomic.Pointer[place]
}

// place is a name in the directory of a dentry.
type place struct {
	key  uint64
	name string
}

// spare has the next whiteout at name in dir not made: nothing is hidden there.
func (l *Lowers) spare(dir *dentry, name string) { l.spared.Store(&place{dir.key, name}) }

// spares reports whether the whiteout at name in dir is the one not to be made.
func (l *Lowers) spares(dir *dentry, name string) bool {
	p := l.spared.Swap(nil)
	return p != nil && *p == place{dir.key, name}
}

// uppers are the mounts through which overlays use a file system as their upper
// layer, with what is below. The mounts are not kept alive.
type uppers struct {
	mu sync.RWMutex
	m  map[weak.Pointer[vfs.Mount]]*Lowers
}

// MarkUpper tells the file system of mnt, if it is one of this package, that an
// overlay uses that mount as its upper layer, above lowers. It must be used by
// nobody else.
func MarkUpper(mnt *vfs.Mount, lowers *Lowers) {
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
		fs.uppers.m = make(map[weak.Pointer[vfs.Mount]]*Lowers)
	}
	fs.uppers.m[weak.Make(mnt)] = lowers
}

// below is what an overlay has below mnt, nil if mnt is no overlay's upper layer.
func (fs *filesystem) below(mnt *vfs.Mount) *Lowers {
	fs.uppers.mu.RLock()
	defer fs.uppers.mu.RUnlock()
	if len(fs.uppers.m) == 0 {
		return nil
	}
	return fs.uppers.m[weak.Make(mnt)]
}

// isUpper reports whether an overlay uses mnt as its upper layer.
func (fs *filesystem) isUpper(mnt *vfs.Mount) bool { return fs.below(mnt) != nil }

// have reports whether something is to be hidden at name in the directory dir of
// the upper layer mnt. What is uncertain is to be hidden. No lock of the upper
// layer's file system may be held: layers may share it.
//
// A directory that was merged and then renamed goes on to show, while the overlay
// has it in its cache, what the lower layers have at its old place, opaque or not:
// there, and below, everything is uncertain.
func (l *Lowers) have(ctx context.Context, mnt *vfs.Mount, dir *dentry, name string) bool {
	path, ok := dir.pathBelow(mnt.Root().Impl().(*dentry))
	if !ok {
		return true
	}
	at := fspath.Parse(strings.Join(append(path, name), "/"))
	for _, root := range l.Roots {
		st, err := l.VFS.StatAt(ctx, l.Creds, &vfs.PathOperation{Root: root, Start: root, Path: at}, &vfs.StatOptions{Mask: linux.STATX_TYPE})
		switch {
		case linuxerr.Equals(linuxerr.ENOENT, err), linuxerr.Equals(linuxerr.ENOTDIR, err):
		case err == nil && st.Mode&linux.S_IFMT == linux.S_IFCHR && st.RdevMajor == 0 && st.RdevMinor == 0:
			return false // What is below a whiteout is hidden already.
		default:
			return true
		}
	}
	return false
}

// pathBelow are the names that lead from an ancestor, or from d itself, to d. It
// reports false if d is not below it, or a directory on the way was moved.
func (d *dentry) pathBelow(ancestor *dentry) ([]string, bool) {
	d.fs.treeMu.RLock()
	defer d.fs.treeMu.RUnlock()
	var path []string
	for ; d != ancestor; d = d.parent {
		if d.parent == nil || d.moved.Load() {
			return nil, false
		}
		path = append(path, d.name)
	}
	slices.Reverse(path)
	return path, true
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
