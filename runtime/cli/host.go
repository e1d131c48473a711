// SPDX-License-Identifier: Apache-2.0

// `rungv doctor`, `rungv info`, `rungv version`: about this host and program.

package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/lockdown"
)

func newDoctorCommand(g *globals) *cobra.Command {
	var format string
	var node bool
	var engines engineFlags
	cmd := &cobra.Command{
		Use:   "doctor [OPTIONS]",
		Short: "Check what this host gives sandboxes",
		Long: `Print each isolation layer and facility: whether sandboxes started by this user
on this host use it, whether it is there, or missing, and what that means.
With --node, also what the container engines of a node need to run them.

The exit code is 1 when something is missing without which no sandbox runs, or,
with --node, without which an engine that is to run them could not.`,
		Example: "  rungv doctor\n  rungv doctor --format json\n  rungv doctor --node",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := imagesRoot(g)
			if err != nil {
				return err
			}
			layers := lockdown.Doctor(filepath.Dir(root))
			if node {
				more, err := nodeLayers(cmd.Context(), &engines)
				if err != nil {
					return err
				}
				layers = append(layers, more...)
			}
			if err := printLayers(cmd.OutOrStdout(), layers, format); err != nil {
				return err
			}
			for _, l := range layers {
				if l.Fatal && l.State == lockdown.StateMissing {
					return api.Errorf(api.KindUnsupported, "no sandbox can run here: %s is missing: %s", l.Name, l.Meaning)
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&format, "format", "f", "", `Format output using a custom template: 'json' or 'TEMPLATE'`)
	fl.BoolVar(&node, "node", false, "Check what container engines need, too: before and after 'rungv install'")
	engines.register(fl)
	return cmd
}

func printLayers(w io.Writer, layers []lockdown.Layer, format string) error {
	if format != "" {
		return printList(w, format, "", nil, layers)
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "LAYER\tSTATE\tDETAIL\tMEANING")
	for _, l := range layers {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", l.Name, l.State, l.Detail, l.Meaning)
	}
	return tw.Flush()
}

// infoDocument is what `info` prints: docker's fields that mean something
// here, then ours.
type infoDocument struct {
	Containers        int
	ContainersRunning int
	ContainersStopped int
	Images            int
	ServerVersion     string
	Driver            string
	OSType            string
	Architecture      string
	NCPU              int
	StateRoot         string
	ImageRoot         string
	Sandbox           string
}

func newInfoCommand(g *globals) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "info [OPTIONS]",
		Short:   "Display system-wide information",
		Long:    "Print where this user's containers and images are kept, and how many there are. See also 'rungv doctor'.",
		Example: "  rungv info\n  rungv info -f '{{.ImageRoot}}'",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := gatherInfo(g)
			if err != nil {
				return err
			}
			if format != "" {
				return printList(cmd.OutOrStdout(), format, "", nil, []*infoDocument{d})
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "Containers: %d\n Running: %d\n Stopped: %d\nImages: %d\nVersion: %s\nStorage Driver: %s\nSandbox: %s\nOSType: %s\nArchitecture: %s\nCPUs: %d\nState Root: %s\nImage Root: %s\n",
				d.Containers, d.ContainersRunning, d.ContainersStopped, d.Images, d.ServerVersion, d.Driver, d.Sandbox,
				d.OSType, d.Architecture, d.NCPU, d.StateRoot, d.ImageRoot)
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", `Format output using a custom template: 'json' or 'TEMPLATE'`)
	return cmd
}

func gatherInfo(g *globals) (*infoDocument, error) {
	r, err := g.runner(true)
	if err != nil {
		return nil, err
	}
	d := &infoDocument{
		ServerVersion: Version, Driver: "erofs", Sandbox: "gVisor Sentry, platform systrap, one process a container",
		OSType: runtime.GOOS, Architecture: runtime.GOARCH, NCPU: runtime.NumCPU(),
		StateRoot: r.State.Root(), ImageRoot: r.Images.Root(),
	}
	records, err := r.State.List()
	if err != nil {
		g.warn("%v", err)
	}
	for _, rec := range records {
		d.Containers++
		switch {
		case isRunning(rec):
			d.ContainersRunning++
		case rec.State == api.StateStopped:
			d.ContainersStopped++
		}
	}
	var list []*images.Image
	if list, err = r.Images.List(); err != nil {
		return nil, err
	}
	d.Images = len(list)
	return d, nil
}

// versionDocument has docker's shape: templates ask for .Client.Version and
// .Server.Version, which are one program here.
type versionDocument struct {
	Client, Server versionPart
}

type versionPart struct {
	Version   string
	GoVersion string
	GitCommit string `json:",omitempty"`
	BuildTime string `json:",omitempty"`
	Os        string
	Arch      string
	GVisor    string `json:",omitempty"`
}

func newVersionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "version [OPTIONS]",
		Short:   "Show the version information",
		Long:    "Print the version of rungv, of Go, and of the gVisor module that it is built from.",
		Example: "  rungv version\n  rungv version --format '{{.Server.Version}}'",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := thisVersion()
			if format != "" {
				return printList(cmd.OutOrStdout(), format, "", nil, []versionDocument{{p, p}})
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 1, ' ', 0)
			fmt.Fprintf(w, "Version:\t%s\nGo version:\t%s\nOS/Arch:\t%s/%s\n", p.Version, p.GoVersion, p.Os, p.Arch)
			if p.GitCommit != "" {
				fmt.Fprintf(w, "Git commit:\t%s\nBuilt:\t%s\n", p.GitCommit, p.BuildTime)
			}
			if p.GVisor != "" {
				fmt.Fprintf(w, "gVisor:\t%s\n", p.GVisor)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", `Format output using a custom template: 'json' or 'TEMPLATE'`)
	return cmd
}

// gvisorModule is the module whose Sentry we are.
const gvisorModule = "gvisor.dev/gvisor"

func thisVersion() versionPart {
	p := versionPart{Version: Version, GoVersion: runtime.Version(), Os: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return p
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			p.GitCommit = s.Value
		case "vcs.time":
			p.BuildTime = s.Value
		}
	}
	for _, m := range info.Deps {
		if m.Path == gvisorModule {
			p.GVisor = m.Version
		}
	}
	if p.Version == "unknown" && info.Main.Version != "" && info.Main.Version != "(devel)" {
		p.Version = info.Main.Version // `go install …@version` sets no flag.
	}
	return p
}
