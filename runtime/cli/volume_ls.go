// SPDX-License-Identifier: Apache-2.0

// volume ls: docker's columns, filters and formats.

package cli

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/volumes"
)

// volumeDriver is docker's name of its own volumes: scripts ask for it.
const volumeDriver = "local"

// volumeHeader are the column titles by field.
var volumeHeader = map[string]string{
	"Name": "VOLUME NAME", "Driver": "DRIVER", "Scope": "SCOPE", "Mountpoint": "MOUNTPOINT", "Labels": "LABELS",
	"Links": "LINKS", "Size": "SIZE", "DiskSize": "ON DISK", "Base": "BASE", "Availability": "AVAILABILITY", "Group": "GROUP", "Status": "STATUS",
}

// The default tables.
const (
	volumeTable     = "{{.Driver}}\t{{.Name}}"
	volumeTableSize = "{{.Driver}}\t{{.Name}}\t{{.Size}}\t{{.DiskSize}}\t{{.Base}}"
)

// volumeRow is one line. The fields are those of docker's templates; DiskSize
// and Base are ours.
type volumeRow struct {
	Availability string
	Base         string
	DiskSize     string
	Driver       string
	Group        string
	Labels       string
	Links        string
	Mountpoint   string
	Name         string
	Scope        string
	Size         string
	Status       string

	labels map[string]string
}

// Label returns the value of one label, for templates.
func (r volumeRow) Label(name string) string { return r.labels[name] }

type volumeListFlags struct {
	quiet, size bool
	format      string
	filters     []string
}

func newVolumeListCommand(g *globals) *cobra.Command {
	f := &volumeListFlags{}
	cmd := &cobra.Command{
		Use:     "ls [OPTIONS]",
		Aliases: []string{"list"},
		Short:   "List volumes",
		Long: `List the volumes of the store by name. Volumes in files elsewhere are not known
here.

Filters: dangling=true|false (whether no container has it), driver=local,
label=KEY[=VALUE], name=TEXT.`,
		Example: "  rungv volume ls\n  rungv volume ls --size --filter label=tier=gold\n  rungv volume ls --format '{{.Name}} {{.Size}} {{.Base}}'",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runVolumeList(cmd, g, f)
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "Only display volume names")
	fl.BoolVarP(&f.size, "size", "s", false, "Display sizes, and the bases of clones")
	fl.StringVar(&f.format, "format", "", `Format output using a custom template: 'table', 'table TEMPLATE', 'json', or 'TEMPLATE'`)
	fl.StringArrayVarP(&f.filters, "filter", "f", nil, `Provide filter values (e.g. "dangling=true")`)
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("filter", cobra.FixedCompletions([]string{"dangling=true", "driver=", "label=", "name="}, cobra.ShellCompDirectiveNoSpace))
	return cmd
}

func runVolumeList(cmd *cobra.Command, g *globals, f *volumeListFlags) error {
	filter, err := parseVolumeFilter(f.filters, "dangling", "driver", "label", "name")
	if err != nil {
		return err
	}
	s, r, err := volumeStore(g)
	if err != nil {
		return err
	}
	list, err := s.List()
	if err != nil {
		return err
	}
	var rows []volumeRow
	for _, in := range list {
		users := len(r.VolumeUsers(in.Path))
		if filter.keep(in, users) {
			rows = append(rows, volumeRowOf(in, users))
		}
	}
	if f.quiet && f.format == "" {
		f.format = "{{.Name}}"
	}
	table := volumeTable
	if f.size {
		table = volumeTableSize
	}
	return printList(cmd.OutOrStdout(), f.format, table, volumeHeader, rows)
}

func volumeRowOf(in *volumes.Info, users int) volumeRow {
	r := volumeRow{
		Availability: "N/A", Group: "N/A", Status: "N/A", Driver: volumeDriver, Scope: "local", Name: in.Name, Mountpoint: in.Path,
		Links: strconv.Itoa(users), Size: humanSize(in.SizeBytes), DiskSize: humanSize(in.DiskBytes), labels: in.Labels,
	}
	if len(in.Bases) > 0 {
		r.Base = in.Bases[0]
	}
	var labels []string
	for _, k := range slices.Sorted(maps.Keys(in.Labels)) {
		labels = append(labels, k+"="+in.Labels[k])
	}
	r.Labels = strings.Join(labels, ",")
	return r
}

// volumeFilter is what --filter says: alternatives by key.
type volumeFilter map[string][]string

func parseVolumeFilter(filters []string, known ...string) (volumeFilter, error) {
	f := volumeFilter{}
	for _, s := range filters {
		key, value, ok := strings.Cut(s, "=")
		switch {
		case !ok:
			return nil, api.Errorf(api.KindInvalid, "invalid argument %q for \"-f, --filter\" flag: invalid filter %q (should be KEY=VALUE)", s, s)
		case !slices.Contains(known, key):
			return nil, api.Errorf(api.KindInvalid, "invalid filter '%s'", key)
		case key == "dangling" || key == "all":
			if _, err := strconv.ParseBool(value); err != nil {
				return nil, api.Errorf(api.KindInvalid, "invalid filter '%s=[%s]'", key, value)
			}
		}
		f[key] = append(f[key], value)
	}
	return f, nil
}

func (f volumeFilter) keep(in *volumes.Info, users int) bool {
	for _, l := range f["label"] {
		if !hasLabel(in, l) {
			return false
		}
	}
	for _, l := range f["label!"] {
		if hasLabel(in, l) {
			return false
		}
	}
	for _, v := range f["dangling"] {
		if want, _ := strconv.ParseBool(v); want != (users == 0) {
			return false
		}
	}
	if names := f["name"]; len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return strings.Contains(in.Name, n) }) {
		return false
	}
	return len(f["driver"]) == 0 || slices.Contains(f["driver"], volumeDriver)
}

func hasLabel(in *volumes.Info, label string) bool {
	key, value, exact := strings.Cut(label, "=")
	got, ok := in.Labels[key]
	return ok && (!exact || got == value)
}

// volumeUsers names the containers that have a volume, as docker does.
func volumeUsers(r *container.Runner, path string) []string {
	var ids []string
	for _, rec := range r.VolumeUsers(path) {
		ids = append(ids, rec.ID)
	}
	return ids
}
