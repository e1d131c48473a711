// SPDX-License-Identifier: Apache-2.0

// Containers that go on without a terminal: `run -d`, `create`, `start`, and
// the supervisor behind them.

package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/outputlog"
	"z.gfire.dev/gvx/runtime/state"
)

// supervisorVerb is the hidden verb that a supervisor runs.
const supervisorVerb = "supervise"

// Values of --log-driver.
const (
	logDriverJSON = "json-file"
	logDriverNone = "none"
)

// detachFlags are those of `run` and `create` that are about going on alone.
type detachFlags struct {
	detach    bool
	logDriver string
	logOpts   []string
}

func (f *detachFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.logDriver, "log-driver", logDriverJSON, `Logging driver for a detached container ("json-file", "none")`)
	fl.StringArrayVar(&f.logOpts, "log-opt", nil, "Log driver options: max-size=SIZE (10m), max-file=N (2)")
}

// config is where the output of a detached container is kept.
func (f *detachFlags) config() (*state.LogConfig, error) {
	switch f.logDriver {
	case logDriverNone:
		return nil, nil
	case logDriverJSON, "":
	default:
		return nil, api.Errorf(api.KindInvalid, "logger: no log driver named '%s' is registered: want json-file or none", f.logDriver)
	}
	c := &state.LogConfig{MaxSizeBytes: outputlog.DefaultMaxSizeBytes, MaxFiles: outputlog.DefaultMaxFiles}
	for _, s := range f.logOpts {
		key, value, _ := strings.Cut(s, "=")
		switch key {
		case "max-size":
			n, err := units.RAMInBytes(value)
			if err != nil || n < outputlog.MinSizeBytes {
				return nil, api.Errorf(api.KindInvalid, "invalid log option max-size=%s: want a size of at least %d bytes, as in 10m", value, outputlog.MinSizeBytes)
			}
			c.MaxSizeBytes = n
		case "max-file":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > outputlog.MaxFiles {
				return nil, api.Errorf(api.KindInvalid, "invalid log option max-file=%s: want 1 to %d", value, outputlog.MaxFiles)
			}
			c.MaxFiles = n
		default:
			return nil, api.Errorf(api.KindInvalid, "unknown log opt '%s' for json-file log driver", key)
		}
	}
	return c, nil
}

// supervisorArgs are the arguments of a supervisor: the global flags, and its
// verb. Options of containers do not stand there, where everybody could read
// the secrets among them.
func (g *globals) supervisorArgs(progress string, quiet bool) []string {
	args := []string{"rungv", "--caller-fd", strconv.Itoa(container.SupervisorCallerFD)}
	for _, f := range []struct{ flag, value string }{
		{"--root", g.Root}, {"--log", g.LogPath}, {"--log-format", g.LogFormat},
	} {
		if f.value != "" {
			args = append(args, f.flag, f.value)
		}
	}
	if g.Debug {
		args = append(args, "--debug")
	}
	args = append(args, supervisorVerb)
	if progress != "" {
		args = append(args, "--progress", progress)
	}
	if quiet {
		args = append(args, "--quiet")
	}
	return args
}

// runDetached runs a container with a supervisor and prints its id.
func runDetached(cmd *cobra.Command, g *globals, f *runFlags, o *container.RunOptions) error {
	id, code, err := container.Detach(cmd.Context(), g.supervisorArgs(f.progress, f.quiet), *o)
	if err == nil || code != exitRunFailure && id != "" {
		// A container whose command cannot run exists, as docker's does.
		fmt.Fprintln(cmd.OutOrStdout(), id)
	}
	if err != nil {
		return &exitError{code: code, err: err}
	}
	return nil
}

func newSuperviseCommand(g *globals) *cobra.Command {
	var pull pullFlags
	cmd := &cobra.Command{
		Use:     supervisorVerb,
		Short:   "Run a container on behalf of a rungv that does not wait for it",
		Long:    "Do what an order on descriptor 4 says, report to the caller on descriptor 3, and stay until the container has ended. rungv starts it by itself.",
		Example: "  rungv run -d debian:12 sleep 1h",
		Hidden:  true,
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if g.caller == nil {
				return api.Errorf(api.KindInvalid, "a supervisor is started by rungv run -d and rungv start, not by hand")
			}
			r, err := g.runner(true)
			if err != nil {
				return err
			}
			show, err := pull.start(os.Stderr)
			if err != nil {
				return err
			}
			report := container.SupervisorReport{Created: g.caller.created, Started: g.caller.started}
			exit, bare, err := r.Supervise(cmd.Context(), g.caller.gone, report, func(o *container.RunOptions) error {
				o.Pull.Progress = func(e images.Event) { show.Event(e) }
				o.PullDone = show.Close
				return nil
			})
			if err != nil || bare {
				return exitOf(exit, err)
			}
			return nil // Nobody waits for the guest's status here.
		},
	}
	cmd.Flags().BoolVarP(&pull.quiet, "quiet", "q", false, "Suppress the pull output")
	cmd.Flags().StringVar(&pull.progress, "progress", progressAuto, "Set type of progress output")
	cmd.Flags().Bool(strings.TrimPrefix(container.TaskArgument, "--"), false, "Stand for a container of an OCI bundle: main looks for it")
	return cmd
}

func newCreateCommand(g *globals) *cobra.Command {
	f := &runFlags{}
	var b bundleFlags
	cmd := &cobra.Command{
		Use:   "create [OPTIONS] IMAGE [COMMAND] [ARG...]",
		Short: "Create a new container",
		Long: `Create a container from an image without starting it, and print its id. Flags and
arguments are those of 'rungv run'. 'rungv start' starts it, once: what a
container has written is gone with its sandbox.

'rungv create --bundle DIR CONTAINER' is runc's: it creates the container that an
OCI bundle describes, up to the point where its process could run, with this
command's own standard streams. When DIR may be left out: see 'rungv run --help'.`,
		Example: "  id=$(rungv create --name box debian:12 sleep 1h)\n  rungv start box\n  rungv create --bundle ./box box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bundle, err := b.given(cmd)
			if err != nil {
				return err
			}
			if bundle {
				return createTask(cmd, g, &b, args)
			}
			o, err := f.options(args)
			if err != nil {
				return err
			}
			r, err := g.runner(true)
			if err != nil {
				return err
			}
			pull := pullFlags{platform: f.platform, progress: f.progress, quiet: f.quiet}
			show, err := pull.start(os.Stderr)
			if err != nil {
				return err
			}
			o.Pull.Progress = func(e images.Event) { show.Event(e) }
			o.PullDone = show.Close
			id, err := r.Create(cmd.Context(), *o)
			if err != nil {
				return orBundle(err, args)
			}
			fmt.Fprintln(cmd.OutOrStdout(), id)
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(runFlagError)
	f.register(cmd)
	b.register(cmd.Flags())
	return cmd
}

func newStartCommand(g *globals) *cobra.Command {
	var attach, interactive bool
	var detachKeys string
	cmd := &cobra.Command{
		Use:   "start [OPTIONS] CONTAINER [CONTAINER...]",
		Short: "Start one or more created containers",
		Long: `Start containers that 'rungv create' has made, each with a supervisor of its own;
with --attach or --interactive one of them in the foreground, as 'rungv run'
would. A container that has run cannot be started again.`,
		Example: "  rungv start box\n  rungv start -ai box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if attach || interactive {
				if len(args) > 1 {
					return api.Errorf(api.KindInvalid, "you cannot start and attach multiple containers at once")
				}
				return startAttached(cmd, g, args[0], interactive, detachKeys)
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return forEach(cmd, args, func(ctx context.Context, ref string) error {
				rec, err := r.State.Get(ref)
				if err == nil && rec.Task != nil {
					if err := r.StartTask(ctx, rec.ID); err != nil {
						return err
					}
					return errSaid // runc prints nothing.
				}
				if err != nil || rec.State == api.StateRunning {
					return err // Running already is no error, as in docker.
				}
				_, err = container.StartDetached(ctx, g.supervisorArgs(progressAuto, true), rec.ID)
				return err
			})
		},
		ValidArgsFunction: completeContainers(g, func(rec *state.Record) bool { return rec.State == api.StateCreated }),
	}
	fl := cmd.Flags()
	fl.BoolVarP(&attach, "attach", "a", false, "Attach STDOUT/STDERR and forward signals")
	fl.BoolVarP(&interactive, "interactive", "i", false, "Attach container's STDIN")
	fl.StringVar(&detachKeys, "detach-keys", launch.DefaultDetachKeys, "Override the key sequence for detaching a container")
	return cmd
}

// startAttached starts a container in the foreground.
func startAttached(cmd *cobra.Command, g *globals, ref string, interactive bool, detachKeys string) error {
	keys, err := launch.ParseDetachKeys(detachKeys)
	if err != nil {
		return err
	}
	r, err := g.runner(true)
	if err != nil {
		return err
	}
	o := container.RunOptions{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SignalProxy: true, DetachKeys: keys}
	o.Interactive = interactive
	return exitOf(r.StartAttached(cmd.Context(), ref, o))
}

// exitOf turns how a guest ended into what a verb returns.
func exitOf(exit api.ExitStatus, err error) error {
	if err != nil {
		code := exit.Code
		if code == 0 {
			code = container.ExitCode(err)
		}
		return &exitError{code: code, err: err}
	}
	if exit.Code != 0 {
		return &exitError{code: exit.Code}
	}
	return nil
}

// checkDetached refuses what makes no sense together with --detach.
func (f *runFlags) checkDetached() error {
	if f.detach && f.waitStart {
		return api.Errorf(api.KindInvalid, "--wait-start and --detach exclude each other")
	}
	if f.detach && f.progress == progressJSON {
		return api.Errorf(api.KindInvalid, "--progress json needs a run in the foreground")
	}
	return nil
}
