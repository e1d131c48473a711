// SPDX-License-Identifier: Apache-2.0

// `rungv exec` in a container of an OCI bundle, with runc's flags.

package cli

import (
	"context"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/state"
)

// execTaskFlags are those of `exec` that are about a bundle's container.
type execTaskFlags struct {
	process, consoleSocket, pidFile, pidfdSocket, cwd string
	additionalGids                                    []uint32
	caps                                              []string
	noNewPrivs                                        bool
	preserveFDs                                       int
	cgroups                                           []string
	ignorePaused                                      bool
	ignored                                           struct {
		apparmor, label string
		noSubreaper     bool
	}
}

func (f *execTaskFlags) register(fl *pflag.FlagSet) {
	fl.StringVarP(&f.process, "process", "p", "", "Of an OCI bundle's container: path to the process.json")
	fl.StringVar(&f.consoleSocket, "console-socket", "", "Likewise: unix socket that gets the process' terminal")
	fl.StringVar(&f.pidFile, "pid-file", "", "Likewise: file that gets the number of the host's process that stands for it")
	fl.StringVar(&f.pidfdSocket, "pidfd-socket", "", "Likewise: unix socket that gets a descriptor of that process")
	fl.StringVar(&f.cwd, "cwd", "", "Likewise: current working directory in the container")
	fl.Var((*gidsFlag)(&f.additionalGids), "additional-gids", "Likewise: additional gids")
	fl.StringArrayVarP(&f.caps, "cap", "c", nil, "Likewise: add a capability to the bounding set for the process")
	fl.BoolVar(&f.noNewPrivs, "no-new-privs", false, "Likewise: set the no new privileges value for the process")
	fl.IntVar(&f.preserveFDs, "preserve-fds", 0, "Likewise: number of descriptors after the streams that the process gets: pipes, terminals, files")
	fl.StringArrayVar(&f.cgroups, "cgroup", nil, "Likewise: [CONTROLLER,…:]PATH below the container's cgroup for the host's process that stands for it")
	fl.BoolVar(&f.ignorePaused, "ignore-paused", false, "Likewise: wait until the container is resumed, if it is paused")
	// What runc's callers give and a sandbox has no use for.
	fl.StringVar(&f.ignored.apparmor, "apparmor", "", "")
	fl.StringVar(&f.ignored.label, "process-label", "", "")
	fl.BoolVar(&f.ignored.noSubreaper, "no-subreaper", false, "")
	for _, name := range []string{"apparmor", "process-label", "no-subreaper"} {
		_ = fl.MarkHidden(name)
	}
}

// gidsFlag is a list of numbers, given once each or with commas.
type gidsFlag []uint32

func (g *gidsFlag) String() string { return "" }
func (g *gidsFlag) Type() string   { return "gids" }
func (g *gidsFlag) Set(s string) error {
	for _, part := range strings.Split(s, ",") {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return api.Errorf(api.KindInvalid, "%q is no group id", part)
		}
		*g = append(*g, uint32(n))
	}
	return nil
}

// execTask runs a process in a bundle's container.
func execTask(cmd *cobra.Command, g *globals, r *container.Runner, rec *state.Record, f *execFlags, args []string) error {
	p, err := taskProcess(rec, f, args)
	if err != nil {
		return execError(err)
	}
	below, err := subCgroups(f.task.cgroups)
	if err == nil {
		err = awaitResumed(cmd.Context(), r, rec, f.task.ignorePaused)
	}
	if err != nil {
		return execError(err)
	}
	if f.detach || f.task.consoleSocket != "" {
		x := container.TaskExec{
			Container: rec.ID, Process: *p, PIDFile: f.task.pidFile, ConsoleSocket: f.task.consoleSocket, PIDFDSocket: f.task.pidfdSocket,
			PreserveFDs: f.task.preserveFDs, Cgroups: below,
		}
		if f.detach {
			_, err := r.ExecTaskDetached(cmd.Context(), g.supervisorArgs("", false), x)
			return execError(err)
		}
		exit, err := r.ExecTask(cmd.Context(), x)
		if err != nil {
			return execError(err)
		}
		return exitOf(exit, nil)
	}
	o := container.ExecOptions{
		Process: p, PIDFile: f.task.pidFile, PIDFDSocket: f.task.pidfdSocket, PreserveFDs: f.task.preserveFDs, Cgroups: below, TTY: p.Terminal, Interactive: true, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	res, err := r.Exec(cmd.Context(), rec.ID, o)
	if err != nil {
		return execError(err)
	}
	return exitOf(res.Exit, nil)
}

// resumePoll is how often a paused container is looked at.
const resumePoll = 50 * time.Millisecond

// awaitResumed refuses a paused container or, with patient, waits for its end of pause.
func awaitResumed(ctx context.Context, r *container.Runner, rec *state.Record, patient bool) error {
	for rec.Paused {
		if !patient {
			return api.Errorf(api.KindState, "cannot exec in a paused container (use --ignore-paused to override)")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(resumePoll):
		}
		var err error
		if rec, err = r.State.Get(rec.ID); err != nil {
			return err
		}
	}
	return nil
}

// subCgroups reads --cgroup: a path for some controllers of version 1, or one for all.
func subCgroups(args []string) (map[string]string, error) {
	below := make(map[string]string, len(args))
	for _, arg := range args {
		controllers, path, found := strings.Cut(arg, ":")
		if !found {
			if len(args) != 1 {
				return nil, api.Errorf(api.KindInvalid, "invalid --cgroup argument: %s (missing <controller>: prefix)", arg)
			}
			below[""] = arg
			continue
		}
		for _, c := range strings.Split(controllers, ",") {
			if _, twice := below[c]; c == "" || twice {
				return nil, api.Errorf(api.KindInvalid, "invalid --cgroup argument: %s (controller %q is empty, or given twice)", arg, c)
			}
			below[c] = path
		}
	}
	return below, nil
}

// execError gives the failure of an exec the exit code that runc's callers expect.
func execError(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: execFailure, err: err}
}

// execFailure is runc's exit code for an exec that could not be.
const execFailure = 255

// taskProcess is the process that the flags describe: a document, or the
// container's own with changes.
func taskProcess(rec *state.Record, f *execFlags, args []string) (*api.Process, error) {
	stub := &specs.Spec{Annotations: rec.Task.Annotations}
	if f.task.process != "" {
		doc, err := bundle.LoadProcess(f.task.process)
		if err != nil {
			return nil, err
		}
		doc.Terminal = doc.Terminal || f.tty
		p, _, err := convert.OCIProcess(doc, stub)
		if err != nil {
			return nil, err
		}
		if doc.Capabilities == nil {
			p.CapabilitySets, p.Capabilities = rec.Process.CapabilitySets, rec.Process.Capabilities
		}
		p.Seccomp = rec.Process.Seccomp
		return p, nil
	}
	if len(args) == 0 {
		return nil, api.Errorf(api.KindInvalid, "process args cannot be empty: give a command, or --process")
	}
	p := rec.Process
	p.Args, p.Terminal = args, f.tty
	p.Env = slices.Concat(p.Env, f.env)
	if cwd := f.task.cwd + f.workdir; cwd != "" {
		p.Cwd = path.Clean(cwd)
	}
	p.NoNewPrivileges = p.NoNewPrivileges || f.task.noNewPrivs
	if err := setAccount(&p, f); err != nil {
		return nil, err
	}
	if len(f.task.caps) > 0 && p.CapabilitySets != nil {
		sets := *p.CapabilitySets
		for _, set := range []*[]string{&sets.Bounding, &sets.Effective, &sets.Permitted} {
			*set = slices.Concat(*set, f.task.caps)
		}
		if len(sets.Inheritable) > 0 {
			// As runc: what is ambient has to be inheritable, which --cap makes nothing.
			sets.Ambient = slices.Concat(sets.Ambient, f.task.caps)
		}
		p.CapabilitySets = &sets
	}
	if f.privileged {
		all, err := convert.Capabilities(nil, nil)
		if err != nil {
			return nil, err
		}
		p.Capabilities, p.CapabilitySets = all, nil
	}
	return &p, p.Validate()
}

// setAccount applies --user and --additional-gids, which are numbers.
func setAccount(p *api.Process, f *execFlags) error {
	if f.user == "" && len(f.task.additionalGids) == 0 {
		return nil
	}
	var a api.Account
	if p.Account != nil {
		a = *p.Account
	}
	if f.user != "" {
		user, group, grouped := strings.Cut(f.user, ":")
		uid, err := strconv.ParseUint(user, 10, 32)
		if err == nil && grouped {
			var gid uint64
			gid, err = strconv.ParseUint(group, 10, 32)
			a.GID = uint32(gid)
		}
		if err != nil {
			return api.Errorf(api.KindInvalid, "parsing --user %q: want UID[:GID]: names belong to images", f.user)
		}
		a.UID = uint32(uid)
	}
	a.Groups = slices.Concat(a.Groups, f.task.additionalGids)
	p.Account = &a
	return nil
}
