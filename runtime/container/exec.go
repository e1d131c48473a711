// SPDX-License-Identifier: Apache-2.0

package container

import (
	"io"
	"os"
	"slices"
	"strings"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

// ExecOptions describe an additional process in a running container.
type ExecOptions struct {
	Args []string
	// Env is added to the container's: NAME=value, or NAME alone to remove.
	Env           []string
	Workdir, User string
	Privileged    bool
	TTY           bool
	Interactive   bool
	// Detach returns once the process runs; it has no streams then.
	Detach     bool
	DetachKeys []byte

	// Stdin is read when Interactive is set.
	Stdin          *os.File
	Stdout, Stderr io.Writer

	// Process, if not nil, is the whole process, in place of all above that
	// describes one.
	Process *api.Process
	// PIDFile, if not empty, gets this process' number once that one runs, and
	// PIDFDSocket a descriptor of it.
	PIDFile, PIDFDSocket string
	// PreserveFDs is how many descriptors after its streams the process gets of this
	// one's.
	PreserveFDs int
	// Cgroups are as [TaskExec]'s.
	Cgroups map[string]string
	// Program, if not nil, runs in place of Args[0].
	Program *os.File
	// Started, if not nil, is called once the process runs.
	Started func()
	// NoSignals leaves this process' signals alone.
	NoSignals bool
}

// process is what the options make of a container's own process.
func (o *ExecOptions) process(rec *state.Record) (api.Process, error) {
	if o.Process != nil {
		return *o.Process, o.Process.Validate()
	}
	p := rec.Process
	p.Args, p.Terminal = o.Args, o.TTY
	p.Env = mergeEnv(p.Env, o.Env)
	if o.TTY && !slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	if o.Workdir != "" {
		p.Cwd = o.Workdir
	}
	if o.User != "" {
		p.User, p.Account = o.User, nil
		if p.CapabilitySets != nil {
			// Whoever root becomes has them effective, and nobody else.
			p.Capabilities, p.CapabilitySets = p.CapabilitySets.Bounding, nil
		}
	}
	if o.Privileged {
		all, err := convert.Capabilities(nil, nil)
		if err != nil {
			return p, err
		}
		p.Capabilities, p.CapabilitySets, p.NoNewPrivileges = all, nil, false
	}
	return p, p.Validate()
}

// mergeEnv adds variables to an environment; a name alone removes one.
func mergeEnv(env, more []string) []string {
	out := slices.Clone(env)
	for _, e := range more {
		name, _, set := strings.Cut(e, "=")
		out = slices.DeleteFunc(out, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		if set {
			out = append(out, e)
		}
	}
	return out
}
