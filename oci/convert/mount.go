// SPDX-License-Identifier: Apache-2.0

// Docker's notations for mounts: --mount and -v. Beyond docker's keys a volume
// has size, clone, durability, uid and gid.

package convert

import (
	"encoding/csv"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// CloneEphemeral is the clone of a volume that nothing is left of when its
// sandbox ends.
const CloneEphemeral = "ephemeral"

// The names of files that hold volumes: what ends so is a file, not the name of
// a volume in the store.
const (
	VolumeExt = ".ext4"
	DeltaExt  = ".delta"
)

// VolumeMount is a volume as a user asks for it. What is on the host is found
// when it is opened.
type VolumeMount struct {
	// Source is the name of a volume in the store or the path of a file, see
	// [IsVolumeFile]; empty is a volume that goes with its container.
	Source string `json:"source,omitempty"`
	// Target is the guest's directory.
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// MustExist refuses a volume that does not exist, in place of making it.
	MustExist bool `json:"mustExist,omitempty"`
	// NoCopy leaves a new volume empty; otherwise it begins with what the
	// image has at Target.
	NoCopy bool `json:"noCopy,omitempty"`
	// SizeBytes is what a volume that does not exist is made with; 0 for the
	// default.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Clone is "", [CloneEphemeral], or the file of a clone that is kept.
	Clone string `json:"clone,omitempty"`
	// Durability is "" for the default.
	Durability api.Durability `json:"durability,omitempty"`
	// UID and GID own the root of a volume that does not exist.
	UID uint32 `json:"uid,omitempty"`
	GID uint32 `json:"gid,omitempty"`
	// Labels are for a volume of the store that does not exist.
	Labels map[string]string `json:"labels,omitempty"`
}

// IsVolumeFile tells a volume's file from a name: it has a slash, or one of the
// extensions.
func IsVolumeFile(source string) bool {
	return strings.ContainsAny(source, `/\`) || isVolumeFileName(source)
}

// isVolumeFileName says whether a path ends as the files of volumes do.
func isVolumeFileName(p string) bool {
	return strings.HasSuffix(p, VolumeExt) || strings.HasSuffix(p, DeltaExt)
}

// minVolumeName and maxVolumeName are bounds of docker's and of file names.
const (
	minVolumeName = 2
	maxVolumeName = 200
)

// CheckVolumeName refuses what docker would not take as a volume's name.
func CheckVolumeName(name string) error {
	ok := len(name) >= minVolumeName && len(name) <= maxVolumeName
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		alphanumeric := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		ok = alphanumeric || i > 0 && (c == '_' || c == '.' || c == '-')
	}
	if !ok {
		return api.Errorf(api.KindInvalid, "%q is no volume name: only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed, %d to %d characters; a file is named by a path with a slash or by its extension (%s, %s)",
			name, minVolumeName, maxVolumeName, VolumeExt, DeltaExt)
	}
	return nil
}

// Plain says that the volume itself is mounted and written: no clone of it.
func (v *VolumeMount) Plain() bool { return v.Clone == "" && !v.ReadOnly }

// durability is the user's choice, or what the volume's nature suggests: what
// goes with its sandbox needs not survive the host.
func (v *VolumeMount) durability() api.Durability {
	switch {
	case v.Durability != "":
		return v.Durability
	case v.Clone == CloneEphemeral || v.Source == "":
		return api.DurabilityProcess
	}
	return api.DurabilityHost
}

// mount is the volume as the sandbox is told of it, without files.
func (v *VolumeMount) mount() api.Mount {
	return api.Mount{
		Type: api.MountVolume, Target: v.Target, ReadOnly: v.ReadOnly, UID: v.UID, GID: v.GID, Populate: v.Plain() && !v.NoCopy,
		Volume: &api.Volume{Durability: v.durability(), Compact: v.Plain() && v.Source != "", Name: v.Source},
	}
}

// Mounts are all mounts in the order in which they are made: docker's, a directory
// before what is below it.
func Mounts(o *Options) ([]api.Mount, error) {
	list := slices.Clone(o.Tmpfs)
	for i := range o.Volumes {
		list = append(list, o.Volumes[i].mount())
	}
	for i := range o.Binds {
		list = append(list, o.Binds[i].Mount())
	}
	seen := make(map[string]bool, len(list))
	for _, m := range list {
		if seen[m.Target] {
			return nil, api.Errorf(api.KindInvalid, "Duplicate mount point: %s", m.Target)
		}
		seen[m.Target] = true
	}
	slices.SortStableFunc(list, func(a, b api.Mount) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
	return list, nil
}

// ParsedMount is what -v or --mount asks for: one of them is not nil.
type ParsedMount struct {
	Volume *VolumeMount
	Tmpfs  *api.Mount
	Bind   *BindMount
}

// ParseVolume reads -v: [SOURCE:]TARGET[:OPTION,…].
func ParseVolume(s string) (*ParsedMount, error) {
	parts := strings.Split(s, ":")
	source, target, options := "", "", ""
	switch len(parts) {
	case 1:
		target = parts[0]
	case 2:
		source, target = parts[0], parts[1]
	case 3:
		source, target, options = parts[0], parts[1], parts[2]
	default:
		return nil, api.Errorf(api.KindInvalid, "invalid volume specification: '%s': want [SOURCE:]TARGET[:ro]", s)
	}
	if len(parts) > 1 && source == "" || slices.Contains(parts, "") {
		return nil, api.Errorf(api.KindInvalid, "invalid volume specification: '%s': a part is empty", s)
	}
	if isBindSource(source) {
		// A source that is missing is made a directory, with -v alone.
		b := &BindMount{Source: source, Target: target, Create: true}
		for opt := range strings.SplitSeq(options, ",") {
			if err := b.bindOption(opt); err != nil {
				return nil, err
			}
		}
		return &ParsedMount{Bind: b}, kinded(b.check())
	}
	v := &VolumeMount{Source: source, Target: target}
	for opt := range strings.SplitSeq(options, ",") {
		switch opt {
		case "", "rw", "z", "Z": // labels of SELinux say nothing about a volume's file
		case "ro":
			v.ReadOnly = true
		case "nocopy":
			v.NoCopy = true
		default:
			return nil, api.Errorf(api.KindInvalid, "invalid mode: %s: want ro, rw or nocopy", opt)
		}
	}
	if strings.ContainsAny(source, `/\`) && !isVolumeFileName(source) {
		return nil, api.Errorf(api.KindInvalid, "%q includes invalid characters for a local volume name, only \"[a-zA-Z0-9][a-zA-Z0-9_.-]\" are allowed. If you intended to pass a host directory, use absolute path", source)
	}
	return &ParsedMount{Volume: v}, v.check()
}

// check completes and checks a volume, whichever way it was written.
func (v *VolumeMount) check() error {
	if v.Source != "" && !IsVolumeFile(v.Source) {
		if err := CheckVolumeName(v.Source); err != nil {
			return err
		}
	}
	if err := checkMountTarget(&v.Target); err != nil {
		return err
	}
	switch {
	case v.Clone != "" && v.Source == "":
		return api.Errorf(api.KindInvalid, "mount %s: clone=%s needs src=, the volume that is cloned", v.Target, v.Clone)
	case v.Clone != "" && v.SizeBytes != 0:
		return api.Errorf(api.KindInvalid, "mount %s: a clone is as large as its base: leave size out", v.Target)
	case v.Clone != "" && v.Clone != CloneEphemeral && !IsVolumeFile(v.Clone):
		return api.Errorf(api.KindInvalid, "mount %s: clone=%s: want %q, or a file: a path with a slash, or a name that ends in %s", v.Target, v.Clone, CloneEphemeral, DeltaExt)
	}
	return nil
}

// checkMountTarget cleans and checks a place in the guest.
func checkMountTarget(target *string) error {
	if !path.IsAbs(*target) {
		return api.Errorf(api.KindInvalid, "invalid mount path: '%s' mount path must be absolute", *target)
	}
	if *target = path.Clean(*target); *target == "/" {
		return api.Errorf(api.KindInvalid, "invalid mount path: destination can't be '/'")
	}
	return nil
}

// mountSpec is a --mount while it is read.
type mountSpec struct {
	kind   string
	volume VolumeMount
	tmpfs  api.Mount
	bind   BindMount
	// of says for which types the keys given are.
	of map[string]string
}

// ParseMount reads --mount: KEY=VALUE,…
func ParseMount(s string) (*ParsedMount, error) {
	fields, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "invalid argument %q for \"--mount\" flag: want type=volume,src=NAME|FILE,dst=DIR: %w", s, err)
	}
	m := &mountSpec{kind: string(api.MountVolume), of: map[string]string{}}
	m.tmpfs = api.Mount{Type: api.MountTmpfs, NoExec: true, NoSUID: true, NoDev: true, Mode: 0o1777}
	for _, field := range fields {
		key, value, has := strings.Cut(field, "=")
		if err = m.set(strings.ToLower(key), value, has); err != nil {
			break
		}
	}
	if err == nil {
		err = m.finish()
	}
	if err != nil {
		return nil, api.Errorf(api.KindOf(kinded(err)), "invalid argument %q for \"--mount\" flag: %w", s, err)
	}
	switch m.kind {
	case string(api.MountTmpfs):
		return &ParsedMount{Tmpfs: &m.tmpfs}, nil
	case string(api.MountBind):
		return &ParsedMount{Bind: &m.bind}, nil
	}
	return &ParsedMount{Volume: &m.volume}, nil
}

// kinded gives errors without a kind the one of bad input.
func kinded(err error) error {
	if err != nil && api.KindOf(err) == api.KindInternal {
		return api.Errorf(api.KindInvalid, "%w", err)
	}
	return err
}

// flags are the keys that may stand alone.
var mountFlags = []string{"readonly", "ro", "volume-nocopy", "bind-nonrecursive", "bind-create-src", "exclusive"}

func (m *mountSpec) set(key, value string, has bool) error {
	if !has && !slices.Contains(mountFlags, key) {
		return fmt.Errorf("invalid field '%s' must be a key=value pair", key)
	}
	switch key {
	case "type":
		m.kind = strings.ToLower(value)
		return nil
	case "source", "src":
		m.volume.Source = value
		return nil
	case "target", "dst", "destination":
		m.volume.Target = value
		return nil
	case "readonly", "ro":
		return setBool(&m.volume.ReadOnly, key, value, has)
	case "consistency":
		return nil // docker ignores it on Linux too
	}
	known, err := m.setVolume(key, value, has)
	if !known && strings.HasPrefix(key, "tmpfs-") {
		known, err = m.setTmpfs(key, value)
	}
	if !known {
		if known, err = m.bind.set(key, value, has); known {
			m.of[key] = string(api.MountBind)
		}
	}
	if !known {
		return fmt.Errorf("unexpected key '%s' in '%s=%s'", key, key, value)
	}
	return err
}

// setVolume takes the keys of a volume.
func (m *mountSpec) setVolume(key, value string, has bool) (known bool, err error) {
	v := &m.volume
	m.of[key] = string(api.MountVolume)
	switch key {
	case "volume-nocopy":
		return true, setBool(&v.NoCopy, key, value, has)
	case "volume-label":
		name, text, _ := strings.Cut(value, "=")
		if v.Labels == nil {
			v.Labels = map[string]string{}
		}
		v.Labels[name] = text
		return true, nil
	case "volume-driver":
		if value != "" && value != "local" {
			return true, api.Errorf(api.KindUnsupported, "volume-driver %q: there is only local: leave it out", value)
		}
		return true, nil
	case "volume-opt", "volume-subpath":
		return true, api.Errorf(api.KindUnsupported, "%s is not supported: see 'rungv run --help' for what a volume takes", key)
	case "size":
		v.SizeBytes, err = ParseBytes(value)
		if err == nil && v.SizeBytes == 0 {
			err = fmt.Errorf("invalid size %q: a volume of no size", value)
		}
		return true, err
	case "clone":
		if v.Clone = value; value == "" {
			err = fmt.Errorf("clone is empty: want clone=%s or clone=FILE%s", CloneEphemeral, DeltaExt)
		}
		return true, err
	case "durability":
		v.Durability = api.Durability(value)
		if v.Durability != api.DurabilityHost && v.Durability != api.DurabilityProcess {
			err = fmt.Errorf("invalid durability %q: want %s (fsync waits for the host's disk) or %s (it survives the end of the sandbox)", value, api.DurabilityHost, api.DurabilityProcess)
		}
		return true, err
	case "uid":
		v.UID, err = parseID(key, value)
		return true, err
	case "gid":
		v.GID, err = parseID(key, value)
		return true, err
	}
	delete(m.of, key)
	return false, nil
}

func (m *mountSpec) setTmpfs(key, value string) (known bool, err error) {
	m.of[key] = string(api.MountTmpfs)
	switch key {
	case "tmpfs-size":
		m.tmpfs.SizeBytes, err = ParseBytes(value)
	case "tmpfs-mode":
		var n uint64
		if n, err = strconv.ParseUint(value, 8, 12); err != nil {
			err = fmt.Errorf("invalid value for %s: %s", key, value)
		}
		m.tmpfs.Mode = uint32(n)
	default:
		delete(m.of, key)
		return false, nil
	}
	return true, err
}

// finish checks what the keys add up to.
func (m *mountSpec) finish() error {
	switch m.kind {
	case string(api.MountVolume), string(api.MountTmpfs), string(api.MountBind):
	case "":
		return fmt.Errorf("type is required: want volume, bind or tmpfs")
	default:
		return api.Errorf(api.KindUnsupported, "unknown mount type %q: want volume, bind or tmpfs", m.kind)
	}
	if m.volume.Target == "" {
		return fmt.Errorf("target is required")
	}
	for key, kind := range m.of {
		if kind != m.kind {
			return fmt.Errorf("cannot mix '%s' options with mount type '%s'", key, m.kind)
		}
	}
	switch m.kind {
	case string(api.MountVolume):
		return m.volume.check()
	case string(api.MountBind):
		m.bind.Source, m.bind.Target, m.bind.ReadOnly = m.volume.Source, m.volume.Target, m.volume.ReadOnly
		return m.bind.check()
	}
	if m.volume.Source != "" {
		return fmt.Errorf("a tmpfs has no source")
	}
	if err := m.volume.check(); err != nil {
		return err
	}
	m.tmpfs.Target, m.tmpfs.ReadOnly = m.volume.Target, m.volume.ReadOnly
	return nil
}

func setBool(to *bool, key, value string, has bool) error {
	if !has {
		*to = true
		return nil
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("invalid value for %s: %s", key, value)
	}
	*to = b
	return nil
}

func parseID(key, value string) (uint32, error) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("invalid value for %s: %q is no id", key, value)
	}
	return uint32(n), nil
}
