// SPDX-License-Identifier: Apache-2.0

// The flags of `rungv run` that are about mounts.

package cli

import (
	"path/filepath"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// mountTypes are the values of --mount's type, for completion.
var mountTypes = []string{"type=volume,src=", "type=tmpfs,dst="}

// mount parses -v, --mount and --tmpfs.
func (f *runFlags) mount(o *convert.Options) error {
	for _, s := range f.tmpfs {
		m, err := convert.ParseTmpfs(s)
		if err != nil {
			return err
		}
		o.Tmpfs = append(o.Tmpfs, m)
	}
	for _, s := range f.volumes {
		v, err := convert.ParseVolume(s)
		if err != nil {
			return err
		}
		o.Volumes = append(o.Volumes, v)
	}
	for _, s := range f.mounts {
		v, tmpfs, err := convert.ParseMount(s)
		if err != nil {
			return err
		}
		if tmpfs != nil {
			o.Tmpfs = append(o.Tmpfs, *tmpfs)
			continue
		}
		o.Volumes = append(o.Volumes, *v)
	}
	// Paths are this directory's, whatever the launcher does later.
	for i := range o.Volumes {
		v := &o.Volumes[i]
		for _, p := range []*string{&v.Source, &v.Clone} {
			if !convert.IsVolumeFile(*p) {
				continue
			}
			abs, err := filepath.Abs(*p)
			if err != nil {
				return api.Errorf(api.KindInvalid, "volume %q: %w", *p, err)
			}
			*p = abs
		}
	}
	return nil
}
