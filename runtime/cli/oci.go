// SPDX-License-Identifier: Apache-2.0

// rungv as an OCI runtime: the verbs that engines call, with runc's arguments. Some
// are docker's too, and are told apart by their arguments: see each.

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/state"
)

// defaultTaskSignal is what `kill` sends to a bundle's container, as in runc.
const defaultTaskSignal = "TERM"

// bundleFlags are those of `create` and `run` that are about a bundle.
type bundleFlags struct {
	dir, consoleSocket, pidFile, pidfdSocket string
	noPivot, noNewKeyring                    bool
	preserveFDs                              int
	keep                                     bool
}

func (f *bundleFlags) register(fl *pflag.FlagSet) {
	fl.StringVarP(&f.dir, "bundle", "b", "", "Directory of an OCI bundle, for a container that it describes")
	fl.StringVar(&f.consoleSocket, "console-socket", "", "With a bundle: unix socket that gets the container's terminal")
	fl.StringVar(&f.pidFile, "pid-file", "", "With a bundle: file that gets the number of the container's process")
	fl.StringVar(&f.pidfdSocket, "pidfd-socket", "", "With a bundle: unix socket that gets a descriptor of the container's process")
	fl.BoolVar(&f.noPivot, "no-pivot", false, "Accepted for runc's callers: the root is the sandbox' own")
	fl.BoolVar(&f.noNewKeyring, "no-new-keyring", false, "Accepted for runc's callers: a guest's keyrings are the sandbox' own")
	fl.IntVar(&f.preserveFDs, "preserve-fds", 0, "With a bundle: number of descriptors after the streams that the container gets: pipes, terminals, files")
}

// Flags that say that `create` and `run` are about a bundle without naming one: of
// the verbs', and global ones, those that runc has and docker has not.
var (
	bundleMarks       = []string{"console-socket", "pid-file", "pidfd-socket", "no-pivot", "no-new-keyring", "preserve-fds", "keep"}
	globalBundleMarks = []string{"systemd-cgroup", "allow-host-network", "criu", "rootless"}
)

// given says whether a verb is about a bundle: where --bundle says so, or a flag
// that only runc has, in a working directory that is one. The directory alone does
// not decide, as runc has it: a bundle's hooks are programs that run on the host,
// and `run debian` in a directory that somebody else has filled must not be them.
func (f *bundleFlags) given(cmd *cobra.Command) (bool, error) {
	if f.dir != "" {
		return true, nil
	}
	_, err := os.Stat(bundle.ConfigName)
	for _, name := range bundleMarks {
		switch {
		case !cmd.Flags().Changed(name):
		case err != nil:
			return false, &usageError{err: api.Errorf(api.KindInvalid, "--%s is about an OCI bundle, which the working directory is not: name one by --bundle", name), verb: cmd.CommandPath()}
		default:
			return true, nil
		}
	}
	return err == nil && slices.ContainsFunc(globalBundleMarks, cmd.Flags().Changed), nil
}

// orBundle adds to what kept a verb from making a container of an image that a
// bundle may have been meant.
func orBundle(err error, args []string) error {
	if err == nil || len(args) != 1 {
		return err
	}
	if _, no := bundle.Load("."); no != nil {
		return err
	}
	return fmt.Errorf("%w (the working directory is an OCI bundle: for its container, give --bundle .)", err)
}

// create is what the flags say.
func (f *bundleFlags) create(g *globals, args []string) (container.TaskCreate, error) {
	c := container.TaskCreate{Bundle: f.dir, ConsoleSocket: f.consoleSocket, PIDFile: f.pidFile, PIDFDSocket: f.pidfdSocket, Systemd: g.SystemdCgroup, HostNetwork: g.HostNetwork, PreserveFDs: f.preserveFDs}
	if f.preserveFDs < 0 || f.preserveFDs > api.MaxExtraFDs {
		return c, api.Errorf(api.KindLimit, "--preserve-fds %d: want 0 to %d", f.preserveFDs, api.MaxExtraFDs)
	}
	if len(args) != 1 {
		return c, &usageError{err: api.Errorf(api.KindInvalid, "with a bundle, exactly one argument: the container's id"), verb: "rungv"}
	}
	if c.ID = args[0]; c.Bundle == "" {
		c.Bundle = "."
	}
	return c, nil
}

// createTask is `create` with a bundle.
func createTask(cmd *cobra.Command, g *globals, f *bundleFlags, args []string) error {
	c, err := f.create(g, args)
	if err != nil {
		return err
	}
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	_, err = r.StartTaskSupervisor(cmd.Context(), append(g.supervisorArgs("", false), container.TaskArgument), c)
	return err
}

// runTask is `run` with a bundle.
func runTask(cmd *cobra.Command, g *globals, f *bundleFlags, args []string, detach bool) error {
	c, err := f.create(g, args)
	if err != nil {
		return err
	}
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	argv := append(g.supervisorArgs("", false), container.TaskArgument)
	if !detach {
		return exitOf(r.RunTask(cmd.Context(), argv, c, f.keep))
	}
	if _, err := r.StartTaskSupervisor(cmd.Context(), argv, c); err != nil {
		return err
	}
	if err := r.StartTask(cmd.Context(), c.ID); err != nil {
		return errors.Join(err, r.DeleteTask(cmd.Context(), c.ID, true))
	}
	return nil
}

func newStateCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "state CONTAINER",
		Short:   "Output the state of a container of an OCI bundle",
		Long:    "Print, as JSON, what the OCI runtime specification wants to be known of a container.",
		Example: "  rungv state box",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			st, err := r.TaskState(args[0])
			if err != nil {
				return err
			}
			return printJSON(cmd, st)
		},
		ValidArgsFunction: completeContainers(g, isTask),
	}
}

func newTaskListCommand(g *globals) *cobra.Command {
	var format string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "list [OPTIONS]",
		Short: "List the containers of OCI bundles",
		Long: `List the containers that 'rungv create' has made from OCI bundles below --root, as
runc does. 'rungv ps' lists all containers, as docker does.`,
		Example: "  rungv list\n  rungv list --format json",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			list, err := r.Tasks()
			if err != nil {
				g.warn("%v", err)
			}
			return printTasks(cmd, list, format, quiet)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", formatTable, `Format of the list ("table", "json")`)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "Display only container IDs")
	return cmd
}

func printTasks(cmd *cobra.Command, list []container.TaskState, format string, quiet bool) error {
	out := cmd.OutOrStdout()
	switch {
	case quiet:
		for i := range list {
			fmt.Fprintln(out, list[i].ID)
		}
		return nil
	case format == formatJSON:
		return json.NewEncoder(out).Encode(list)
	case format != formatTable:
		return api.Errorf(api.KindInvalid, "invalid format option %q: want %s or %s", format, formatTable, formatJSON)
	}
	w := tabwriter.NewWriter(out, 12, 1, 3, ' ', 0)
	fmt.Fprint(w, "ID\tPID\tSTATUS\tBUNDLE\tCREATED\tOWNER\n")
	for i := range list {
		t := &list[i]
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", t.ID, t.Pid, t.Status, t.Bundle, t.Created, t.Owner)
	}
	return w.Flush()
}

func newDeleteCommand(g *globals) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete [OPTIONS] CONTAINER",
		Short: "Delete any resources held by a container of an OCI bundle",
		Long: `Remove what is left of a container that has stopped: its record, its cgroup. One
that was created and never started is ended first; with --force, so is one that
runs, and one that does not exist is no error.`,
		Example: "  rungv delete box\n  rungv delete --force box",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return r.DeleteTask(cmd.Context(), args[0], force)
		},
		ValidArgsFunction: completeContainers(g, isTask),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Forcibly delete the container if it is still running (uses SIGKILL)")
	return cmd
}

// killTask is `kill CONTAINER [SIGNAL]` of a bundle's container.
func killTask(cmd *cobra.Command, r *container.Runner, args []string, signal string, all bool) error {
	switch len(args) {
	case 1:
	case 2:
		signal = args[1]
	default:
		return &usageError{err: api.Errorf(api.KindInvalid, "'%s' takes a container of a bundle and at most one signal", cmd.CommandPath()), verb: cmd.CommandPath()}
	}
	if signal == "" {
		signal = defaultTaskSignal
	}
	n := 0 // Only asks whether there is somebody to signal.
	if signal != "0" {
		var err error
		if n, err = convert.ParseSignal(signal); err != nil {
			return err
		}
	}
	return r.KillTask(cmd.Context(), args[0], n, all)
}

func newSpecCommand(_ *globals) *cobra.Command {
	var dir string
	var rootless bool
	cmd := &cobra.Command{
		Use:   "spec [OPTIONS]",
		Short: "Create a new OCI specification file",
		Long: `Write config.json, the document of an OCI bundle, with the values of a container
that runs a shell. What is below rootfs/ becomes its root.`,
		Example: "  mkdir -p box/rootfs && rungv spec -b box",
		Args:    exactly(0),
		RunE: func(*cobra.Command, []string) error {
			spec := bundle.Example()
			if rootless {
				spec = bundle.RootlessExample(uint32(os.Geteuid()), uint32(os.Getegid()))
			}
			if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
				// As runc, where the host's cgroups are of version 1.
				spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
			}
			return writeSpec(dir, spec)
		},
	}
	cmd.Flags().StringVarP(&dir, "bundle", "b", ".", "Path to the root of the bundle directory")
	cmd.Flags().BoolVar(&rootless, "rootless", false, "Generate a configuration for a rootless container")
	return cmd
}

func newFeaturesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "features",
		Short:   "Show the enabled features",
		Long:    "Print, as JSON, the features document of the OCI runtime specification.",
		Example: "  rungv features",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printJSON(cmd, convert.Features(Version))
		},
	}
}

func newResumeCommand(g *globals) *cobra.Command {
	cmd := newUnpauseCommand(g)
	cmd.Use, cmd.Short = "resume CONTAINER", "Resume all processes that have been previously paused"
	cmd.Long = "The same as 'rungv unpause', as runc calls it. It prints nothing."
	cmd.Example = "  rungv resume box"
	cmd.Args = exactly(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := g.runner(false)
		if err != nil {
			return err
		}
		return r.Unpause(cmd.Context(), args[0])
	}
	return cmd
}

// newUncheckpointable makes a verb that answers that it is not to be had.
func newUncheckpointable(verb, what string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " CONTAINER", Short: what + " (not supported)", Long: what + ". This version cannot: the verb says so to engines that try it.",
		Example: "  rungv " + verb + " box", DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return api.Errorf(api.KindUnsupported, "%s: this version of rungv has no checkpoints", verb)
		},
	}
}

// psTask is `ps CONTAINER [OPTIONS OF PS]` of a bundle's container: the host's processes that stand
// for it as JSON, which is what engines ask for, or the guest's as a table.
func psTask(cmd *cobra.Command, g *globals, args []string, format string) error {
	id := args[0]
	columns, err := parseTop(args[1:])
	if err != nil {
		return err
	}
	if format != "" && format != formatTable && format != formatJSON {
		return api.Errorf(api.KindInvalid, "ps: invalid format option %q: want table or json", format)
	}
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	if format == formatJSON {
		pids, err := r.TaskPIDs(id)
		if err != nil {
			return err
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(pids)
	}
	list, err := r.Processes(cmd.Context(), id)
	if st, serr := r.TaskState(id); serr == nil && st.Status == specs.StateStopped {
		list, err = nil, nil // None, as with runc.
	}
	if err != nil {
		return err
	}
	return printLikePs(cmd.OutOrStdout(), columns, list)
}

// printJSON prints a document for people and programs.
func printJSON(cmd *cobra.Command, v any) error {
	doc, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", doc)
	return err
}

func isTask(rec *state.Record) bool { return rec.Task != nil }

// writeSpec writes config.json into a directory that has none.
func writeSpec(dir string, spec *specs.Spec) error {
	doc, err := json.MarshalIndent(spec, "", "\t")
	if err != nil {
		return err
	}
	name := filepath.Join(dir, bundle.ConfigName)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return api.Errorf(api.KindExists, "file %s exists. Remove it first", bundle.ConfigName)
	}
	if err == nil {
		_, err = f.Write(append(doc, '\n'))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return api.Errorf(api.KindInvalid, "write the specification: %w", err)
	}
	return nil
}
