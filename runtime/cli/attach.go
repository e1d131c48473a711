// SPDX-License-Identifier: Apache-2.0

// `rungv attach`, `rungv logs` and `rungv wait`.

package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/outputlog"
	"z.gfire.dev/gvx/runtime/state"
)

func newAttachCommand(g *globals) *cobra.Command {
	var noStdin, sigProxy bool
	var detachKeys string
	cmd := &cobra.Command{
		Use:   "attach [OPTIONS] CONTAINER",
		Short: "Attach local standard input, output, and error streams to a running container",
		Long: `Join this terminal's streams to those of a detached container's first process.
Several may be attached at once. The detach keys end this command and not the
container. The exit code is the container's.`,
		Example: "  rungv run -dit --name box debian:12 bash\n  rungv attach box",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := launch.ParseDetachKeys(detachKeys)
			if err != nil {
				return err
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			o := container.AttachOptions{Stdout: os.Stdout, Stderr: os.Stderr, DetachKeys: keys, SignalProxy: sigProxy}
			if !noStdin {
				o.Stdin = os.Stdin
			}
			exit, detached, err := r.Attach(cmd.Context(), args[0], o)
			if detached {
				fmt.Fprintln(cmd.ErrOrStderr(), "read escape sequence")
				return nil
			}
			if err != nil && exit.Code == 0 {
				return err // It never came to an attachment: not the guest's code.
			}
			return exitOf(exit, err)
		},
		ValidArgsFunction: completeContainers(g, func(rec *state.Record) bool { return isRunning(rec) && rec.Detached }),
	}
	fl := cmd.Flags()
	fl.BoolVar(&noStdin, "no-stdin", false, "Do not attach STDIN")
	fl.BoolVar(&sigProxy, "sig-proxy", true, "Proxy all received signals to the process")
	fl.StringVar(&detachKeys, "detach-keys", launch.DefaultDetachKeys, "Override the key sequence for detaching a container")
	return cmd
}

func newWaitCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "wait CONTAINER [CONTAINER...]",
		Short:   "Block until one or more containers stop, then print their exit codes",
		Long:    "Wait until each container has stopped, and print their exit codes in the order in which they are named. One that has stopped, or was never started, is not waited for.",
		Example: "  code=$(rungv wait box)",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			// All at once: one that is removed as it ends tells only who waits already.
			type ended struct {
				exit api.ExitStatus
				err  error
			}
			results := make(map[string]chan ended, len(args))
			for _, ref := range args {
				if results[ref] != nil {
					continue
				}
				results[ref] = make(chan ended, 1)
				go func() {
					exit, err := r.Wait(cmd.Context(), ref)
					results[ref] <- ended{exit, err}
				}()
			}
			return forEachQuietly(args, func(ref string) error {
				e := <-results[ref]
				results[ref] <- e // The same may be named twice.
				if e.err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), e.exit.Code)
				}
				return e.err
			})
		},
		ValidArgsFunction: completeContainers(g, isRunning),
	}
}

type logsFlags struct {
	follow, timestamps bool
	since, until, tail string
}

func newLogsCommand(g *globals) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs [OPTIONS] CONTAINER",
		Short: "Fetch the logs of a container",
		Long: `Print what a detached container has written, its standard output to standard
output and its standard error to standard error. What is kept is bounded: see
--log-opt of 'rungv run'.`,
		Example: "  rungv logs --tail 20 -f box\n  rungv logs --since 10m -t box",
		Args:    exactly(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return runLogs(cmd, g, &f, args[0]) },

		ValidArgsFunction: completeContainers(g, func(rec *state.Record) bool { return rec.Log != nil }),
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.follow, "follow", "f", false, "Follow log output")
	fl.BoolVarP(&f.timestamps, "timestamps", "t", false, "Show timestamps")
	fl.StringVar(&f.since, "since", "", `Show logs since timestamp (e.g. "2013-01-02T13:23:37Z") or relative (e.g. "42m" for 42 minutes)`)
	fl.StringVar(&f.until, "until", "", `Show logs before a timestamp (e.g. "2013-01-02T13:23:37Z") or relative (e.g. "42m" for 42 minutes)`)
	fl.StringVarP(&f.tail, "tail", "n", "all", "Number of lines to show from the end of the logs")
	return cmd
}

func runLogs(cmd *cobra.Command, g *globals, f *logsFlags, ref string) error {
	now := time.Now()
	o := outputlog.ReadOptions{Follow: f.follow, Tail: -1}
	var err error
	if o.Since, err = parseTime(f.since, now); err != nil {
		return api.Errorf(api.KindInvalid, `invalid value for "since": %w`, err)
	}
	if o.Until, err = parseTime(f.until, now); err != nil {
		return api.Errorf(api.KindInvalid, `invalid value for "until": %w`, err)
	}
	if n, err := strconv.Atoi(f.tail); err == nil {
		o.Tail = n
	} else if f.tail != "all" && f.tail != "" {
		return api.Errorf(api.KindInvalid, "invalid tail %q: want a number or all", f.tail)
	}
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	return r.Logs(cmd.Context(), ref, o, func(e *outputlog.Entry) error {
		to := cmd.OutOrStdout()
		if e.Stream == outputlog.Stderr {
			to = cmd.ErrOrStderr()
		}
		text := e.Log
		if f.timestamps {
			text = e.Time.Format(time.RFC3339Nano) + " " + text
		}
		_, err := io.WriteString(to, text)
		return err
	})
}

// timeForms are what docker reads as a time, besides seconds and durations.
var timeForms = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02T15", "2006-01-02Z07:00", "2006-01-02",
}

// parseTime reads docker's forms of a time: a date, seconds since the epoch, or
// a duration before now. Empty is no time.
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	for _, form := range timeForms {
		if t, err := time.ParseInLocation(form, s, time.Local); err == nil {
			return t, nil
		}
	}
	whole, fraction, _ := strings.Cut(s, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || len(fraction) > 9 {
		return time.Time{}, fmt.Errorf("%q is neither a time nor a duration", s)
	}
	nanos := int64(0)
	if fraction != "" {
		if nanos, err = strconv.ParseInt(fraction+strings.Repeat("0", 9-len(fraction)), 10, 64); err != nil {
			return time.Time{}, fmt.Errorf("%q is neither a time nor a duration", s)
		}
	}
	return time.Unix(seconds, nanos), nil
}
