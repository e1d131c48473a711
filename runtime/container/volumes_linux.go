// SPDX-License-Identifier: Apache-2.0

// A run's volumes: opened and locked before anything is downloaded, donated to
// the sandbox, and let go of when it has ended.

package container

import (
	"os"

	"github.com/docker/go-units"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/volumes"
)

// openVolumes opens what the user asked to be mounted, and notes it in the
// record: that is where others find who holds a volume.
func (u *run) openVolumes() error {
	if len(u.o.Volumes) == 0 {
		return nil
	}
	mounts := make([]state.Mount, 0, len(u.o.Volumes))
	for i := range u.o.Volumes {
		v := &u.o.Volumes[i]
		o, err := u.Runner.Volumes.Open(v)
		if err != nil {
			return err
		}
		u.volumes = append(u.volumes, o)
		mounts = append(mounts, state.Mount{
			Name: o.Name, Source: o.Path, Files: o.Paths, Target: v.Target, ReadOnly: v.ReadOnly, Clone: v.Clone != "",
		})
	}
	return u.handle.Update(func(rec *state.Record) error {
		rec.Mounts = mounts
		return nil
	})
}

// addVolumes adds the files of volumes and of the writable layer to what is
// donated. done closes those that only the sandbox needs.
func (u *run) addVolumes(cfg *launch.Config) (done func(), err error) {
	c := &cfg.Spec.Container
	cfg.Volumes = make([][]*os.File, len(c.Mounts))
	for i := range c.Mounts {
		for k := range u.o.Volumes {
			if m := &c.Mounts[i]; m.Volume != nil && m.Target == u.o.Volumes[k].Target {
				cfg.Volumes[i] = u.volumes[k].Files
				nameVolume(m, u.volumes[k])
			}
		}
	}
	if err := u.openUpper(&c.Rootfs, &cfg.ContainerFiles, u.o.RootfsSizeBytes); err != nil {
		return nil, err
	}
	return (&volumes.Opened{Files: cfg.Upper}).Close, nil
}

// nameVolume completes a mount with what is known of the volume once it is open.
func nameVolume(m *api.Mount, o *volumes.Opened) {
	m.Volume.Name, m.Volume.Compact = o.Title(), isCompacted(o, m.ReadOnly)
}

// isCompacted says whether a volume is compacted at a graceful end: one that is written
// and that others may clone.
func isCompacted(o *volumes.Opened, readOnly bool) bool { return o.Plain() && !readOnly }

// measureVolumes notes what the volumes take that are compacted at the end, which
// has been asked for.
func (u *run) measureVolumes() {
	if u.diskBytes != nil {
		return
	}
	u.diskBytes = make([]int64, len(u.volumes))
	for i, o := range u.volumes {
		if n, err := o.DiskBytes(); err == nil && isCompacted(o, u.o.Volumes[i].ReadOnly) {
			u.diskBytes[i] = n
		}
	}
}

// tellCompacted says what volumes take that were to be compacted, and what they took
// when a user asked for the end.
func (u *run) tellCompacted() {
	for i, before := range u.diskBytes {
		if after, err := u.volumes[i].DiskBytes(); err == nil && before > 0 {
			u.warn("volume %s: %s on disk, %s before", u.volumes[i].Title(),
				units.HumanSizeWithPrecision(float64(after), 3), units.HumanSizeWithPrecision(float64(before), 3))
		}
	}
}

// openUpper makes a writable layer that goes with the container: nothing is left
// of it however the sandbox ends, and so nothing in it waits for the disk.
func (r *Runner) openUpper(root *api.Rootfs, files *launch.ContainerFiles, sizeBytes int64) error {
	if r.Volumes == nil {
		return api.Errorf(api.KindUnsupported, "make a writable layer: no place for volumes is known")
	}
	var err error
	if files.Upper, err = r.Volumes.OpenUpper(sizeBytes); err != nil {
		return err
	}
	root.Upper = &api.Volume{Durability: api.DurabilityProcess, Name: "writable layer"}
	return nil
}

// closeVolumes closes the launcher's copies; it may be called again.
func (u *run) closeVolumes() {
	for _, o := range u.volumes {
		o.Close()
	}
	u.volumes = nil
}
