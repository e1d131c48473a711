// SPDX-License-Identifier: Apache-2.0

// The flags of `rungv run` that are about mounts.

package cli

import (
	"path/filepath"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// mountTypes are the values of --mount's type, for completion.
var mountTypes = []string{"type=volume,src=", "type=bind,src=", "type=tmpfs,dst="}

// mount parses -v, --mount and --tmpfs.
func (f *runFlags) mount(o *convert.Options) error {
	for _, s := range f.tmpfs {
		m, err := convert.ParseTmpfs(s)
		if err != nil {
			return err
		}
		o.Tmpfs = append(o.Tmpfs, m)
	}
	for _, flag := range []struct {
		values []string
		parse  func(string) (*convert.ParsedMount, error)
	}{{f.volumes, convert.ParseVolume}, {f.mounts, convert.ParseMount}} {
		for _, s := range flag.values {
			m, err := flag.parse(s)
			if err != nil {
				return err
			}
			switch {
			case m.Tmpfs != nil:
				o.Tmpfs = append(o.Tmpfs, *m.Tmpfs)
			case m.Bind != nil:
				o.Binds = append(o.Binds, *m.Bind)
			default:
				o.Volumes = append(o.Volumes, *m.Volume)
			}
		}
	}
	return absoluteMounts(o)
}

// absoluteMounts makes paths this directory's, whatever the launcher does later.
func absoluteMounts(o *convert.Options) error {
	var paths []*string
	for i := range o.Binds {
		paths = append(paths, &o.Binds[i].Source)
	}
	for i := range o.Volumes {
		v := &o.Volumes[i]
		for _, p := range []*string{&v.Source, &v.Clone} {
			if convert.IsVolumeFile(*p) {
				paths = append(paths, p)
			}
		}
	}
	for _, p := range paths {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return api.Errorf(api.KindInvalid, "mount %q: %w", *p, err)
		}
		*p = abs
	}
	return nil
}
