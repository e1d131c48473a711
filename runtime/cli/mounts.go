// SPDX-License-Identifier: Apache-2.0

// A container's mounts in `ps` and `inspect`.

package cli

import (
	"path"
	"strconv"
	"strings"

	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/state"
)

// maxMountRunes is where docker cuts a mount in a list.
const maxMountRunes = 15

// mountsColumns are docker's columns: what is mounted, and how many of these
// are volumes of the store.
func mountsColumns(rec *state.Record, noTrunc bool) (mounts, volumes string) {
	var list []string
	count := 0
	for _, m := range rec.Mounts {
		name := m.Name
		if name != "" {
			count++
		} else if name = m.Source; name == "" {
			name = m.Target
		}
		if r := []rune(name); !noTrunc && len(r) > maxMountRunes {
			name = string(r[:maxMountRunes-1]) + "…"
		}
		list = append(list, name)
	}
	for _, m := range rec.Options.Tmpfs {
		list = append(list, m.Target)
	}
	return strings.Join(list, ","), strconv.Itoa(count)
}

// hasVolume is ps' filter: by name, file or place in the guest.
func hasVolume(rec *state.Record, v string) bool {
	for _, m := range rec.Mounts {
		if v == m.Name || v == m.Source || path.Clean(v) == m.Target {
			return true
		}
	}
	return false
}

// defaultPropagation is docker's.
const defaultPropagation = "rprivate"

func volumeMountDocument(m state.Mount) mountDocument {
	if m.Type == state.MountBind {
		d := mountDocument{Type: state.MountBind, Source: m.Source, Destination: m.Target, Mode: mountMode(m), RW: !m.ReadOnly, Propagation: m.Propagation}
		if d.Propagation == "" {
			d.Propagation = defaultPropagation
		}
		return d
	}
	return mountDocument{
		Type: "volume", Name: m.Name, Source: m.Source, Destination: m.Target, Driver: volumeDriver, Mode: mountMode(m),
		RW: !m.ReadOnly, Files: m.Files,
	}
}

// bindOf is the mount as -v would have it.
func bindOf(m state.Mount) string {
	source := m.Name
	if source == "" {
		source = m.Source
	}
	text := m.Target
	if source != "" {
		text = source + ":" + text
	}
	if m.ReadOnly {
		text += ":ro"
	}
	return text
}

// mountMode says in a word what is special about a mount.
func mountMode(m state.Mount) string {
	var words []string
	if m.ReadOnly {
		words = append(words, "ro")
	}
	if m.Clone {
		words = append(words, "clone")
	}
	return strings.Join(words, ",")
}

// inspectVolumeOf is `inspect` for a volume.
func inspectVolumeOf(g *globals, r *container.Runner, ref string) (*volumeDocument, error) {
	s, err := openVolumes(g, r)
	if err != nil {
		return nil, err
	}
	return inspectVolume(s, r, ref)
}
