// SPDX-License-Identifier: Apache-2.0

// `rungv exec`.

package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/launch"
)

type execFlags struct {
	detach, interactive, tty, privileged bool
	user, workdir, detachKeys, envZero   string
	env, envFiles                        []string
	task                                 execTaskFlags
}

func newExecCommand(g *globals) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [OPTIONS] CONTAINER COMMAND [ARG...]",
		Short: "Execute a command in a running container",
		Long: `Run an additional process in a running container, with the user, environment,
working directory and limits of the container's own unless flags say otherwise.
The container may have been started by 'rungv run', with or without --detach.

Signals that this command gets go to the process; those that end programs go to
its process group, and what is left of its session then ends with it. When this command ends first,
killed say, the process and what it began end too, but not what detached itself
from it; with --detach, or after the detach keys, it goes on.

The exit code is the process' own; 128+n when signal n ended it; 126 when the
command cannot be executed, 127 when it does not exist, 1 when the container
does not run.

In a container of an OCI bundle the flags are runc's, and the process has this
command's own standard streams. With --process a document describes all of it.`,
		Example: "  rungv exec -it box bash\n  rungv exec -w /src -e CI=1 -u nobody box make test\n  echo hi | rungv exec -i box cat",
		Args:    atLeast(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return runExec(cmd, g, &f, args) },

		ValidArgsFunction: completeContainers(g, isRunning),
	}
	fl := cmd.Flags()
	// What follows COMMAND is the guest's, flags included.
	fl.SetInterspersed(false)
	fl.BoolVarP(&f.detach, "detach", "d", false, "Detached mode: run command in the background")
	fl.StringVar(&f.detachKeys, "detach-keys", launch.DefaultDetachKeys, "Override the key sequence for detaching a container")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "Set environment variables")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "Read in a file of environment variables")
	fl.StringVar(&f.envZero, "env-zero-file", "", "File of environment variables, each ended by a zero byte: for programs that start rungv")
	_ = fl.MarkHidden("env-zero-file")
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "Keep STDIN open even if not attached")
	fl.BoolVar(&f.privileged, "privileged", false, "Give extended privileges to the command, inside the container's own kernel")
	fl.BoolVarP(&f.tty, "tty", "t", false, "Allocate a pseudo-TTY")
	fl.StringVarP(&f.user, "user", "u", "", "Username or UID (format: <name|uid>[:<group|gid>])")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "Working directory inside the container")
	f.task.register(fl)
	return cmd
}

func runExec(cmd *cobra.Command, g *globals, f *execFlags, args []string) error {
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	if rec, err := r.State.Get(args[0]); err == nil && rec.Task != nil {
		return execTask(cmd, g, r, rec, f, args[1:])
	}
	if err := atLeast(2)(cmd, args); err != nil {
		return err
	}
	o := container.ExecOptions{
		Args: args[1:], Workdir: f.workdir, User: f.user, Privileged: f.privileged,
		TTY: f.tty, Interactive: f.interactive, Detach: f.detach,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	if o.Env, err = readAllEnv(f.envFiles, f.env, f.envZero); err != nil {
		return err
	}
	if o.DetachKeys, err = launch.ParseDetachKeys(f.detachKeys); err != nil {
		return err
	}
	if f.tty && f.interactive && !f.detach && !term.IsTerminal(int(os.Stdin.Fd())) {
		return api.Errorf(api.KindInvalid, "the input device is not a TTY")
	}
	if g.caller != nil {
		o.Started = g.caller.started
	}
	ctx, stop := g.caller.context(cmd.Context())
	defer stop()
	res, err := r.Exec(ctx, args[0], o)
	switch {
	case err != nil:
		code := exitFailure
		switch api.KindOf(err) {
		case api.KindCommandNotFound, api.KindCommandNotExecutable:
			code = container.ExitCode(err)
		}
		return &exitError{code: code, err: fmt.Errorf("exec failed: %w", err)}
	case res.ContainerEnded && g.caller != nil:
		return &exitError{code: res.Exit.Code, err: api.Errorf(api.KindState, "the container has ended under the command")}
	}
	g.caller.ended(res.Exit)
	switch {
	case res.Running && !f.detach:
		fmt.Fprintln(cmd.ErrOrStderr(), "read escape sequence")
	case res.Exit.Code != 0:
		return &exitError{code: res.Exit.Code}
	}
	return nil
}
