// SPDX-License-Identifier: Apache-2.0

// `rungv ps`: docker's columns, filters and formats.

package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

// psHeader are the column titles by field.
var psHeader = map[string]string{
	"ID": "CONTAINER ID", "Image": "IMAGE", "Command": "COMMAND", "CreatedAt": "CREATED AT",
	"RunningFor": "CREATED", "Status": "STATUS", "State": "STATE", "Ports": "PORTS", "Names": "NAMES",
	"Labels": "LABELS", "Mounts": "MOUNTS", "Networks": "NETWORKS", "Size": "SIZE", "LocalVolumes": "LOCAL VOLUMES",
}

const psTable = "{{.ID}}\t{{.Image}}\t{{.Command}}\t{{.RunningFor}}\t{{.Status}}\t{{.Ports}}\t{{.Names}}"

// maxCommandRunes is where docker cuts a command.
const maxCommandRunes = 20

// psRow is one line. The fields are those of docker's templates.
type psRow struct {
	Command      string
	CreatedAt    string
	ID           string
	Image        string
	Labels       string
	LocalVolumes string
	Mounts       string
	Names        string
	Networks     string
	Ports        string
	RunningFor   string
	Size         string
	State        string
	Status       string

	labels map[string]string
}

// Label returns the value of one label, for templates.
func (r psRow) Label(name string) string { return r.labels[name] }

type psFlags struct {
	all, quiet, noTrunc, latest bool
	last                        int
	format                      string
	filters                     []string
}

func newPsCommand(g *globals) *cobra.Command {
	var f psFlags
	cmd := &cobra.Command{
		Use:   "ps [OPTIONS]",
		Short: "List containers",
		Long: `List this user's containers that run, or with -a all that have a record.

Filters: id=PREFIX, name=PART, status=created|running|paused|exited, exited=CODE,
label=KEY[=VALUE], ancestor=IMAGE, before=CONTAINER, since=CONTAINER. Several
filters of one kind are alternatives, but labels have to match all.

'rungv ps [--format json] CONTAINER [OPTIONS OF PS]' is runc's: it lists the
processes of a container of an OCI bundle; with --format json, the numbers of the
host's processes that stand for it.`,
		Example: "  rungv ps -a\n  rungv ps -aq --filter status=exited\n  rungv ps --format '{{.Names}}: {{.Status}}'\n  rungv ps --format json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return psTask(cmd, g, args, f.taskFormat())
			}
			return runPs(cmd, g, &f)
		},
	}
	fl := cmd.Flags()
	// What follows a container is ps'.
	fl.SetInterspersed(false)
	fl.BoolVarP(&f.all, "all", "a", false, "Show all containers (default shows just running)")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "Only display container IDs")
	fl.BoolVar(&f.noTrunc, "no-trunc", false, "Don't truncate output")
	fl.BoolVarP(&f.latest, "latest", "l", false, "Show the latest created container (includes all states)")
	fl.IntVarP(&f.last, "last", "n", -1, "Show n last created containers (includes all states)")
	fl.StringVar(&f.format, "format", "", `Format output using a custom template: 'table', 'table TEMPLATE', 'json', or 'TEMPLATE'`)
	fl.StringArrayVarP(&f.filters, "filter", "f", nil, "Filter output based on conditions provided")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// taskFormat is the format of runc's ps, whose -f is not a filter.
func (f *psFlags) taskFormat() string {
	if f.format == "" && len(f.filters) > 0 {
		return f.filters[len(f.filters)-1]
	}
	return f.format
}

func runPs(cmd *cobra.Command, g *globals, f *psFlags) error {
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	filter, err := parsePsFilter(r.State, f.filters)
	if err != nil {
		return err
	}
	// A damaged record does not hide the others.
	list, problems := r.State.List()
	if f.latest {
		f.last = 1
	}
	var rows []psRow
	for _, rec := range list {
		all := f.all || f.last >= 0 || filter.anyState()
		if !all && rec.State != api.StateRunning || !filter.keep(rec) {
			continue
		}
		if f.last >= 0 && len(rows) == f.last {
			break
		}
		rows = append(rows, psRowOf(rec, f.noTrunc))
	}
	if f.quiet && f.format == "" {
		f.format = "{{.ID}}"
	}
	if err := printList(cmd.OutOrStdout(), f.format, psTable, psHeader, rows); err != nil {
		return err
	}
	return problems
}

func psRowOf(rec *state.Record, noTrunc bool) psRow {
	command := strings.Join(rec.Process.Args, " ")
	row := psRow{
		ID:         rec.ShortID(),
		Image:      rec.Image,
		CreatedAt:  rec.CreatedAt.Local().Format("2006-01-02 15:04:05 -0700 MST"),
		RunningFor: ago(rec.CreatedAt),
		Names:      rec.Name,
		Networks:   rec.Options.Network,
		Ports:      portsColumn(rec),
		Size:       "0B",
		State:      dockerState(rec),
		Status:     dockerStatus(rec),
		labels:     rec.Options.Labels,
	}
	if noTrunc {
		row.ID = rec.ID
	} else if r := []rune(command); len(r) > maxCommandRunes {
		command = string(r[:maxCommandRunes-1]) + "…"
	}
	row.Command = strconv.Quote(command)
	var labels []string
	for _, k := range slices.Sorted(maps.Keys(rec.Options.Labels)) {
		labels = append(labels, k+"="+rec.Options.Labels[k])
	}
	row.Labels = strings.Join(labels, ",")
	row.Mounts, row.LocalVolumes = mountsColumns(rec, noTrunc)
	return row
}

// dockerState is docker's word for a state.
func dockerState(rec *state.Record) string {
	switch {
	case rec.Paused:
		return "paused"
	case rec.State == api.StateRunning:
		return "running"
	case rec.State == api.StateStopped && rec.Exit != nil:
		return "exited"
	}
	// What never ran has no exit code to show, whatever ended its launcher.
	return "created"
}

// dockerStatus is docker's phrase for a state.
func dockerStatus(rec *state.Record) string {
	switch dockerState(rec) {
	case "running":
		return "Up " + units.HumanDuration(time.Since(rec.StartedAt))
	case "paused":
		return "Up " + units.HumanDuration(time.Since(rec.StartedAt)) + " (Paused)"
	case "exited":
		if rec.FinishedAt.IsZero() {
			return fmt.Sprintf("Exited (%d)", rec.Exit.Code)
		}
		return fmt.Sprintf("Exited (%d) %s", rec.Exit.Code, ago(rec.FinishedAt))
	}
	return "Created"
}

func ago(t time.Time) string { return units.HumanDuration(time.Since(t)) + " ago" }

// psFilter is what --filter says: alternatives by key.
type psFilter struct {
	values        map[string][]string
	before, since time.Time
}

func parsePsFilter(store *state.Store, filters []string) (*psFilter, error) {
	f := &psFilter{values: map[string][]string{}}
	for _, s := range filters {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, api.Errorf(api.KindInvalid, "invalid argument %q for \"-f, --filter\" flag: invalid filter %q (should be KEY=VALUE)", s, s)
		}
		switch key {
		case "id", "name", "label", "ancestor", "volume":
		case "status":
			if !slices.Contains([]string{"created", "restarting", "running", "removing", "paused", "exited", "dead"}, value) {
				return nil, api.Errorf(api.KindInvalid, "invalid filter 'status=%s'", value)
			}
		case "exited":
			if _, err := strconv.Atoi(value); err != nil {
				return nil, api.Errorf(api.KindInvalid, "invalid filter 'exited=%s'", value)
			}
		case "before", "since":
			rec, err := store.Get(value)
			if err != nil {
				return nil, err
			}
			if key == "before" {
				f.before = rec.CreatedAt
			} else {
				f.since = rec.CreatedAt
			}
		default:
			return nil, api.Errorf(api.KindInvalid, "invalid filter '%s'", key)
		}
		f.values[key] = append(f.values[key], value)
	}
	return f, nil
}

// anyState reports whether the filter asks for containers that do not run.
func (f *psFilter) anyState() bool {
	return len(f.values["status"]) > 0 || len(f.values["exited"]) > 0
}

func (f *psFilter) keep(rec *state.Record) bool {
	if !f.before.IsZero() && !rec.CreatedAt.Before(f.before) || !f.since.IsZero() && !rec.CreatedAt.After(f.since) {
		return false
	}
	for _, l := range f.values["label"] {
		key, value, exact := strings.Cut(l, "=")
		got, ok := rec.Options.Labels[key]
		if !ok || exact && got != value {
			return false
		}
	}
	return f.any("id", func(v string) bool { return strings.HasPrefix(rec.ID, v) }) &&
		f.any("name", func(v string) bool { return strings.Contains(rec.Name, strings.TrimPrefix(v, "/")) }) &&
		f.any("status", func(v string) bool { return v == dockerState(rec) }) &&
		f.any("volume", func(v string) bool { return hasVolume(rec, v) }) &&
		f.any("exited", func(v string) bool {
			return rec.State == api.StateStopped && rec.Exit != nil && strconv.Itoa(rec.Exit.Code) == v
		}) &&
		f.any("ancestor", func(v string) bool {
			return v == rec.Image || strings.HasPrefix(strings.TrimPrefix(rec.ImageID, "sha256:"), strings.TrimPrefix(v, "sha256:"))
		})
}

// any reports whether one of a key's values matches, or there are none.
func (f *psFilter) any(key string, match func(string) bool) bool {
	values := f.values[key]
	return len(values) == 0 || slices.ContainsFunc(values, match)
}
