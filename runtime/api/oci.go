// SPDX-License-Identifier: Apache-2.0

// What an OCI bundle asks of a container and docker's options do not.

package api

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of what an OCI container's spec lists.
const (
	// MaxDevices bounds device nodes: `docker run --privileged` lists all of
	// its host's.
	MaxDevices = 4096
	// MaxGuardedPaths bounds masked and read-only paths together.
	MaxGuardedPaths = 4096
	// MaxSysctls and MaxSysctlBytes bound kernel parameters and one value.
	MaxSysctls     = 1024
	MaxSysctlBytes = 4096
	// MaxGroups is Linux' NGROUPS_MAX.
	MaxGroups = 65536
	// MaxSeccompRules and MaxSeccompNames bound a filter: docker's profile has
	// some 40 rules with 500 names.
	MaxSeccompRules = 4096
	MaxSeccompNames = 1 << 16
	// MaxExtraFDs bounds a process' descriptors beyond its streams: with these they
	// go into one message.
	MaxExtraFDs = 64
	// MaxIDMappings is Linux' own limit of a user namespace's map.
	MaxIDMappings = 340
)

// Namespaces says which namespaces a container shares with another one of its
// sandbox, by that one's id. "" is a namespace of its own. All containers of a
// sandbox share its network.
type Namespaces struct {
	PID string `json:"pid,omitempty"`
	IPC string `json:"ipc,omitempty"`
	UTS string `json:"uts,omitempty"`
	// User, if not nil, gives the container a user namespace.
	User *UserNamespace `json:"user,omitempty"`
}

// UserNamespace maps a container's ids to those of the sandbox, which are the
// ids that files of the host have.
type UserNamespace struct {
	UIDs []IDMapping `json:"uids"`
	GIDs []IDMapping `json:"gids"`
}

// IDMapping maps a range of ids.
type IDMapping struct {
	Inside  uint32 `json:"inside"`
	Outside uint32 `json:"outside"`
	Size    uint32 `json:"size"`
}

// Propagation is how mounts and unmounts below a mount reach its peers.
type Propagation string

// The propagations of mount(8), each of one mount or ("r…") of all below it.
const (
	PropagationPrivate     Propagation = "private"
	PropagationRPrivate    Propagation = "rprivate"
	PropagationSlave       Propagation = "slave"
	PropagationRSlave      Propagation = "rslave"
	PropagationShared      Propagation = "shared"
	PropagationRShared     Propagation = "rshared"
	PropagationUnbindable  Propagation = "unbindable"
	PropagationRUnbindable Propagation = "runbindable"
)

// Valid says whether p is one of the above or empty.
func (p Propagation) Valid() bool {
	switch strings.TrimPrefix(string(p), "r") {
	case "", "private", "slave", "shared", "unbindable":
		return p != "r"
	}
	return false
}

// DeviceType is a kind of device node.
type DeviceType string

// The kinds of node that a container can be given.
const (
	DeviceChar  DeviceType = "c"
	DeviceBlock DeviceType = "b"
	DeviceFIFO  DeviceType = "p"
)

// Device is a node that is made in a container.
type Device struct {
	Path  string     `json:"path"`
	Type  DeviceType `json:"type"`
	Major uint32     `json:"major,omitempty"`
	Minor uint32     `json:"minor,omitempty"`
	Mode  uint32     `json:"mode"`
	UID   uint32     `json:"uid,omitempty"`
	GID   uint32     `json:"gid,omitempty"`
}

// Account is who a process runs as. Nothing of the container's files is asked
// but for its home directory, where the environment names none.
type Account struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// Umask is that of the process; nil is 0022.
	Umask *uint32 `json:"umask,omitempty"`
}

// CapabilitySets are a process' capabilities, "CAP_…" names.
type CapabilitySets struct {
	Bounding    []string `json:"bounding,omitempty"`
	Effective   []string `json:"effective,omitempty"`
	Inheritable []string `json:"inheritable,omitempty"`
	Permitted   []string `json:"permitted,omitempty"`
	Ambient     []string `json:"ambient,omitempty"`
}

// SeccompAction is what happens to a system call.
type SeccompAction string

// The actions that the guest's kernel has.
const (
	SeccompAllow       SeccompAction = "allow"
	SeccompErrno       SeccompAction = "errno"
	SeccompTrap        SeccompAction = "trap"
	SeccompTrace       SeccompAction = "trace"
	SeccompKillThread  SeccompAction = "kill-thread"
	SeccompKillProcess SeccompAction = "kill-process"
	SeccompLog         SeccompAction = "log"
)

// SeccompOp compares an argument of a system call.
type SeccompOp string

// The comparisons of a rule.
const (
	SeccompEqual        SeccompOp = "=="
	SeccompNotEqual     SeccompOp = "!="
	SeccompGreater      SeccompOp = ">"
	SeccompGreaterEqual SeccompOp = ">="
	SeccompLess         SeccompOp = "<"
	SeccompLessEqual    SeccompOp = "<="
	// SeccompMasked compares the bits of Value with ValueTwo.
	SeccompMasked SeccompOp = "&=="
)

// Seccomp is a filter for a process and its descendants.
type Seccomp struct {
	// Default is for all calls that no rule matches; Errno goes with it.
	Default SeccompAction `json:"default"`
	Errno   uint16        `json:"errno,omitempty"`
	// Rules are as in libseccomp: of those for a call, the first that looks at
	// no argument decides alone; else the first that matches.
	Rules []SeccompRule `json:"rules,omitempty"`
}

// SeccompRule is an action for some system calls.
type SeccompRule struct {
	// Names are those of the architecture's own table; others say nothing.
	Names  []string      `json:"names"`
	Action SeccompAction `json:"action"`
	Errno  uint16        `json:"errno,omitempty"`
	// Args must all hold. Where two of them look at the same argument, any one
	// is enough, as in runc.
	Args []SeccompArg `json:"args,omitempty"`
}

// SeccompArg is a condition on one argument.
type SeccompArg struct {
	Index    uint      `json:"index"`
	Op       SeccompOp `json:"op"`
	Value    uint64    `json:"value"`
	ValueTwo uint64    `json:"valueTwo,omitempty"`
}

// validateExplicit checks what only an Explicit container may have.
func (c *Container) validateExplicit() error {
	if !c.Explicit && (len(c.Devices)+len(c.MaskedPaths)+len(c.ReadonlyPaths)+len(c.Sysctls) > 0 || c.Propagation != "" || c.Namespaces.User != nil) {
		return Errorf(KindInvalid, "container %s: devices, guarded paths, sysctls, propagation or a user namespace without explicit mounts", c.ID)
	}
	switch {
	case len(c.Devices) > MaxDevices:
		return Errorf(KindLimit, "container %s: %d devices, at most %d", c.ID, len(c.Devices), MaxDevices)
	case len(c.MaskedPaths)+len(c.ReadonlyPaths) > MaxGuardedPaths:
		return Errorf(KindLimit, "container %s: %d masked and read-only paths, at most %d", c.ID, len(c.MaskedPaths)+len(c.ReadonlyPaths), MaxGuardedPaths)
	case len(c.Sysctls) > MaxSysctls:
		return Errorf(KindLimit, "container %s: %d sysctls, at most %d", c.ID, len(c.Sysctls), MaxSysctls)
	case !c.Propagation.Valid():
		return Errorf(KindInvalid, "container %s: unknown propagation %q", c.ID, c.Propagation)
	case len(c.Hostname) > MaxNameBytes || len(c.Domainname) > MaxNameBytes:
		return Errorf(KindLimit, "container %s: host or domain name longer than %d bytes", c.ID, MaxNameBytes)
	}
	for _, list := range [][]string{c.MaskedPaths, c.ReadonlyPaths} {
		for _, p := range list {
			if err := checkTarget(p); err != nil {
				return Errorf(KindInvalid, "container %s: guarded path: %w", c.ID, err)
			}
		}
	}
	for _, d := range c.Devices {
		if err := d.validate(); err != nil {
			return Errorf(KindInvalid, "container %s: %w", c.ID, err)
		}
	}
	for name, value := range c.Sysctls {
		if len(name)+len(value) > MaxSysctlBytes {
			return Errorf(KindLimit, "container %s: sysctl %.64q…: more than %d bytes", c.ID, name, MaxSysctlBytes)
		}
	}
	return c.Namespaces.User.validate(c.ID)
}

func (d *Device) validate() error {
	if err := checkTarget(d.Path); err != nil {
		return fmt.Errorf("device: %w", err)
	}
	if d.Type != DeviceChar && d.Type != DeviceBlock && d.Type != DeviceFIFO {
		return fmt.Errorf("device %s: unknown type %q", d.Path, d.Type)
	}
	return nil
}

func (u *UserNamespace) validate(id string) error {
	if u == nil {
		return nil
	}
	for _, list := range [][]IDMapping{u.UIDs, u.GIDs} {
		if len(list) == 0 || len(list) > MaxIDMappings {
			return Errorf(KindInvalid, "container %s: user namespace: %d mappings, want 1 to %d", id, len(list), MaxIDMappings)
		}
		for _, m := range list {
			if m.Size == 0 || uint64(m.Inside)+uint64(m.Size) > 1<<32-1 || uint64(m.Outside)+uint64(m.Size) > 1<<32-1 {
				return Errorf(KindInvalid, "container %s: user namespace: mapping of %d ids from %d to %d is out of range", id, m.Size, m.Inside, m.Outside)
			}
		}
	}
	return nil
}

// validateNumbers checks what an OCI process has in place of docker's words.
func (p *Process) validateNumbers() error {
	if p.Account != nil {
		if p.User != "" || len(p.AdditionalGroups) > 0 {
			return Errorf(KindInvalid, "a user both by number and by name")
		}
		if len(p.Account.Groups) > MaxGroups {
			return Errorf(KindLimit, "%d supplementary groups, at most %d", len(p.Account.Groups), MaxGroups)
		}
	}
	if a := p.OOMScoreAdj; a != nil && (*a < -1000 || *a > 1000) {
		return Errorf(KindInvalid, "oom_score_adj %d is out of range", *a)
	}
	if len(p.ExtraFDs) > MaxExtraFDs {
		return Errorf(KindLimit, "%d descriptors beyond the streams, at most %d", len(p.ExtraFDs), MaxExtraFDs)
	}
	if p.CapabilitySets != nil && len(p.Capabilities) > 0 {
		return Errorf(KindInvalid, "capabilities both as one set and as five")
	}
	if p.Seccomp != nil {
		return p.Seccomp.validate()
	}
	return nil
}

// seccompActions are all actions, in the order of their precedence in Linux.
var seccompActions = []SeccompAction{SeccompKillProcess, SeccompKillThread, SeccompTrap, SeccompErrno, SeccompTrace, SeccompLog, SeccompAllow}

var seccompOps = []SeccompOp{SeccompEqual, SeccompNotEqual, SeccompGreater, SeccompGreaterEqual, SeccompLess, SeccompLessEqual, SeccompMasked}

const (
	// maxSeccompArgs is the number of arguments of a system call.
	maxSeccompArgs = 6
	// maxSeccompConditions bounds those of one rule, which may look at an
	// argument more than once.
	maxSeccompConditions = 64
)

func (s *Seccomp) validate() error {
	if len(s.Rules) > MaxSeccompRules {
		return Errorf(KindLimit, "seccomp: %d rules, at most %d", len(s.Rules), MaxSeccompRules)
	}
	if !slices.Contains(seccompActions, s.Default) {
		return Errorf(KindInvalid, "seccomp: unknown default action %q", s.Default)
	}
	names := 0
	for _, r := range s.Rules {
		if names += len(r.Names); names > MaxSeccompNames {
			return Errorf(KindLimit, "seccomp: more than %d names of system calls", MaxSeccompNames)
		}
		if !slices.Contains(seccompActions, r.Action) {
			return Errorf(KindInvalid, "seccomp: unknown action %q", r.Action)
		}
		if len(r.Args) > maxSeccompConditions {
			return Errorf(KindLimit, "seccomp: a rule with %d conditions, at most %d", len(r.Args), maxSeccompConditions)
		}
		for _, a := range r.Args {
			if a.Index >= maxSeccompArgs || !slices.Contains(seccompOps, a.Op) {
				return Errorf(KindInvalid, "seccomp: argument %d with comparison %q", a.Index, a.Op)
			}
		}
	}
	return nil
}
