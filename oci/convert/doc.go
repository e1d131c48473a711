// SPDX-License-Identifier: Apache-2.0

// Package convert turns what a user asks for (docker's words: an image's
// configuration and the options of a run) into a sandbox spec.
//
// It is pure: the same input gives the same spec, and nothing is opened,
// resolved or looked up on the host. What depends on the host (its processor
// count, the caller's environment) comes in as a value. It never trusts an
// image's configuration: what it cannot express is an error that names it.
package convert

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// Docker's defaults, where a user and an image leave something open.
const (
	// DefaultPath is docker's PATH.
	DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// DefaultShmSizeBytes is the size of /dev/shm.
	DefaultShmSizeBytes = 64 << 20
	// DefaultStopSignal ends a container unless it or its image says otherwise.
	DefaultStopSignal = "SIGTERM"
	// shortIDDigits is how much of an id becomes a default host name.
	shortIDDigits = 12
)

// Limits of what a user may ask for; docker has the first.
const (
	// MinMemoryBytes keeps a limit from killing the first process at once.
	MinMemoryBytes = 6 << 20
	// MinCPUMillis is a hundredth of a processor.
	MinCPUMillis = 10
)

// Options are what a user asks for in addition to an image. The zero value
// asks for nothing.
type Options struct {
	// Args replace the image's command.
	Args []string `json:"args,omitempty"`
	// Entrypoint replaces the image's when SetEntrypoint is set; an empty one
	// clears it. Either way the image's command goes too.
	Entrypoint    string `json:"entrypoint,omitempty"`
	SetEntrypoint bool   `json:"setEntrypoint,omitempty"`
	// Env is NAME=value, or NAME alone to remove the image's.
	Env        []string `json:"env,omitempty"`
	Workdir    string   `json:"workdir,omitempty"`
	User       string   `json:"user,omitempty"`
	GroupAdd   []string `json:"groupAdd,omitempty"`
	Hostname   string   `json:"hostname,omitempty"`
	Domainname string   `json:"domainname,omitempty"`

	Interactive bool `json:"interactive,omitempty"`
	TTY         bool `json:"tty,omitempty"`
	Init        bool `json:"init,omitempty"`

	ReadOnly        bool        `json:"readOnly,omitempty"`
	RootfsSizeBytes int64       `json:"rootfsSizeBytes,omitempty"`
	Tmpfs           []api.Mount `json:"tmpfs,omitempty"`
	ShmSizeBytes    int64       `json:"shmSizeBytes,omitempty"`
	// Volumes are mounted besides Tmpfs, each directory before what is below.
	Volumes []VolumeMount `json:"volumes,omitempty"`
	// Binds are mounted likewise.
	Binds []BindMount `json:"binds,omitempty"`

	MemoryBytes int64        `json:"memoryBytes,omitempty"`
	CPUMillis   int64        `json:"cpuMillis,omitempty"`
	Pids        int64        `json:"pids,omitempty"`
	Ulimits     []api.Rlimit `json:"ulimits,omitempty"`

	CapAdd          []string `json:"capAdd,omitempty"`
	CapDrop         []string `json:"capDrop,omitempty"`
	Privileged      bool     `json:"privileged,omitempty"`
	NoNewPrivileges bool     `json:"noNewPrivileges,omitempty"`

	// AddHosts are lines for /etc/hosts, DNS and DNSSearch for resolv.conf.
	AddHosts  []Host            `json:"addHosts,omitempty"`
	DNS       []string          `json:"dns,omitempty"`
	DNSSearch []string          `json:"dnsSearch,omitempty"`
	DNSOption []string          `json:"dnsOption,omitempty"`
	Sysctls   map[string]string `json:"sysctls,omitempty"`
	// Network is a mode's name, or ns:PATH for NetworkNetns; Publish and Egress are for NetworkNAT.
	Network string `json:"network,omitempty"`
	// NoPacketWrite keeps packet sockets from sending.
	NoPacketWrite bool             `json:"noPacketWrite,omitempty"`
	Publish       []api.Port       `json:"publish,omitempty"`
	Egress        []api.EgressRule `json:"egress,omitempty"`
	// IPv6 says that the host has it, and so the guest.
	IPv6 bool `json:"ipv6,omitempty"`
	// OwnAddress is the guest's where its network is a namespace of the host.
	OwnAddress string `json:"ownAddress,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// StopSignal and StopTimeout (seconds, nil for the default) are for
	// whoever stops the container; the sandbox does not know them.
	StopSignal  string `json:"stopSignal,omitempty"`
	StopTimeout *int   `json:"stopTimeout,omitempty"`
}

func (o *Options) nat() bool { return o.Network == string(api.NetworkNAT) }

// Host is a name and its address.
type Host struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// Input is everything that a spec depends on.
type Input struct {
	// ID is the sandbox's and its container's id.
	ID string
	// Image is the image's configuration; its layers, lowest first, are named
	// by Layers.
	Image  ispec.ImageConfig
	Layers []string
	// Cores is the host's processor count, which bounds --cpus.
	Cores int
	Options
}

// Sandbox returns the sandbox spec. Its descriptors are [api.NoFD]: who starts
// the process fills them in.
func Sandbox(in Input) (*api.Sandbox, error) {
	o := &in.Options
	args, err := command(in.Image, o)
	if err != nil {
		return nil, err
	}
	if err := checkResources(o, in.Cores); err != nil {
		return nil, err
	}
	capabilities, err := Capabilities(o.CapAdd, o.CapDrop)
	if err != nil {
		return nil, err
	}
	mounts, err := Mounts(o)
	if err != nil {
		return nil, err
	}
	hostname := o.Hostname
	if hostname == "" {
		hostname = in.ID[:min(len(in.ID), shortIDDigits)]
	}
	s := &api.Sandbox{
		Version:    api.SpecVersion,
		ID:         in.ID,
		Hostname:   hostname,
		Domainname: o.Domainname,
		Network:    api.Network{Mode: api.NetworkNone, BrokerFD: api.NoFD, NoPacketWrite: o.NoPacketWrite},
		Resources:  api.Resources{MemoryBytes: o.MemoryBytes, CPUMillis: o.CPUMillis, Pids: o.Pids},
		Sysctls:    o.Sysctls,
		ControlFD:  api.NoFD,
		ListenFD:   api.NoFD,
		StreamsFD:  api.NoFD,
		Container: api.Container{
			ID: in.ID,
			Process: api.Process{
				Args:             args,
				Env:              environment(in.Image.Env, o, hostname),
				Cwd:              first(o.Workdir, in.Image.WorkingDir, "/"),
				User:             first(o.User, in.Image.User),
				AdditionalGroups: o.GroupAdd,
				Capabilities:     capabilities,
				NoNewPrivileges:  o.NoNewPrivileges,
				Rlimits:          o.Ulimits,
				Terminal:         o.TTY,
				StdinFD:          api.NoFD,
				StdoutFD:         api.NoFD,
				StderrFD:         api.NoFD,
			},
			Rootfs:       api.Rootfs{ReadOnly: o.ReadOnly},
			Mounts:       mounts,
			Directories:  volumes(in.Image),
			Files:        files(o, hostname),
			ShmSizeBytes: o.ShmSizeBytes,
			Privileged:   o.Privileged,
			InitFD:       api.NoFD,
		},
	}
	if o.nat() {
		s.Network.Mode, s.Network.IPv6 = api.NetworkNAT, o.IPv6
	}
	if _, ok := NetworkNamespace(o.Network); ok {
		s.Network.Mode = api.NetworkNetns
	}
	if s.Container.ShmSizeBytes == 0 {
		s.Container.ShmSizeBytes = DefaultShmSizeBytes
	}
	for _, diffID := range in.Layers {
		s.Container.Rootfs.Layers = append(s.Container.Rootfs.Layers, api.Layer{FD: api.NoFD, Format: "erofs", DiffID: diffID})
	}
	return s, nil
}

// volumes are the places of the image's volumes that a spec can name; docker
// ignores "/" too.
func volumes(img ispec.ImageConfig) []string {
	var dirs []string
	for _, dir := range slices.Sorted(maps.Keys(img.Volumes)) {
		if clean := path.Clean("/" + dir); clean != "/" && !strings.Contains(clean, "\x00") {
			dirs = append(dirs, clean)
		}
	}
	return dirs
}

// command is docker's rule: an entry point, then a command; whoever replaces
// the first drops the image's second.
func command(img ispec.ImageConfig, o *Options) ([]string, error) {
	entrypoint, cmd := img.Entrypoint, img.Cmd
	if o.SetEntrypoint {
		entrypoint, cmd = nil, nil
		if o.Entrypoint != "" {
			entrypoint = []string{o.Entrypoint}
		}
	}
	if len(o.Args) > 0 {
		cmd = o.Args
	}
	args := append(append([]string{}, entrypoint...), cmd...)
	if len(args) == 0 {
		return nil, api.Errorf(api.KindInvalid, "no command specified: the image names none, give one behind it")
	}
	if args[0] == "" {
		return nil, api.Errorf(api.KindInvalid, "the command's name is empty")
	}
	return args, nil
}

func checkResources(o *Options, cores int) error {
	switch {
	case o.MemoryBytes != 0 && o.MemoryBytes < MinMemoryBytes:
		return api.Errorf(api.KindInvalid, "minimum memory limit allowed is 6MB: %d bytes asked for", o.MemoryBytes)
	case o.CPUMillis < 0 || o.CPUMillis != 0 && o.CPUMillis < MinCPUMillis || o.CPUMillis > int64(cores)*1000:
		return api.Errorf(api.KindInvalid, "range of CPUs is from 0.01 to %d.00, as there are only %d CPUs available", cores, cores)
	case o.ShmSizeBytes < 0:
		return api.Errorf(api.KindInvalid, "shm size %d is negative", o.ShmSizeBytes)
	case o.RootfsSizeBytes < 0:
		return api.Errorf(api.KindInvalid, "rootfs size %d is negative", o.RootfsSizeBytes)
	}
	return nil
}

// StopSignal is the signal that asks a container to end.
func StopSignal(img ispec.ImageConfig, o *Options) (int, error) {
	name := first(o.StopSignal, img.StopSignal, DefaultStopSignal)
	sig, err := ParseSignal(name)
	if err != nil {
		return 0, fmt.Errorf("stop signal: %w", err)
	}
	return sig, nil
}

// first returns the first value that is not empty.
func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
