// SPDX-License-Identifier: Apache-2.0

// Docker's notations for directories and files of the host. Beyond docker's keys a
// bind mount has exclusive.

package convert

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// BindMount is a directory or a file of the host as a user asks for it.
type BindMount struct {
	// Source is the path on the host, absolute once it has been parsed by whoever
	// knows the working directory.
	Source string `json:"source"`
	// Target is where the guest sees it.
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// NonRecursive leaves out what the host has mounted below.
	NonRecursive bool `json:"nonRecursive,omitempty"`
	// Propagation is one of docker's, "" for rprivate: the host's mounts that come
	// later appear with slave and shared ones. What guests mount never does on the
	// host.
	Propagation api.Propagation `json:"propagation,omitempty"`
	// Create makes a directory of a source that does not exist.
	Create bool `json:"create,omitempty"`
	// Exclusive says that nobody else changes the source.
	Exclusive bool `json:"exclusive,omitempty"`
}

// propagations are docker's.
var propagations = []api.Propagation{
	api.PropagationPrivate, api.PropagationRPrivate, api.PropagationSlave, api.PropagationRSlave, api.PropagationShared, api.PropagationRShared,
}

// Mount is what the sandbox is told of it, without a socket.
func (b *BindMount) Mount() api.Mount {
	return api.Mount{
		Type: api.MountBind, Target: b.Target, ReadOnly: b.ReadOnly, Propagation: b.Propagation,
		Host: &api.HostTree{FD: api.NoFD, Exclusive: b.Exclusive, NonRecursive: b.NonRecursive, Name: b.Source},
	}
}

// isBindSource tells a path from a volume's name and file, as docker does.
func isBindSource(s string) bool {
	return (path.IsAbs(s) || s == "." || s == ".." || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../")) && !isVolumeFileName(s)
}

// IsRelativeBind says that a source is to be taken from the working directory.
func IsRelativeBind(s string) bool { return isBindSource(s) && !path.IsAbs(s) }

// bindOption takes an option of -v for a directory of the host.
func (b *BindMount) bindOption(opt string) error {
	switch opt {
	case "", "rw", "z", "Z", "consistent", "cached", "delegated", "nocopy":
		// Labels are SELinux', which a gofer runs under; the others are for
		// docker's machines.
	case "ro":
		b.ReadOnly = true
	default:
		if !slices.Contains(propagations, api.Propagation(opt)) {
			return api.Errorf(api.KindInvalid, "invalid mode: %s", opt)
		}
		b.Propagation = api.Propagation(opt)
	}
	return nil
}

// check completes and checks a bind mount.
func (b *BindMount) check() error {
	if b.Source == "" {
		return fmt.Errorf("invalid mount config for type \"bind\": field Source must not be empty")
	}
	if !path.IsAbs(b.Source) && !IsRelativeBind(b.Source) || strings.Contains(b.Source, "\x00") {
		return fmt.Errorf("invalid mount config for type \"bind\": invalid mount path: '%s' mount path must be absolute", b.Source)
	}
	if len(b.Source) > api.MaxPathBytes {
		return api.Errorf(api.KindLimit, "invalid mount config for type \"bind\": source of %d bytes, at most %d", len(b.Source), api.MaxPathBytes)
	}
	return checkMountTarget(&b.Target)
}

// set takes the keys of --mount that are for bind mounts alone.
func (b *BindMount) set(key, value string, has bool) (known bool, err error) {
	switch key {
	case "bind-propagation":
		b.Propagation = api.Propagation(strings.ToLower(value))
		if !slices.Contains(propagations, b.Propagation) {
			err = fmt.Errorf("invalid propagation %q: want one of %s", value, joinPropagations())
		}
	case "bind-nonrecursive":
		err = setBool(&b.NonRecursive, key, value, has)
	case "bind-create-src":
		err = setBool(&b.Create, key, value, has)
	case "exclusive":
		err = setBool(&b.Exclusive, key, value, has)
	case "bind-recursive":
		switch value {
		case "enabled", "readonly": // read-only below too, if at all
		case "disabled":
			b.NonRecursive = true
		case "writable":
			err = api.Errorf(api.KindUnsupported, "%s=%s: what is mounted below a read-only directory is read-only too", key, value)
		default:
			err = fmt.Errorf("invalid value for %s: %s: want \"enabled\", \"disabled\", \"writable\", or \"readonly\"", key, value)
		}
	default:
		return false, nil
	}
	return true, err
}

func joinPropagations() string {
	var words []string
	for _, p := range propagations {
		words = append(words, string(p))
	}
	return strings.Join(words, ", ")
}
