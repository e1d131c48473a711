// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"math"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// maxTerminalSide is what a terminal's size can hold.
const maxTerminalSide = math.MaxUint16

// process is the container's first process.
func (c *ociConversion) process() error {
	p, notes, err := ociProcess(c.spec.Process, c.open)
	if err != nil {
		return err
	}
	c.out.Notes = append(c.out.Notes, notes...)
	c.out.Warnings = append(c.out.Warnings, ambientWarnings(p.CapabilitySets)...)
	if !c.open {
		if p.Seccomp, notes, err = ociSeccomp(c.linux.Seccomp); err != nil {
			return err
		}
		c.out.Notes = append(c.out.Notes, notes...)
	}
	c.container.Process = *p
	return nil
}

// OCIProcess is an additional process of a container: what its own document
// says, and what it shares with the container of spec (the seccomp filter; the
// capabilities, where it has none of its own).
func OCIProcess(p *specs.Process, spec *specs.Spec) (*api.Process, []string, error) {
	open := spec.Annotations[AnnotationPrivileged] == "true"
	own := *p
	if own.Capabilities == nil && spec.Process != nil {
		own.Capabilities = spec.Process.Capabilities
	}
	out, notes, err := ociProcess(&own, open)
	if err != nil || open || spec.Linux == nil {
		return out, notes, err
	}
	// The container's notes have been given already.
	out.Seccomp, _, err = ociSeccomp(spec.Linux.Seccomp)
	return out, notes, err
}

// ociProcess converts a process; open gives it all capabilities.
func ociProcess(p *specs.Process, open bool) (*api.Process, []string, error) {
	var notes []string
	note := func(text string) { notes = append(notes, text) }
	out := &api.Process{
		Args: slices.Clone(p.Args), Env: ociEnv(p.Env), Cwd: path.Clean(p.Cwd),
		Account:         &api.Account{UID: p.User.UID, GID: p.User.GID, Groups: slices.Clone(p.User.AdditionalGids), Umask: p.User.Umask},
		NoNewPrivileges: p.NoNewPrivileges && !open,
		OOMScoreAdj:     p.OOMScoreAdj,
		Terminal:        p.Terminal,
		StdinFD:         api.NoFD, StdoutFD: api.NoFD, StderrFD: api.NoFD,
	}
	if p.User.Umask != nil && *p.User.Umask > 0o777 {
		return nil, nil, api.Errorf(api.KindInvalid, "umask %#o is out of range", *p.User.Umask)
	}
	if s := p.ConsoleSize; s != nil && p.Terminal {
		if s.Height > maxTerminalSide || s.Width > maxTerminalSide {
			return nil, nil, api.Errorf(api.KindInvalid, "console size %d×%d is out of range", s.Height, s.Width)
		}
		out.Rows, out.Columns = uint16(s.Height), uint16(s.Width)
	}
	for _, l := range p.Rlimits {
		out.Rlimits = append(out.Rlimits, api.Rlimit{Name: strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_")), Soft: l.Soft, Hard: l.Hard})
	}
	out.CapabilitySets = &api.CapabilitySets{}
	switch caps := p.Capabilities; {
	case open:
		all := slices.Clone(capabilityNames)
		*out.CapabilitySets = api.CapabilitySets{Bounding: all, Permitted: all, Effective: all}
	case caps != nil:
		s := out.CapabilitySets
		for _, set := range []struct {
			to   *[]string
			from []string
		}{{&s.Bounding, caps.Bounding}, {&s.Effective, caps.Effective}, {&s.Inheritable, caps.Inheritable},
			{&s.Permitted, caps.Permitted}, {&s.Ambient, caps.Ambient}} {
			var unknown []string
			*set.to, unknown = knownCapabilities(set.from)
			for _, name := range unknown {
				if text := "ignoring unknown capability " + name; !slices.Contains(notes, text) {
					note(text)
				}
			}
		}
	}
	if p.ApparmorProfile != "" {
		note("the AppArmor profile " + p.ApparmorProfile + " does not apply: the guest's kernel has no AppArmor")
	}
	if p.SelinuxLabel != "" {
		note("the SELinux label " + p.SelinuxLabel + " does not apply: the guest's kernel has no SELinux")
	}
	if p.Scheduler != nil || p.IOPriority != nil || p.ExecCPUAffinity != nil {
		note("scheduler, ioPriority and execCPUAffinity do not apply: the guest's kernel schedules by itself")
	}
	return out, notes, nil
}

// ambientWarnings tell of capabilities that cannot be ambient: they have to be permitted
// and inheritable.
func ambientWarnings(s *api.CapabilitySets) []string {
	var warnings []string
	for _, name := range s.Ambient {
		if !slices.Contains(s.Permitted, name) || !slices.Contains(s.Inheritable, name) {
			warnings = append(warnings, "can't raise ambient capability "+name+": it is not both permitted and inheritable")
		}
	}
	return warnings
}

// knownCapabilities keeps the names of a set that mean something, each once. The
// specification wants others to be passed over.
func knownCapabilities(names []string) (known, unknown []string) {
	for _, n := range names {
		switch name := strings.ToUpper(n); {
		case !slices.Contains(capabilityNames, name):
			unknown = append(unknown, n)
		case !slices.Contains(known, name):
			known = append(known, name)
		}
	}
	return known, unknown
}

// ociEnv keeps the last value of each variable, in its place. An empty HOME is
// none, as in runc.
func ociEnv(env []string) []string {
	last := make(map[string]int, len(env))
	for i, e := range env {
		name, _, _ := strings.Cut(e, "=")
		last[name] = i
	}
	var out []string
	for i, e := range env {
		if name, _, _ := strings.Cut(e, "="); last[name] == i && e != "HOME=" {
			out = append(out, e)
		}
	}
	return out
}
