// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// bindType is the mount type that an option makes of any other.
const bindType = "bind"

// mountFlag changes a mount.
type mountFlag func(*api.Mount)

// ociMountFlags are the options that are no file system's own, as runc has them. A
// nil one says nothing to a guest: its kernel keeps no such times, and what is
// written is as synchronous as the host's file system.
var ociMountFlags = map[string]mountFlag{
	"ro": func(m *api.Mount) { m.ReadOnly = true }, "rw": func(m *api.Mount) { m.ReadOnly = false },
	"nosuid": func(m *api.Mount) { m.NoSUID = true }, "suid": func(m *api.Mount) { m.NoSUID = false },
	"nodev": func(m *api.Mount) { m.NoDev = true }, "dev": func(m *api.Mount) { m.NoDev = false },
	"noexec": func(m *api.Mount) { m.NoExec = true }, "exec": func(m *api.Mount) { m.NoExec = false },
	"noatime": func(m *api.Mount) { m.NoATime = true }, "atime": func(m *api.Mount) { m.NoATime = false },
	"defaults": nil, "async": nil, "sync": nil, "dirsync": nil, "diratime": nil, "nodiratime": nil, "iversion": nil, "noiversion": nil,
	"lazytime": nil, "nolazytime": nil, "loud": nil, "silent": nil, "mand": nil, "nomand": nil, "relatime": nil, "norelatime": nil,
	"strictatime": nil, "nostrictatime": nil, "bind": nil, "rbind": nil,
	// A mount of a guest's is one mount, whatever is mounted below its source on
	// the host: what holds for it holds for all of it, but see writableBelow.
	"rro": func(m *api.Mount) { m.ReadOnly = true }, "rrw": func(m *api.Mount) { m.ReadOnly = false },
	"rnosuid": func(m *api.Mount) { m.NoSUID = true }, "rsuid": func(m *api.Mount) { m.NoSUID = false },
	"rnodev": func(m *api.Mount) { m.NoDev = true }, "rdev": func(m *api.Mount) { m.NoDev = false },
	"rnoexec": func(m *api.Mount) { m.NoExec = true }, "rexec": func(m *api.Mount) { m.NoExec = false },
	"rnoatime": func(m *api.Mount) { m.NoATime = true }, "ratime": func(m *api.Mount) { m.NoATime = false },
	"rnodiratime": nil, "rdiratime": nil, "rrelatime": nil, "rnorelatime": nil, "rstrictatime": nil, "rnostrictatime": nil,
	"tmpcopyup": func(m *api.Mount) { m.CopyUp = true },
}

// sentryTypes are mount types that the guest's own kernel has, and what they are
// called in a bundle.
var sentryTypes = map[string]api.MountType{
	"proc": api.MountProc, "sysfs": api.MountSysfs, "devpts": api.MountDevpts, "mqueue": api.MountMqueue,
	"cgroup": api.MountCgroup, "cgroup2": api.MountCgroup, "tmpfs": api.MountTmpfs,
}

// sentrySources are directories of the host that a bind mount means the guest's
// own ones by: the host's would tell of the host.
var sentrySources = map[string]api.MountType{
	"/proc": api.MountProc, "/sys": api.MountSysfs, "/sys/fs/cgroup": api.MountCgroup, "/dev/pts": api.MountDevpts, "/dev/mqueue": api.MountMqueue,
}

// sharedMemory is where a bind mount is memory, not files.
const sharedMemory = "/dev/shm"

// mounts are the bundle's, in its order, and then what annotations add.
func (c *ociConversion) mounts() error {
	for i := range c.spec.Mounts {
		m := &c.spec.Mounts[i]
		if err := c.mount(m); err != nil {
			return api.Errorf(api.KindOf(kinded(err)), "mount %s (%s, %s): %w", m.Destination, m.Type, strings.Join(m.Options, ","), err)
		}
	}
	return c.annotatedVolumes()
}

// mount converts one mount.
func (c *ociConversion) mount(m *specs.Mount) error {
	out := api.Mount{Target: path.Clean("/" + m.Destination)}
	if out.Target == "/" {
		return api.Errorf(api.KindUnsupported, "a mount over the root is not supported")
	}
	if !path.IsAbs(m.Destination) {
		c.note("mount %s: a relative destination is deprecated, and below /", m.Destination)
	}
	if len(m.UIDMappings)+len(m.GIDMappings) > 0 || slices.Contains(m.Options, "idmap") || slices.Contains(m.Options, "ridmap") {
		return api.Errorf(api.KindUnsupported, "id-mapped mounts are not supported")
	}
	rest, err := c.flags(&out, m.Options)
	if err != nil {
		return err
	}
	kind := m.Type
	if slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind") {
		kind = bindType
	}
	switch {
	case kind == bindType:
		return c.bind(&out, m, rest)
	case kind == "ext4":
		return c.ext4(&out, m, rest)
	case sentryTypes[kind] == "":
		return api.Errorf(api.KindUnsupported, "type %q is not supported in a guest", m.Type)
	}
	out.Type, out.Source = sentryTypes[kind], m.Source
	if c.open && (out.Type == api.MountSysfs || out.Type == api.MountCgroup) {
		out.ReadOnly = false
	}
	if err := c.sentryOptions(&out, rest); err != nil {
		return err
	}
	c.container.Mounts = append(c.container.Mounts, out)
	return nil
}

// flags takes the options that are no file system's own, and returns the others.
func (c *ociConversion) flags(out *api.Mount, options []string) (rest []string, err error) {
	for _, o := range options {
		if p := api.Propagation(o); o != "" && p.Valid() {
			out.Propagation = p
			continue
		}
		switch flag, known := ociMountFlags[o]; {
		case o == "remount":
			return nil, api.Errorf(api.KindUnsupported, "remount is not supported: give the mount its options at once")
		case known && flag != nil:
			flag(out)
		case !known && o != "":
			rest = append(rest, o)
		}
	}
	return rest, nil
}

// bind is a directory or file of the host's, or what it stands for in a guest.
func (c *ociConversion) bind(out *api.Mount, m *specs.Mount, rest []string) error {
	if len(rest) > 0 {
		return api.Errorf(api.KindInvalid, "bind mounts cannot have any filesystem-specific options applied")
	}
	if m.Source == "" {
		return api.Errorf(api.KindInvalid, "a bind mount without a source")
	}
	source := c.hostPath(m.Source)
	switch own, ok := sentrySources[source]; {
	case ok:
		out.Type = own
		c.note("mount %s: the guest's own in place of the host's %s", out.Target, source)
	case out.Target == sharedMemory && source != sharedMemory:
		// Engines make shared memory on the host, for the containers of a pod to
		// have in common; the sandbox' own is quicker, and counts as its memory.
		out.Type, out.Shared, out.Mode, out.SizeBytes = api.MountTmpfs, source, 0o1777, DefaultShmSizeBytes
		if c.in.SizeOf != nil {
			if n := c.in.SizeOf(source); n > 0 {
				out.SizeBytes = n
			}
		}
	default:
		out.Type, out.Host = api.MountBind, &api.HostTree{FD: api.NoFD, Name: source, NonRecursive: !slices.Contains(m.Options, "rbind")}
		if p := out.Propagation; p == api.PropagationShared || p == api.PropagationRShared {
			c.note("mount %s: what the guest mounts there does not appear on the host", out.Target)
		}
	}
	c.container.Mounts = append(c.container.Mounts, *out)
	if out.Type == api.MountBind && out.ReadOnly {
		c.writableBelow(out, m)
	}
	return nil
}

// writableBelow adds what is mounted below the source of a read-only mount, where
// only that one is to be read-only: in Linux "ro" holds for one mount, "rro" for
// all of them.
func (c *ociConversion) writableBelow(out *api.Mount, m *specs.Mount) {
	if !slices.Contains(m.Options, "rbind") || slices.Contains(m.Options, "rro") || c.in.Submounts == nil {
		return
	}
	places := c.in.Submounts(out.Host.Name)
	if len(places) > maxSubmounts {
		c.note("mount %s: the %d mounts below its source are as read-only as it: more than %d are not told apart", out.Target, len(places), maxSubmounts)
		return
	}
	for _, place := range places {
		below := *out
		below.Target = path.Join(out.Target, strings.TrimPrefix(place, out.Host.Name))
		below.Host = &api.HostTree{FD: api.NoFD, Name: place}
		below.ReadOnly = false
		c.container.Mounts = append(c.container.Mounts, below)
	}
}

// ext4 is a volume in a file of the host's: options are those of `rungv run
// --mount`.
func (c *ociConversion) ext4(out *api.Mount, m *specs.Mount, rest []string) error {
	if m.Source == "" {
		return api.Errorf(api.KindInvalid, "a volume without a source")
	}
	rest = slices.DeleteFunc(rest, func(o string) bool { return o == "loop" })
	// The source may hold what ParseMount takes apart.
	text := "type=volume,volume-nocopy,src=x" + VolumeExt + ",dst=/x"
	if len(rest) > 0 {
		text += "," + strings.Join(rest, ",")
	}
	if strings.ContainsAny(text, "\"\n") {
		return api.Errorf(api.KindInvalid, "an option of a volume contains a quote or a line break")
	}
	parsed, err := ParseMount(text)
	if err != nil {
		return err
	}
	v := parsed.Volume
	if v == nil {
		return api.Errorf(api.KindInvalid, "an option of a volume says that it is none")
	}
	v.Source, v.Target, v.ReadOnly, v.MustExist = c.hostPath(m.Source), out.Target, out.ReadOnly, true
	return c.addVolume(v)
}

// addVolume mounts a volume.
func (c *ociConversion) addVolume(v *VolumeMount) error {
	for i := range c.out.Volumes {
		if c.out.Volumes[i].Target == v.Target {
			return api.Errorf(api.KindInvalid, "Duplicate mount point: %s", v.Target)
		}
	}
	if IsVolumeFile(v.Source) {
		v.Source = c.hostPath(v.Source)
	}
	if v.Clone != "" && v.Clone != CloneEphemeral {
		v.Clone = c.hostPath(v.Clone)
	}
	c.out.Volumes = append(c.out.Volumes, *v)
	c.container.Mounts = append(c.container.Mounts, v.mount())
	return nil
}

// sentryOptions takes the options of a file system of the guest's own kernel.
func (c *ociConversion) sentryOptions(out *api.Mount, options []string) error {
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		var err error
		switch {
		case strings.HasPrefix(o, "context=") || strings.HasPrefix(o, "fscontext=") || strings.HasPrefix(o, "rootcontext="):
			c.note("mount %s: the label %s does not apply: the guest's kernel has no SELinux", out.Target, o)
		case out.Type == api.MountTmpfs:
			err = c.tmpfsOption(out, key, value)
		case out.Type == api.MountDevpts && key == "newinstance":
		case out.Type == api.MountDevpts && slices.Contains([]string{"ptmxmode", "mode", "uid", "gid"}, key):
			if _, err = number(key, value, 0); err == nil {
				out.Options = append(out.Options, o)
			}
		case out.Type == api.MountDevpts && key == "max":
			c.note("mount %s: option %s does not apply in a guest", out.Target, o)
		case out.Type == api.MountProc && slices.Contains([]string{"hidepid", "gid", "subset"}, key),
			out.Type == api.MountCgroup:
			c.note("mount %s: option %s does not apply in a guest", out.Target, o)
		default:
			err = fmt.Errorf("unknown option %q", o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tmpfsOption takes an option of tmpfs(5).
func (c *ociConversion) tmpfsOption(out *api.Mount, key, value string) error {
	var n uint64
	var err error
	switch key {
	case "mode":
		n, err = number(key, value, 8)
		out.Mode = uint32(n) & 0o7777
	case "uid":
		n, err = number(key, value, 10)
		out.UID = uint32(n)
	case "gid":
		n, err = number(key, value, 10)
		out.GID = uint32(n)
	case "size":
		if strings.HasSuffix(value, "%") {
			c.note("mount %s: size=%s is a part of the host's memory: half of the guest's, in its place", out.Target, value)
			return nil
		}
		out.SizeBytes, err = kernelSize(value)
	case "nr_inodes", "nr_blocks":
		var count int64
		if count, err = kernelSize(value); err == nil {
			out.Options = append(out.Options, fmt.Sprintf("%s=%d", key, count))
		}
	case "huge", "mpol", "inode32", "inode64", "noswap", "usrquota", "grpquota":
		c.note("mount %s: option %s does not apply in a guest", out.Target, key)
	default:
		err = fmt.Errorf("unknown option %q of a tmpfs", key)
	}
	return err
}

// number reads an option's number; base 0 takes the forms that the kernel does.
func number(key, value string, base int) (uint64, error) {
	n, err := strconv.ParseUint(value, base, 32)
	if err != nil {
		return 0, fmt.Errorf("option %s: %q is no number in range", key, value)
	}
	return n, nil
}

// kernelSize reads a size as the kernel's memparse does: a number with k, m, g or
// t. Zero is no bound.
func kernelSize(s string) (int64, error) {
	digits, shift := s, 0
	if s != "" {
		if i := strings.IndexByte("kmgt", s[len(s)-1]|0x20); i >= 0 {
			digits, shift = s[:len(s)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 0, 63)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("option size: %q is no size", s)
	}
	return int64(n << shift), nil
}
