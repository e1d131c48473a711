// SPDX-License-Identifier: Apache-2.0

// image ls: docker's columns, filters and formats.

package cli

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/images"
)

// none is docker's word for a name that is not there.
const none = "<none>"

// imageHeader are the column titles by field.
var imageHeader = map[string]string{
	"ID": "IMAGE ID", "Repository": "REPOSITORY", "Tag": "TAG", "Digest": "DIGEST",
	"CreatedSince": "CREATED", "CreatedAt": "CREATED AT", "Size": "SIZE",
	"Containers": "CONTAINERS", "SharedSize": "SHARED SIZE", "UniqueSize": "UNIQUE SIZE", "VirtualSize": "SIZE",
}

// The default tables.
const (
	imageTable        = "{{.Repository}}\t{{.Tag}}\t{{.ID}}\t{{.CreatedSince}}\t{{.Size}}"
	imageTableDigests = "{{.Repository}}\t{{.Tag}}\t{{.Digest}}\t{{.ID}}\t{{.CreatedSince}}\t{{.Size}}"
)

// imageRow is one line: an image under one of its names. The fields are those
// of docker's templates; the last four are columns docker fills on request.
type imageRow struct {
	Containers   string
	CreatedAt    string
	CreatedSince string
	Digest       string
	ID           string
	Repository   string
	SharedSize   string
	Size         string
	Tag          string
	UniqueSize   string
	VirtualSize  string
}

type listFlags struct {
	all, quiet, noTrunc, digests bool
	format                       string
	filters                      []string
}

func newListCommand(g *globals) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:     "ls [OPTIONS] [REPOSITORY[:TAG]]",
		Aliases: []string{"list"},
		Short:   "List images",
		Long: `List images, the newest first.

Filters: dangling=true|false, reference=PATTERN, label=KEY[=VALUE],
before=IMAGE, since=IMAGE.`,
		Example: "  rungv image ls\n  rungv image ls --filter reference='debian:*' --format '{{.ID}} {{.Tag}}'\n  rungv image ls --format json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runList(cmd, g, &f, args)
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.all, "all", "a", false, "Show all images (there are no intermediate images to hide)")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "Only show image IDs")
	fl.BoolVar(&f.noTrunc, "no-trunc", false, "Don't truncate output")
	fl.BoolVar(&f.digests, "digests", false, "Show digests")
	fl.StringVar(&f.format, "format", "", `Format output using a custom template: 'table', 'table TEMPLATE', 'json', or 'TEMPLATE'`)
	fl.StringArrayVarP(&f.filters, "filter", "f", nil, "Filter output based on conditions provided")
	return cmd
}

func runList(cmd *cobra.Command, g *globals, f *listFlags, args []string) error {
	store, err := openImages(g)
	if err != nil {
		return err
	}
	filter, err := parseImageFilter(store, f.filters)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		filter.references = append(filter.references, args[0])
	}
	list, err := store.List()
	if err != nil {
		return err
	}
	var rows []imageRow
	for _, img := range list {
		if filter.keep(img) {
			rows = append(rows, f.rows(img, filter)...)
		}
	}
	if f.quiet && f.format == "" {
		return printIDs(cmd, rows)
	}
	table := imageTable
	if f.digests {
		table = imageTableDigests
	}
	return printList(cmd.OutOrStdout(), f.format, table, imageHeader, rows)
}

// printIDs prints each ID once, as docker's -q does.
func printIDs(cmd *cobra.Command, rows []imageRow) error {
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), r.ID); err != nil {
			return err
		}
	}
	return nil
}

// rows are the lines of one image: one a tag, or one that says <none>.
func (f *listFlags) rows(img *images.Image, filter *imageFilter) []imageRow {
	base := imageRow{
		ID: shortDigest(img.ID), Repository: none, Tag: none, Digest: none,
		Size: humanSize(img.Size), VirtualSize: humanSize(img.Size), CreatedSince: "N/A", CreatedAt: "N/A",
		Containers: "N/A", SharedSize: "N/A", UniqueSize: "N/A",
	}
	if f.noTrunc {
		base.ID = string(img.ID)
	}
	if !img.Created.IsZero() {
		base.CreatedSince = units.HumanDuration(time.Since(img.Created)) + " ago"
		base.CreatedAt = img.Created.Local().Format("2006-01-02 15:04:05 -0700 MST")
	}
	digests := map[string]string{}
	for _, n := range img.RepoDigests {
		repository, _, d := images.SplitName(n)
		digests[repository] = d
	}
	var out []imageRow
	for _, n := range img.Names {
		if !filter.keepName(n) {
			continue
		}
		r := base
		repository, tag, _ := images.SplitName(n)
		r.Repository, r.Tag = images.FamiliarName(repository), tag
		if d := digests[repository]; d != "" {
			r.Digest = d
		}
		out = append(out, r)
	}
	if len(img.Names) == 0 {
		for repository, d := range digests {
			base.Repository, base.Digest = images.FamiliarName(repository), d
		}
		out = append(out, base)
	}
	return out
}

// humanSize is docker's: three digits, decimal units.
func humanSize(n int64) string { return units.HumanSizeWithPrecision(float64(n), 3) }

// imageFilter is what --filter says.
type imageFilter struct {
	dangling      *bool
	references    []string
	labels        []string
	before, since time.Time
}

// parseImageFilter reads KEY=VALUE filters; before and since name images.
func parseImageFilter(store *images.Store, filters []string) (*imageFilter, error) {
	f := &imageFilter{}
	for _, s := range filters {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, api.Errorf(api.KindInvalid, "invalid argument %q for \"-f, --filter\" flag: invalid filter %q (should be KEY=VALUE)", s, s)
		}
		switch key {
		case "dangling":
			b, err := strconv.ParseBool(value)
			if err != nil {
				return nil, api.Errorf(api.KindInvalid, "invalid filter 'dangling=[%s]'", value)
			}
			f.dangling = &b
		case "reference":
			f.references = append(f.references, value)
		case "label":
			f.labels = append(f.labels, value)
		case "before", "since":
			img, err := store.Get(value)
			if err != nil {
				return nil, err
			}
			if key == "before" {
				f.before = img.Created
			} else {
				f.since = img.Created
			}
		default:
			return nil, api.Errorf(api.KindInvalid, "invalid filter '%s'", key)
		}
	}
	return f, nil
}

// keep reports whether any line of the image is shown.
func (f *imageFilter) keep(img *images.Image) bool {
	if f.dangling != nil && *f.dangling != img.Dangling() {
		return false
	}
	if !f.before.IsZero() && !img.Created.Before(f.before) || !f.since.IsZero() && !img.Created.After(f.since) {
		return false
	}
	for _, l := range f.labels {
		key, value, exact := strings.Cut(l, "=")
		got, ok := img.Config.Labels[key]
		if !ok || exact && got != value {
			return false
		}
	}
	if len(f.references) == 0 {
		return true
	}
	for _, n := range append(append([]string{}, img.Names...), img.RepoDigests...) {
		if f.keepName(n) {
			return true
		}
	}
	return false
}

// keepName reports whether a name matches one of the reference filters, each a
// pattern for the whole short or long name, or for the repository alone.
func (f *imageFilter) keepName(name string) bool {
	if len(f.references) == 0 {
		return true
	}
	repository, _, _ := images.SplitName(name)
	for _, pattern := range f.references {
		for _, s := range []string{name, repository, images.FamiliarName(name), images.FamiliarName(repository)} {
			if ok, err := path.Match(pattern, s); err == nil && ok {
				return true
			}
		}
	}
	return false
}
