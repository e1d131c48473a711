// SPDX-License-Identifier: Apache-2.0

// `rungv rename`, `update`, `pause` and `unpause`.

package cli

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/state"
)

func newRenameCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "rename CONTAINER NEW_NAME",
		Short:   "Rename a container",
		Long:    "Give a container another name, whether it runs or not. Its host name stays.",
		Example: "  rungv rename box crate",
		Args:    exactly(2),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return r.State.Rename(args[0], args[1])
		},
		ValidArgsFunction: completeContainers(g, nil),
	}
}

func newPauseCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "pause CONTAINER [CONTAINER...]",
		Short: "Pause all processes within one or more containers",
		Long: `Stop every process of each container until 'rungv unpause'. What the host sends
to a published port waits. A signal that ends the container ends the pause.`,
		Example: "  rungv pause box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return forEach(cmd, args, r.Pause)
		},
		ValidArgsFunction: completeContainers(g, func(rec *state.Record) bool { return isRunning(rec) && !rec.Paused }),
	}
}

func newUnpauseCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "unpause CONTAINER [CONTAINER...]",
		Short:   "Unpause all processes within one or more containers",
		Long:    "Let the processes of paused containers go on.",
		Example: "  rungv unpause box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return forEach(cmd, args, r.Unpause)
		},
		ValidArgsFunction: completeContainers(g, func(rec *state.Record) bool { return rec.Paused }),
	}
}

func newUpdateCommand(g *globals) *cobra.Command {
	var memory bytesFlag
	var cpus cpusFlag
	var pids int64
	var task updateTaskFlags
	cmd := &cobra.Command{
		Use:   "update [OPTIONS] CONTAINER [CONTAINER...]",
		Short: "Update configuration of one or more containers",
		Long: `Change the limits of containers, at once where they run. Zero removes a limit, and
-1 that on processes. A limit on processes can be changed, but not added, while
a container runs.

Of an OCI bundle's container the flags are runc's, and change the limits of the
host's cgroup too; --resources gives them as a document.`,
		Example: "  rungv update -m 1g --cpus 1.5 box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			if rec, err := r.State.Get(args[0]); err == nil && rec.Task != nil {
				return updateTask(cmd, r, &task, args)
			}
			var l control.Limits
			if cmd.Flags().Changed("memory") {
				n := int64(memory)
				l.MemoryBytes = &n
			}
			if cmd.Flags().Changed("cpus") {
				n := int64(cpus)
				l.CPUMillis = &n
			}
			if cmd.Flags().Changed("pids-limit") {
				n := max(pids, 0)
				l.Pids = &n
			}
			if l == (control.Limits{}) {
				return &usageError{err: fmt.Errorf("you must provide one or more flags when using this command"), verb: cmd.CommandPath()}
			}
			if err := convert.CheckLimits(int64(memory), int64(cpus), runtime.NumCPU()); err != nil {
				return err
			}
			return forEach(cmd, args, func(ctx context.Context, ref string) error { return r.Update(ctx, ref, l) })
		},
		ValidArgsFunction: completeContainers(g, nil),
	}
	cmd.Flags().VarP(&memory, "memory", "m", "Memory limit")
	cmd.Flags().Var(&cpus, "cpus", "Number of CPUs")
	cmd.Flags().Int64Var(&pids, "pids-limit", 0, "Tune container pids limit (set -1 for unlimited)")
	task.register(cmd.Flags())
	return cmd
}
