// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"strings"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// upperDirectory narrows the mount of a writable layer to a directory in it, which
// is made where it is missing: others who read such a volume expect what was
// written there, beside directories of their own. It takes the mount over.
func (m *mounter) upperDirectory(mnt *vfs.Mount, dir string) (*vfs.Mount, error) {
	defer mnt.DecRef(m.ctx)
	root := vfs.MakeVirtualDentry(mnt, mnt.Root())
	made := ""
	for _, name := range strings.Split(dir, "/") {
		made += "/" + name
		at := pathAt(root, made)
		// A symlink in a volume leads nowhere.
		at.FollowFinalSymlink = false
		err := m.vfs.MkdirAt(m.ctx, m.creds, at, &vfs.MkdirOptions{Mode: 0o755})
		if err != nil && !linuxerr.Equals(linuxerr.EEXIST, err) {
			return nil, fmt.Errorf("make directory %s of the writable layer: %w", dir, err)
		}
	}
	at := pathAt(root, made)
	at.FollowFinalSymlink = false
	source, err := m.vfs.GetDentryAt(m.ctx, m.creds, at, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		return nil, fmt.Errorf("find directory %s of the writable layer: %w", dir, err)
	}
	defer source.DecRef(m.ctx)
	narrow, err := m.cloneMount(mnt, source.Dentry(), vfs.MountOptions{})
	if err != nil {
		return nil, fmt.Errorf("mount directory %s of the writable layer: %w", dir, err)
	}
	return narrow, nil
}
