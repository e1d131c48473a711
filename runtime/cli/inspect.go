// SPDX-License-Identifier: Apache-2.0

// `rungv inspect`: docker's document for a container, and what only we know.

package cli

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/outputlog"
	"z.gfire.dev/gvx/runtime/state"
)

// containerDocument is what docker's API returns for a container.
type containerDocument struct {
	ID      string `json:"Id"`
	Created time.Time
	Path    string
	Args    []string
	State   stateDocument
	Image   string
	Name    string
	// LogPath is the newest file of the output that is kept.
	LogPath    string
	Driver     string
	Platform   string
	HostConfig hostConfigDocument
	Config     configDocument
	Mounts     []mountDocument
	// NetworkSettings is filled in while the container runs.
	NetworkSettings networkDocument
	// Sandbox is ours: the process that is the container's kernel.
	Sandbox sandboxDocument
}

type stateDocument struct {
	Status     string
	Running    bool
	Paused     bool
	Restarting bool
	OOMKilled  bool
	Dead       bool
	Pid        int
	ExitCode   int
	Error      string
	StartedAt  time.Time
	FinishedAt time.Time
}

type hostConfigDocument struct {
	NetworkMode    string
	LogConfig      logConfigDocument
	AutoRemove     bool
	CapAdd         []string
	CapDrop        []string
	DNS            []string `json:"Dns"`
	DNSOptions     []string `json:"DnsOptions"`
	DNSSearch      []string `json:"DnsSearch"`
	ExtraHosts     []string
	GroupAdd       []string
	Privileged     bool
	ReadonlyRootfs bool
	Binds          []string
	ShmSize        int64
	Sysctls        map[string]string
	Runtime        string
	Memory         int64
	NanoCpus       int64
	PidsLimit      int64
	Ulimits        []ulimitDocument
	Init           bool
	Annotations    map[string]string
}

type ulimitDocument struct {
	Name string
	Hard int64
	Soft int64
}

type logConfigDocument struct {
	Type   string
	Config map[string]string
}

type configDocument struct {
	Hostname    string
	Domainname  string
	User        string
	Tty         bool
	OpenStdin   bool
	Env         []string
	Cmd         []string
	Image       string
	WorkingDir  string
	Labels      map[string]string
	StopSignal  int
	StopTimeout *int `json:",omitempty"`
}

// mountDocument is docker's, and what only we know of a volume.
type mountDocument struct {
	Type        string
	Name        string `json:",omitempty"`
	Source      string
	Destination string
	Driver      string `json:",omitempty"`
	Mode        string
	RW          bool
	Propagation string
	// Files are what is open for a volume, the lowest base first; "" has no
	// name and goes with the container.
	Files []string `json:",omitempty"`
}

// sandboxDocument is the process behind a container.
type sandboxDocument struct {
	Pid         int
	LauncherPid int
	// Isolation names the layers that hold in the process.
	Isolation []string
	// Boot says when the sandbox reached what, in milliseconds since its
	// launcher began.
	Boot []phaseDocument
}

type phaseDocument struct {
	Phase        string
	Milliseconds float64
}

func newInspectCommand(g *globals) *cobra.Command {
	var format, kind string
	cmd := &cobra.Command{
		Use:   "inspect [OPTIONS] NAME|ID [NAME|ID...]",
		Short: "Return low-level information on containers, images or volumes",
		Long: `Print what is known of containers, images or volumes as a JSON array in docker's
shape, or a line for each with --format. A name is looked for among the
containers first, then among the images.

Beyond docker's fields a container has Sandbox: the isolation layers that hold
in its process, and the phases of its boot.`,
		Example: "  rungv inspect box\n  rungv inspect -f '{{.State.Status}} {{.State.ExitCode}}' box\n  rungv inspect -f '{{json .Sandbox.Isolation}}' box",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInspect(cmd, g, args, format, kind)
		},
		ValidArgsFunction: completeContainers(g, nil),
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", `Format output using a custom template: 'json' or 'TEMPLATE'`)
	cmd.Flags().StringVar(&kind, "type", "", `Only inspect objects of the given type ("container", "image", "volume")`)
	return cmd
}

func runInspect(cmd *cobra.Command, g *globals, args []string, format, kind string) error {
	if kind != "" && kind != "container" && kind != "image" && kind != "volume" {
		return api.Errorf(api.KindInvalid, "invalid --type %q: want \"container\", \"image\" or \"volume\"", kind)
	}
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	var found []any
	var problems []error
	for _, ref := range args {
		d, err := inspectOne(g, r, ref, kind)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		found = append(found, d)
	}
	if err := printInspect(cmd.OutOrStdout(), format, found); err != nil {
		return err
	}
	return errors.Join(problems...)
}

// inspectOne returns the document of a container or of an image, in a form
// whose templates use the names of the JSON.
func inspectOne(g *globals, r *container.Runner, ref, kind string) (any, error) {
	if kind == "volume" {
		return inspectVolumeOf(g, r, ref)
	}
	if kind != "image" {
		rec, err := r.State.Get(ref)
		if err == nil {
			d := containerDocumentOf(rec)
			if rec.Log != nil {
				d.LogPath = outputlog.Path(r.State.Dir(rec.ID))
			}
			return d, nil
		}
		if api.KindOf(err) != api.KindNotFound || kind == "container" {
			return nil, err
		}
	}
	store, err := openImages(g)
	if err != nil {
		return nil, err
	}
	d, err := inspectImage(store, ref)
	if err != nil && kind == "" {
		if v, e := inspectVolumeOf(g, r, ref); e == nil {
			return v, nil
		}
	}
	if api.KindOf(err) == api.KindNotFound && kind == "" {
		return nil, api.Errorf(api.KindNotFound, "No such object: %s", ref)
	}
	return d, err
}

func containerDocumentOf(rec *state.Record) *containerDocument {
	o, p := &rec.Options, &rec.Process
	d := &containerDocument{
		ID: rec.ID, Created: rec.CreatedAt, Image: rec.ImageID, Name: "/" + rec.Name,
		Driver: "erofs", Platform: "linux",
		State: stateDocument{
			Status: dockerState(rec), Running: rec.State == api.StateRunning, Paused: rec.Paused, Error: rec.Error,
			StartedAt: rec.StartedAt, FinishedAt: rec.FinishedAt,
		},
		HostConfig: hostConfigDocument{
			NetworkMode: o.Network, AutoRemove: rec.AutoRemove, CapAdd: o.CapAdd, CapDrop: o.CapDrop,
			DNS: o.DNS, DNSOptions: o.DNSOption, DNSSearch: o.DNSSearch, GroupAdd: o.GroupAdd,
			Privileged: o.Privileged, ReadonlyRootfs: o.ReadOnly, ShmSize: o.ShmSizeBytes, Sysctls: o.Sysctls,
			Runtime: "gvx", Memory: o.MemoryBytes, NanoCpus: o.CPUMillis * 1e6, PidsLimit: o.Pids,
			Init: o.Init, Annotations: o.Annotations,
		},
		Config: configDocument{
			Hostname: rec.Hostname, Domainname: o.Domainname, User: p.User, Tty: o.TTY, OpenStdin: o.Interactive,
			Env: p.Env, Cmd: p.Args, Image: rec.Image, WorkingDir: p.Cwd, Labels: o.Labels,
			StopSignal: rec.StopSignal, StopTimeout: o.StopTimeout,
		},
		Mounts:          []mountDocument{},
		NetworkSettings: networkDocumentOf(rec),
		Sandbox: sandboxDocument{
			Pid: rec.Sandbox.PID, LauncherPid: rec.Launcher.PID, Isolation: rec.Layers, Boot: phases(rec.Phases),
		},
	}
	d.HostConfig.LogConfig = logConfigDocument{Type: logDriverNone, Config: map[string]string{}}
	if l := rec.Log; l != nil {
		d.HostConfig.LogConfig = logConfigDocument{logDriverJSON, map[string]string{
			"max-size": strconv.FormatInt(l.MaxSizeBytes, 10), "max-file": strconv.Itoa(l.MaxFiles),
		}}
	}
	if len(p.Args) > 0 {
		d.Path, d.Args = p.Args[0], p.Args[1:]
	}
	if d.State.Running {
		d.State.Pid = rec.Sandbox.PID
	}
	if e := rec.Exit; e != nil {
		d.State.ExitCode, d.State.OOMKilled = e.Code, e.OOMKilled
	}
	for _, h := range o.AddHosts {
		d.HostConfig.ExtraHosts = append(d.HostConfig.ExtraHosts, h.Name+":"+h.Address)
	}
	for _, l := range o.Ulimits {
		// Docker's document says -1 for unlimited, which these bits are.
		d.HostConfig.Ulimits = append(d.HostConfig.Ulimits, ulimitDocument{l.Name, int64(l.Hard), int64(l.Soft)})
	}
	for _, m := range o.Tmpfs {
		d.Mounts = append(d.Mounts, mountDocument{Type: string(m.Type), Destination: m.Target, RW: !m.ReadOnly})
	}
	for _, m := range rec.Mounts {
		d.Mounts = append(d.Mounts, volumeMountDocument(m))
		d.HostConfig.Binds = append(d.HostConfig.Binds, bindOf(m))
	}
	return d
}

func phases(list []control.Phase) []phaseDocument {
	out := make([]phaseDocument, len(list))
	for i, p := range list {
		out[i] = phaseDocument{p.Name, float64(p.At.Microseconds()) / 1000}
	}
	return out
}
