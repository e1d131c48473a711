// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Limits of a sandbox spec. Each bounds what a caller can make the sandbox
// allocate before the guest runs.
const (
	// MaxSpecBytes bounds the JSON document: arguments and environment of
	// Linux' own 2 MiB limit, escaped, and the files.
	MaxSpecBytes = 16 << 20
	// MaxCores is the Sentry's own limit on application cores.
	MaxCores = 1024
	// MaxLayers is what overlay stacks need: docker stops at 127 layers.
	MaxLayers = 500
	// MaxMounts bounds additional mounts, and directories to make.
	MaxMounts = 4096
	// MaxPathBytes is Linux' own limit on a path. gVisor has none, and makes
	// the directories of one in time that grows with its square.
	MaxPathBytes = 4095
	// MaxFiles and MaxFileBytes bound the files placed over the rootfs.
	MaxFiles     = 64
	MaxFileBytes = 1 << 20
	// MaxNameBytes bounds host and domain names (Linux: 64).
	MaxNameBytes = 64
)

// Validate checks everything that does not need the host: versions, bounds,
// paths. It returns an [Error] of KindInvalid or KindLimit.
func (s *Sandbox) Validate() error {
	switch {
	case s.Version != SpecVersion:
		return Errorf(KindInvalid, "sandbox spec: version %d, want %d: launcher and sandbox are different builds", s.Version, SpecVersion)
	case s.ID == "":
		return Errorf(KindInvalid, "sandbox spec: no id")
	case len(s.Hostname) > MaxNameBytes || len(s.Domainname) > MaxNameBytes:
		return Errorf(KindLimit, "sandbox spec: host or domain name longer than %d bytes", MaxNameBytes)
	case !slices.Contains([]NetworkMode{NetworkNone, NetworkNAT, NetworkNetns, NetworkHost}, s.Network.Mode):
		return Errorf(KindInvalid, "sandbox spec: unknown network mode %q", s.Network.Mode)
	case (s.Network.Mode == NetworkNAT) != (s.Network.BrokerFD > 0):
		return Errorf(KindInvalid, "sandbox spec: network mode %q with descriptor %d as its broker's channel", s.Network.Mode, s.Network.BrokerFD)
	case s.Network.Mode != NetworkNetns && len(s.Network.Links) > 0:
		return Errorf(KindInvalid, "sandbox spec: network mode %q with %d interfaces of a network namespace", s.Network.Mode, len(s.Network.Links))
	case s.LateTrees && s.Network.Mode == NetworkNAT:
		return Errorf(KindUnsupported, "sandbox spec: containers that join a sandbox with network mode %q cannot have host directories: give them to its first container, or use another network", NetworkNAT)
	case s.Resources.MemoryBytes < 0 || s.Resources.CPUMillis < 0 || s.Resources.Pids < 0:
		return Errorf(KindInvalid, "sandbox spec: negative resource limit")
	case s.ControlFD < 0:
		return Errorf(KindInvalid, "sandbox spec: no control channel")
	}
	if err := ValidateLinks(s.Network.Links); err != nil {
		return Errorf(KindOf(err), "sandbox spec: %w", err)
	}
	return s.Container.Validate()
}

// Validate checks a container by itself, as [Sandbox.Validate] does.
func (c *Container) Validate() error {
	switch {
	case c.ID == "":
		return Errorf(KindInvalid, "container spec: no id")
	case c.Idle && (c.InitFD <= 2 || len(c.Rootfs.Layers) > 0 || c.Rootfs.Host != nil || c.Rootfs.Upper != nil):
		return Errorf(KindInvalid, "container %s: idle, and without its program, or with a root file system", c.ID)
	case !c.Idle && len(c.Rootfs.Layers) == 0 && c.Rootfs.Host == nil:
		return Errorf(KindInvalid, "container %s: rootfs without layers", c.ID)
	case len(c.Rootfs.Layers) > 0 && c.Rootfs.Host != nil:
		return Errorf(KindInvalid, "container %s: rootfs of layers and of host directory %s: want one of them", c.ID, c.Rootfs.Host.Name)
	case len(c.Rootfs.Layers) > MaxLayers:
		return Errorf(KindLimit, "container %s: %d layers, at most %d", c.ID, len(c.Rootfs.Layers), MaxLayers)
	case len(c.Mounts) > MaxMounts:
		return Errorf(KindLimit, "container %s: %d mounts, at most %d", c.ID, len(c.Mounts), MaxMounts)
	case len(c.Directories) > MaxMounts:
		return Errorf(KindLimit, "container %s: %d directories to make, at most %d", c.ID, len(c.Directories), MaxMounts)
	case len(c.Files) > MaxFiles:
		return Errorf(KindLimit, "container %s: %d files, at most %d", c.ID, len(c.Files), MaxFiles)
	}
	if c.StartHooks != "" && c.InitFD < 0 {
		return Errorf(KindInvalid, "container %s: startContainer hooks, and no program to run them", c.ID)
	}
	if len(c.Hostname) > MaxNameBytes || len(c.Domainname) > MaxNameBytes {
		return Errorf(KindLimit, "container %s: host or domain name longer than %d bytes", c.ID, MaxNameBytes)
	}
	for _, l := range c.Rootfs.Layers {
		if l.FD < 0 || l.Format != "erofs" {
			return Errorf(KindInvalid, "container %s: layer %s: format %q without descriptor or unknown", c.ID, l.DiffID, l.Format)
		}
	}
	if err := c.validateMounts(); err != nil {
		return err
	}
	if err := c.validateExplicit(); err != nil {
		return err
	}
	for _, d := range c.Directories {
		if err := checkTarget(d); err != nil {
			return Errorf(KindInvalid, "container %s: directory: %w", c.ID, err)
		}
	}
	for _, f := range c.Files {
		if err := checkTarget(f.Path); err != nil {
			return Errorf(KindInvalid, "container %s: file: %w", c.ID, err)
		}
		if len(f.Data) > MaxFileBytes {
			return Errorf(KindLimit, "container %s: file %s: %d bytes, at most %d", c.ID, f.Path, len(f.Data), MaxFileBytes)
		}
	}
	if err := c.Process.Validate(); err != nil {
		return Errorf(KindInvalid, "container %s: %w", c.ID, err)
	}
	return nil
}

// Validate checks what a process is to be, apart from its descriptors. It
// returns an [Error] of KindInvalid or KindLimit.
func (p *Process) Validate() error {
	switch {
	case len(p.Args) == 0:
		return Errorf(KindInvalid, "no command: the image names none, give one")
	case !path.IsAbs(p.Cwd):
		return Errorf(KindInvalid, "working directory %q is not absolute", p.Cwd)
	}
	if err := checkTarget(path.Join(p.Cwd, "x")); err != nil {
		return Errorf(KindInvalid, "working directory: %w", err)
	}
	for _, a := range p.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return Errorf(KindInvalid, "argument %q holds a zero byte", a)
		}
	}
	for _, e := range p.Env {
		if i := strings.IndexByte(e, '='); i < 1 || strings.IndexByte(e, 0) >= 0 {
			return Errorf(KindInvalid, "environment entry %q is not NAME=value", e)
		}
	}
	return p.validateNumbers()
}

func (c *Container) validateMounts() error {
	for _, m := range c.Mounts {
		if err := checkTarget(m.Target); err != nil {
			return Errorf(KindInvalid, "container %s: mount: %w", c.ID, err)
		}
		if len(m.Source) > MaxPathBytes || strings.IndexByte(m.Source, 0) >= 0 {
			return Errorf(KindInvalid, "container %s: mount %s: a source that is too long, or holds a zero byte", c.ID, m.Target)
		}
		if !m.Propagation.Valid() {
			return Errorf(KindInvalid, "container %s: mount %s: unknown propagation %q", c.ID, m.Target, m.Propagation)
		}
		switch m.Type {
		case MountProc, MountSysfs, MountDevpts, MountMqueue, MountCgroup:
			if !c.Explicit || m.Volume != nil {
				return Errorf(KindInvalid, "container %s: mount %s: type %q is for explicit mounts, and without a volume", c.ID, m.Target, m.Type)
			}
		case MountTmpfs:
			if m.Volume != nil || m.Host != nil {
				return Errorf(KindInvalid, "container %s: mount %s: a tmpfs with a volume or a host directory", c.ID, m.Target)
			}
		case MountBind:
			if err := m.Host.validate(); err != nil {
				return Errorf(KindInvalid, "container %s: mount %s: %w", c.ID, m.Target, err)
			}
			if m.Volume != nil || m.Populate {
				return Errorf(KindInvalid, "container %s: mount %s: a bind mount with a volume", c.ID, m.Target)
			}
		case MountVolume:
			if m.Host != nil {
				return Errorf(KindInvalid, "container %s: mount %s: a volume with a host directory", c.ID, m.Target)
			}
			if err := m.Volume.validate(); err != nil {
				return Errorf(KindInvalid, "container %s: mount %s: %w", c.ID, m.Target, err)
			}
		default:
			return Errorf(KindInvalid, "container %s: mount %s: unknown type %q", c.ID, m.Target, m.Type)
		}
	}
	if h := c.Rootfs.Host; h != nil {
		if err := h.validate(); err != nil {
			return Errorf(KindInvalid, "container %s: rootfs: %w", c.ID, err)
		}
		if h.IsFile {
			return Errorf(KindInvalid, "container %s: rootfs %s is not a directory", c.ID, h.Name)
		}
	}
	if u := c.Rootfs.Upper; u != nil {
		if err := u.validate(); err != nil {
			return Errorf(KindInvalid, "container %s: writable layer: %w", c.ID, err)
		}
	}
	if d := c.Rootfs.UpperDirectory; d != "" && (c.Rootfs.Upper == nil || len(d) > MaxPathBytes || path.Clean("/"+d) != "/"+d) {
		return Errorf(KindInvalid, "container %s: writable layer: directory %.64q is none of a volume", c.ID, d)
	}
	return nil
}

func (h *HostTree) validate() error {
	switch {
	case h == nil:
		return errors.New("no host directory")
	case h.FD < 0:
		return fmt.Errorf("host directory %s: no descriptor", h.Name)
	case len(h.Name) > MaxPathBytes:
		return fmt.Errorf("host directory %.64q…: %d bytes, at most %d", h.Name, len(h.Name), MaxPathBytes)
	}
	return nil
}

func (v *Volume) validate() error {
	switch {
	case v == nil:
		return errors.New("no volume")
	case len(v.FDs) == 0 || len(v.FDs) > MaxVolumeFiles:
		return fmt.Errorf("volume %s: %d files, want 1 to %d", v.Name, len(v.FDs), MaxVolumeFiles)
	case v.Durability != DurabilityHost && v.Durability != DurabilityProcess:
		return fmt.Errorf("volume %s: unknown durability %q: want %q or %q", v.Name, v.Durability, DurabilityHost, DurabilityProcess)
	}
	for _, fd := range v.FDs {
		if fd < 0 {
			return fmt.Errorf("volume %s: a file without descriptor", v.Name)
		}
	}
	return nil
}

func checkTarget(p string) error {
	if !path.IsAbs(p) || path.Clean(p) == "/" || strings.IndexByte(p, 0) >= 0 {
		return Errorf(KindInvalid, "target %q: want an absolute path below /", p)
	}
	if len(p) > MaxPathBytes {
		return Errorf(KindLimit, "target %.64q…: %d bytes, at most %d", p, len(p), MaxPathBytes)
	}
	return nil
}
