// SPDX-License-Identifier: Apache-2.0

// Small verbs on containers, and what they share.

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

func newKillCommand(g *globals) *cobra.Command {
	var signal string
	var all bool
	cmd := &cobra.Command{
		Use:   "kill [OPTIONS] CONTAINER [CONTAINER...]",
		Short: "Kill one or more running containers",
		Long: `Send a signal to the first process of each container: SIGKILL, or what --signal says.

'rungv kill [--all] CONTAINER [SIGNAL]' is runc's, where CONTAINER was made from an
OCI bundle: it sends SIGTERM, or the signal.`,
		Example: "  rungv kill box\n  rungv kill -s HUP box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			rec, err := r.State.Get(args[0])
			if err == nil && rec.Task != nil {
				if !cmd.Flags().Changed("signal") {
					signal = ""
				}
				return killTask(cmd, r, args, signal, all)
			}
			n, err := convert.ParseSignal(signal)
			if err != nil {
				return err
			}
			return forEach(cmd, args, func(ctx context.Context, ref string) error {
				if err := r.Signal(ctx, ref, n); err != nil {
					return fmt.Errorf("cannot kill container: %s: %w", ref, err)
				}
				return nil
			})
		},
		ValidArgsFunction: completeContainers(g, isRunning),
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "KILL", "Signal to send to the container")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "Of an OCI bundle's container, signal all processes")
	return cmd
}

func newStopCommand(g *globals) *cobra.Command {
	var signal string
	var seconds int
	cmd := &cobra.Command{
		Use:   "stop [OPTIONS] CONTAINER [CONTAINER...]",
		Short: "Stop one or more running containers",
		Long: `Ask each container to end, with its stop signal, and kill it when it has not
ended in time: after --timeout, the container's own --stop-timeout, or 10
seconds.`,
		Example: "  rungv stop box\n  rungv stop -t 1 box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := 0
			if signal != "" {
				var err error
				if n, err = convert.ParseSignal(signal); err != nil {
					return err
				}
			}
			var timeout *time.Duration
			if cmd.Flags().Changed("timeout") || cmd.Flags().Changed("time") {
				d := time.Duration(seconds) * time.Second
				timeout = &d
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return forEach(cmd, args, func(ctx context.Context, ref string) error { return r.Stop(ctx, ref, n, timeout) })
		},
		ValidArgsFunction: completeContainers(g, isRunning),
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "", "Signal to send to the container")
	cmd.Flags().IntVarP(&seconds, "timeout", "t", 0, "Seconds to wait before killing the container; -1 waits for ever")
	cmd.Flags().IntVar(&seconds, "time", 0, "")
	_ = cmd.Flags().MarkHidden("time") // docker's old spelling
	return cmd
}

func newRmCommand(g *globals) *cobra.Command {
	var force, volumes bool
	cmd := &cobra.Command{
		Use:     "rm [OPTIONS] CONTAINER [CONTAINER...]",
		Aliases: []string{"remove"},
		Short:   "Remove one or more containers",
		Long:    "Remove the records of containers that have stopped; with --force, kill those that run first.",
		Example: "  rungv rm box\n  rungv rm -f $(rungv ps -aq)",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return forEach(cmd, args, func(ctx context.Context, ref string) error {
				err := r.Remove(ctx, ref, force)
				if force && api.KindOf(err) == api.KindNotFound {
					// As docker: said, but what was wanted is so.
					fmt.Fprintln(cmd.ErrOrStderr(), "rungv:", err)
					return errSaid
				}
				return err
			})
		},
		ValidArgsFunction: completeContainers(g, nil),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Force the removal of a running container (uses SIGKILL)")
	cmd.Flags().BoolVarP(&volumes, "volumes", "v", false, "Remove anonymous volumes associated with the container (they always are)")
	return cmd
}

// errSaid is for an action that failed, was reported, and is no failure.
var errSaid = errors.New("reported")

// completeContainers completes container names; keep, if not nil, selects.
func completeContainers(g *globals, keep func(*state.Record) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if g.setup() != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		r, err := g.runner(false)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		list, _ := r.State.List()
		var names []string
		for _, rec := range list {
			if keep == nil || keep(rec) {
				names = append(names, rec.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func isRunning(rec *state.Record) bool { return rec.State == api.StateRunning }

// forEachQuietly runs f for every container named and returns all errors.
func forEachQuietly(refs []string, f func(ref string) error) error {
	var problems []error
	for _, ref := range refs {
		problems = append(problems, f(ref))
	}
	return errors.Join(problems...)
}

// forEach runs f for every container named, prints each name for which it
// worked, and returns all errors.
func forEach(cmd *cobra.Command, refs []string, f func(ctx context.Context, ref string) error) error {
	var problems []error
	for _, ref := range refs {
		if err := f(cmd.Context(), ref); err != nil {
			if err != errSaid {
				problems = append(problems, err)
			}
			continue
		}
		fmt.Fprintln(cmd.OutOrStdout(), ref)
	}
	return errors.Join(problems...)
}
