// SPDX-License-Identifier: Apache-2.0

// Package cli is rungv's command line: verbs, flags, what is printed and with
// which exit code. Names, flags, columns and messages are docker's wherever
// docker has the thing.
//
// It owns everything that a person sees. It never does the work itself: verbs
// turn flags into Go values and call runtime/container and runtime/images.
//
// Errors reach the user in one place, [Main], as "rungv: …" on standard error,
// once. A verb returns its error, and an [exitError] where the exit code is not
// simply the error's own.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
)

// Version is the program's version; the build sets it.
var Version = "unknown"

// Exit codes of rungv itself; a container's own come through as they are.
const (
	exitFailure = 1
	// exitRunFailure is what `run` and bad flags give, as in docker.
	exitRunFailure = 125
)

// exitError is an exit code, with an error to print or without.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake in the command line; the user is told where to look.
type usageError struct {
	err  error
	verb string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	g := &globals{}
	root := newRootCommand(g)
	root.SetArgs(args)
	return report(g, root.ExecuteContext(context.Background()))
}

// report prints an error, or tells the caller, and returns its exit code.
func report(g *globals, err error) int {
	if err == nil {
		return 0
	}
	code := exitFailure
	var exit *exitError
	if errors.As(err, &exit) {
		code = exit.code
		if exit.err == nil {
			return code
		}
	}
	var usage *usageError
	if errors.As(err, &usage) && exit == nil {
		code = exitRunFailure
	}
	if g.caller.failed(err, code) {
		return code
	}
	if g.LogPath != "" && g.log != nil {
		// Engines look there for the reason.
		g.log.Error(strings.TrimRight(err.Error(), "\n"))
	}
	fmt.Fprintf(os.Stderr, "rungv: %s\n", strings.TrimRight(err.Error(), "\n"))
	if usage != nil {
		fmt.Fprintf(os.Stderr, "\nRun '%s --help' for more information\n", usage.verb)
	}
	return code
}

// newRootCommand makes `rungv`.
func newRootCommand(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "rungv [OPTIONS] COMMAND [ARG...]",
		Short: "Run containers in unprivileged, self-locked user-space kernels",
		Long: `Run containers, each in one unprivileged process that is its own kernel.

A container's system calls never reach the host: a gVisor Sentry serves them
inside a process that has locked itself down before the first guest instruction.
No root, no daemon, no user namespace, no KVM is needed.`,
		Example:           "  rungv run --rm -it debian:12 bash\n  rungv run --rm -m 512m --cpus 1 oci:./image python3 -c 'print(42)'\n  rungv ps -a",
		SilenceErrors:     true,
		SilenceUsage:      true,
		TraverseChildren:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return g.setup() },
		Args:              unknownCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:           Version,
	}
	root.SetVersionTemplate("rungv version {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err: err, verb: cmd.CommandPath()}
	})
	g.register(root)
	root.AddCommand(
		newRunCommand(g), newCreateCommand(g), newStartCommand(g), newAttachCommand(g), newLogsCommand(g), newWaitCommand(g), newExecCommand(g),
		newCopyCommand(g), newRenameCommand(g), newUpdateCommand(g), newPauseCommand(g), newUnpauseCommand(g),
		newSuperviseCommand(g), newPsCommand(g), newInspectCommand(g), newKillCommand(g), newStopCommand(g), newRmCommand(g),
		newStatsCommand(g), newTopCommand(g), newPortCommand(g), newNetworkCommand(g), newDoctorCommand(g), newInfoCommand(g), newVersionCommand(),
	)
	root.AddCommand(newFilesCommand(g), newImageCommand(g), newVolumeCommand(g))
	root.AddCommand(newInstallCommand(), newUninstallCommand())
	root.AddCommand(
		newStateCommand(g), newTaskListCommand(g), newDeleteCommand(g), newResumeCommand(g), newEventsCommand(g), newSpecCommand(g), newFeaturesCommand(),
		newUncheckpointable("checkpoint", "Checkpoint a running container"), newUncheckpointable("restore", "Restore a container from a checkpoint"),
	)
	root.AddCommand(newImageAliases(g)...)
	return root
}

// unknownCommand is the error for a first argument that is no verb.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{
		err:  api.Errorf(api.KindInvalid, "unknown command: %s %s", cmd.CommandPath(), args[0]),
		verb: cmd.CommandPath(),
	}
}

// exactly and atLeast are cobra's argument checks in our words.
func atLeast(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		return &usageError{
			err:  api.Errorf(api.KindInvalid, "'%s' requires at least %d %s", cmd.CommandPath(), n, arguments(n)),
			verb: cmd.CommandPath(),
		}
	}
}

func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == n:
			return nil
		case n == 0:
			return &usageError{err: api.Errorf(api.KindInvalid, "'%s' accepts no arguments", cmd.CommandPath()), verb: cmd.CommandPath()}
		}
		return &usageError{
			err:  api.Errorf(api.KindInvalid, "'%s' requires %d %s", cmd.CommandPath(), n, arguments(n)),
			verb: cmd.CommandPath(),
		}
	}
}

func arguments(n int) string {
	if n == 1 {
		return "argument"
	}
	return "arguments"
}
