// SPDX-License-Identifier: Apache-2.0

// Package rootfs turns the mounts by which containerd describes a container's root
// file system into what a sandbox is given: EROFS layers and an ext4 volume as
// open files, with no mount anywhere on the host; or, where the snapshotter has
// directories, one directory.
//
// It reads the words of containerd's mount manager (Parse, a pure function), opens
// the files and formats a volume that does not exist yet (Open). Directories that
// have to be stacked are mounted where nobody sees it: on descriptors, which take
// the mount with them when the last process that holds one ends, however it ends.
// It never runs a container and knows nothing of tasks.
package rootfs

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"

	"z.gfire.dev/gvx/runtime/api"
)

// Mount is one mount in containerd's words.
type Mount struct {
	Type, Source string
	Options      []string
}

const (
	// maxMounts bounds what is read of a request: images have a hundred layers
	// at most.
	maxMounts = 512
	// maxVolumeBytes bounds a writable layer: ext4lite's largest file system is
	// far above, yet a typing error should not cost hours of formatting.
	maxVolumeBytes = 64 << 40
)

// The prefixes and options of containerd's mount manager.
const (
	prefixFormat = "format/"
	prefixMkdir  = "mkdir/"
	prefixMkfs   = "mkfs/"
	optionMkfs   = "X-containerd.mkfs."
	optionMkdir  = "X-containerd.mkdir."
	optionOwn    = "X-containerd."
)

// Plan says what a root file system consists of: one of Layers, Directory and Host.
type Plan struct {
	// Layers are EROFS files, the lowest first.
	Layers []string
	// Volume holds what is written over Layers; nil if it is nowhere of the
	// snapshotter's.
	Volume *Volume
	// Upper is the snapshotter's own directory for what is written over Layers,
	// "" when there is none: then, without a Volume, the whole is read-only.
	Upper, Work string
	// Directory is the root file system as it is.
	Directory string
	// Host is a stack of directories, to be mounted.
	Host *Stack
	// ReadOnly says that nothing may be written.
	ReadOnly bool
}

// Volume is an ext4 file system in a file.
type Volume struct {
	Path string
	// SizeBytes is the size with which it is made.
	SizeBytes int64
	// Directory is the one in it that is the upper directory: "upper".
	Directory string
}

// Stack is an overlay of host directories.
type Stack struct {
	// Lowers are the topmost first, as the kernel wants them.
	Lowers      []string
	Upper, Work string
	// Options are the overlay's others, as they came.
	Options []string
}

// Parse reads the mounts of a request.
func Parse(mounts []Mount) (*Plan, error) {
	if len(mounts) > maxMounts {
		return nil, api.Errorf(api.KindLimit, "root file system: %d mounts, at most %d", len(mounts), maxMounts)
	}
	plan, err := parse(mounts)
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "root file system: %w", err)
	}
	return plan, nil
}

func parse(mounts []Mount) (*Plan, error) {
	if len(mounts) == 0 {
		return nil, fmt.Errorf("no mounts")
	}
	top := mounts[len(mounts)-1]
	below := mounts[:len(mounts)-1]
	switch kind := strip(top.Type); {
	case kind == "erofs" && len(below) == 0:
		// An image of one layer, read-only.
		return plan(mounts, 0, 0, &Plan{ReadOnly: true})
	case kind == "bind" && len(below) == 0:
		return &Plan{Directory: top.Source, ReadOnly: readOnly(top)}, absolute(top.Source)
	case kind == "bind":
		return parseBind(top, below)
	case kind == "overlay" && len(below) == 0:
		return parseStack(top)
	case kind == "overlay":
		return parseOverlay(top, below)
	}
	return nil, fmt.Errorf("mount of type %q over %d others: not known", top.Type, len(below))
}

// strip takes the prefixes of transformations from a mount's type.
func strip(kind string) string {
	for {
		var found bool
		for _, prefix := range []string{prefixFormat, prefixMkdir, prefixMkfs} {
			if rest, ok := strings.CutPrefix(kind, prefix); ok {
				kind, found = rest, true
			}
		}
		if !found {
			return kind
		}
	}
}

// parseBind reads a bind mount of what stands below: a single layer, or the
// directory of a volume without layers.
func parseBind(top Mount, below []Mount) (*Plan, error) {
	index, directory, err := mountReference(top.Source)
	if err != nil {
		return nil, fmt.Errorf("bind mount of %q: %w", top.Source, err)
	}
	if index >= len(below) {
		return nil, fmt.Errorf("bind mount of %q: there are %d mounts", top.Source, len(below))
	}
	p := &Plan{ReadOnly: readOnly(top)}
	if strings.HasPrefix(below[index].Type, prefixMkfs) {
		if len(below) != 1 {
			return nil, fmt.Errorf("bind mount of a volume over %d other mounts", len(below)-1)
		}
		p.Volume, err = parseVolume(below[index], directory)
		return p, err
	}
	if directory != "" {
		return nil, fmt.Errorf("bind mount of %q: a directory of a layer", top.Source)
	}
	p.ReadOnly = true
	return plan(below, index, index, p)
}

// parseOverlay reads an overlay whose lower directories are the mounts below it.
func parseOverlay(top Mount, below []Mount) (*Plan, error) {
	p := &Plan{ReadOnly: readOnly(top)}
	first, last := -1, -1
	upper := ""
	for _, o := range top.Options {
		key, value, _ := strings.Cut(o, "=")
		var err error
		switch key {
		case "lowerdir":
			first, last, err = lowerReference(value)
		case "upperdir":
			upper = value
		case "workdir":
			p.Work = value
		case "ro", "rw", "index", "userxattr", "metacopy", "redirect_dir", "volatile", "xino", "nfs_export", "uuid":
			// They say how the kernel's overlay keeps its books.
		default:
			if !strings.HasPrefix(o, optionOwn) {
				err = fmt.Errorf("not known")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("overlay option %q: %w", o, err)
		}
	}
	if first < 0 || last >= len(below) {
		return nil, fmt.Errorf("overlay: its lower directories are not among the %d mounts below it", len(below))
	}
	switch {
	case upper == "":
		p.ReadOnly, p.Work = true, ""
	case strings.HasPrefix(upper, "/"):
		p.Upper = upper
		if err := absolute(p.Work); err != nil {
			return nil, err
		}
	default:
		index, directory, err := mountReference(upper)
		if err != nil || index >= len(below) {
			return nil, fmt.Errorf("overlay: upper directory %q: no such mount", upper)
		}
		p.Work = ""
		if p.Volume, err = parseVolume(below[index], directory); err != nil {
			return nil, err
		}
	}
	return plan(below, first, last, p)
}

// plan adds the layers mounts[first…last], topmost first there.
func plan(mounts []Mount, first, last int, p *Plan) (*Plan, error) {
	for i := first; i <= last; i++ {
		m := mounts[i]
		if m.Type != "erofs" {
			return nil, fmt.Errorf("layer %d is a mount of type %q", i, m.Type)
		}
		if err := absolute(m.Source); err != nil {
			return nil, err
		}
		for _, o := range m.Options {
			if strings.HasPrefix(o, "device=") {
				return nil, fmt.Errorf("layer %s: its data is in other files (%s), which is not supported: do not merge layers", m.Source, o)
			}
		}
		p.Layers = append(p.Layers, m.Source)
	}
	slices.Reverse(p.Layers)
	return p, nil
}

// parseVolume reads the mount of a file that is formatted when it is missing.
func parseVolume(m Mount, directory string) (*Volume, error) {
	if m.Type != prefixMkfs+"ext4" {
		return nil, fmt.Errorf("writable layer %s is a mount of type %q, not mkfs/ext4", m.Source, m.Type)
	}
	if err := absolute(m.Source); err != nil {
		return nil, err
	}
	v := &Volume{Path: m.Source, Directory: directory}
	for _, o := range m.Options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case optionMkfs + "size":
			size, err := units.RAMInBytes(value)
			if err != nil || size <= 0 || size > maxVolumeBytes {
				return nil, fmt.Errorf("writable layer %s: size %q is none up to %d", m.Source, value, int64(maxVolumeBytes))
			}
			v.SizeBytes = size
		case optionMkfs + "fs":
			if value != "ext4" {
				return nil, fmt.Errorf("writable layer %s: there is ext4, not %s", m.Source, value)
			}
		}
	}
	if v.SizeBytes == 0 {
		return nil, fmt.Errorf("writable layer %s has no size", m.Source)
	}
	return v, nil
}

// parseStack reads an overlay of host directories.
func parseStack(m Mount) (*Plan, error) {
	s := &Stack{}
	for _, o := range m.Options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "lowerdir":
			s.Lowers = strings.Split(value, ":")
		case "upperdir":
			s.Upper = value
		case "workdir":
			s.Work = value
		case "ro", "rw":
		default:
			if !strings.HasPrefix(o, optionOwn) {
				s.Options = append(s.Options, o)
			}
		}
	}
	if len(s.Lowers) == 0 {
		return nil, fmt.Errorf("overlay without lower directories")
	}
	paths := s.Lowers
	if s.Upper != "" || s.Work != "" {
		paths = append(slices.Clone(paths), s.Upper, s.Work)
	}
	for _, path := range paths {
		if err := absolute(path); err != nil {
			return nil, fmt.Errorf("overlay: %w", err)
		}
	}
	return &Plan{Host: s, ReadOnly: readOnly(m) || s.Upper == ""}, nil
}

func readOnly(m Mount) bool { return slices.Contains(m.Options, "ro") }

func absolute(path string) error {
	if !strings.HasPrefix(path, "/") {
		return fmt.Errorf("path %q is not absolute", path)
	}
	return nil
}

// mountReference reads "{{ mount N }}" and a path that follows it.
func mountReference(s string) (index int, rest string, err error) {
	inside, rest, ok := template(s)
	fields := strings.Fields(inside)
	if !ok || len(fields) != 2 || fields[0] != "mount" {
		return 0, "", fmt.Errorf("it is no mount")
	}
	if index, err = number(fields[1]); err != nil {
		return 0, "", err
	}
	rest = strings.Trim(rest, "/")
	if slices.Contains(strings.Split(rest, "/"), "..") {
		return 0, "", fmt.Errorf("it leads out of its mount")
	}
	return index, rest, nil
}

// lowerReference reads "{{ overlay FIRST LAST }}" or "{{ mount N }}".
func lowerReference(s string) (first, last int, err error) {
	inside, rest, ok := template(s)
	fields := strings.Fields(inside)
	switch {
	case !ok || rest != "":
	case len(fields) == 2 && fields[0] == "mount":
		first, err = number(fields[1])
		return first, first, err
	case len(fields) == 3 && fields[0] == "overlay":
		if first, err = number(fields[1]); err == nil {
			last, err = number(fields[2])
		}
		if err == nil && first > last {
			err = fmt.Errorf("layers in this order are not supported")
		}
		return first, last, err
	}
	return 0, 0, fmt.Errorf("they are no mounts")
}

// template splits "{{ INSIDE }}REST".
func template(s string) (inside, rest string, ok bool) {
	s, ok = strings.CutPrefix(s, "{{")
	if !ok {
		return "", "", false
	}
	inside, rest, ok = strings.Cut(s, "}}")
	return inside, rest, ok
}

func number(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n > math.MaxInt32 {
		return 0, fmt.Errorf("%q is no mount's number", s)
	}
	return int(n), nil
}
