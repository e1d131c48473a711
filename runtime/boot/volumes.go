// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/sentryfs"
	"z.gfire.dev/gvx/runtime/api"
)

// volume is an ext4 volume that is mounted somewhere in the guest.
type volume struct {
	spec *api.Volume
	fs   *ext4lite.FS
	// finished makes finishing happen once.
	finished sync.Once
	// discarded says that nobody looks at the volume when the guest has ended.
	discarded bool
}

// mountVolume mounts a volume, connected to nothing yet. The mount owns its
// descriptors from now on; the caller owns the mount.
func (m *mounter) mountVolume(spec *api.Volume, source string, opts vfs.MountOptions) (*vfs.Mount, error) {
	v := &volume{spec: spec, discarded: opts.ReadOnly || spec == m.spec.Rootfs.Upper && !m.spec.Rootfs.KeepUpper}
	fds := make([]int, len(spec.FDs))
	for n, fd := range spec.FDs {
		fds[n] = int(fd)
	}
	opts.GetFilesystemOptions = vfs.GetFilesystemOptions{
		InternalMount: true,
		InternalData: sentryfs.Ext4Options{
			FDs:               fds,
			ReadOnly:          opts.ReadOnly,
			ProcessDurability: spec.Durability == api.DurabilityProcess,
			// A further container comes after the lockdown, which has no fstatfs.
			WholeSync: m.spec != m.sb.first.spec,
			Discard:   true,
			OnReadOnly: func(why error) {
				log.Warningf("volume %s takes no more changes: %v", spec.Name, why)
			},
			OnOpen: func(fs *ext4lite.FS) { v.fs = fs },
			ID:     m.resource("volume/" + source),
		},
	}
	mnt, err := m.vfs.MountDisconnected(m.ctx, m.creds, source, sentryfs.Ext4Name, &opts)
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "mount volume %s: %w", spec.Name, err)
	}
	m.volumes = append(m.volumes, v)
	return mnt, nil
}

// keepsVolumes reports whether there is anything for finishVolumes to do.
func (c *container) keepsVolumes() bool {
	return slices.ContainsFunc(c.volumes, func(v *volume) bool { return !v.discarded })
}

// finishVolumes brings a container's volumes to rest: all that the guest did is
// on them, their journals are empty, and they are marked clean. Its processes
// have ended.
func (c *container) finishVolumes() {
	for _, v := range c.volumes {
		if v.discarded {
			continue
		}
		v.finished.Do(func() {
			finish := v.fs.Flush
			if v.spec.Compact {
				finish = v.fs.Compact
			}
			if err := finish(); err != nil {
				log.Warningf("bring volume %s to rest: %v", v.spec.Name, err)
			}
		})
	}
}
