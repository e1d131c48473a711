// SPDX-License-Identifier: Apache-2.0

// The flags of `rungv run`: docker's, word for word.

package cli

import (
	"fmt"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
)

// runFlags hold the flags of `rungv run` as they were given.
type runFlags struct {
	detachFlags
	interactive, tty, remove, init, readOnly, privileged, quiet, sigProxy bool
	waitStart, packetWrite                                                bool

	name, envZero, workdir, user, hostname, domainname, cidFile, detachKeys string
	pull, platform, progress, stopSignal, network                           string
	entrypoint                                                              optionalString
	memory, shmSize, rootfsSize                                             bytesFlag
	cpus                                                                    cpusFlag
	pids                                                                    int64
	stopTimeout                                                             optionalInt

	env, envFiles, labels, labelFiles, annotations, tmpfs, ulimits []string
	capAdd, capDrop, groupAdd, securityOpts, addHosts              []string
	dns, dnsSearch, dnsOptions, sysctls, publish, egress           []string
	volumes, mounts                                                []string
}

func (f *runFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "Keep STDIN open even if not attached")
	fl.BoolVarP(&f.tty, "tty", "t", false, "Allocate a pseudo-TTY")
	f.detachFlags.register(fl)
	fl.BoolVar(&f.remove, "rm", false, "Automatically remove the container when it exits")
	fl.StringVar(&f.name, "name", "", "Assign a name to the container")
	fl.StringVar(&f.cidFile, "cidfile", "", "Write the container ID to the file")
	fl.BoolVar(&f.sigProxy, "sig-proxy", true, "Proxy received signals to the process")
	fl.StringVar(&f.detachKeys, "detach-keys", launch.DefaultDetachKeys, "Override the key sequence for detaching a container")

	fl.StringVar(&f.pull, "pull", "missing", `Pull image before running ("always", "missing", "never")`)
	fl.StringVar(&f.platform, "platform", "", "Set platform if the image is multi-platform capable")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "Suppress the pull output")
	fl.StringVar(&f.progress, "progress", progressAuto, `Set type of progress output ("auto", "plain", "none", "json")`)

	fl.StringArrayVarP(&f.env, "env", "e", nil, "Set environment variables")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "Read in a file of environment variables")
	fl.StringVar(&f.envZero, "env-zero-file", "", "File of environment variables, each ended by a zero byte: for programs that start rungv")
	_ = fl.MarkHidden("env-zero-file")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "Working directory inside the container")
	fl.StringVarP(&f.user, "user", "u", "", "Username or UID (format: <name|uid>[:<group|gid>])")
	fl.StringArrayVar(&f.groupAdd, "group-add", nil, "Add additional groups to join")
	fl.Var(&f.entrypoint, "entrypoint", "Overwrite the default ENTRYPOINT of the image")
	// -h is the host name, as in docker; help has no short form here.
	fl.StringVarP(&f.hostname, "hostname", "h", "", "Container host name")
	fl.Bool("help", false, "Print usage")
	fl.StringVar(&f.domainname, "domainname", "", "Container NIS domain name")
	fl.BoolVar(&f.init, "init", false, "Run an init inside the container that forwards signals and reaps processes")
	fl.StringVar(&f.stopSignal, "stop-signal", "", "Signal to stop the container")
	fl.Var(&f.stopTimeout, "stop-timeout", "Timeout (in seconds) to stop a container")

	fl.BoolVar(&f.readOnly, "read-only", false, "Mount the container's root filesystem as read only")
	fl.Var(&f.rootfsSize, "rootfs-size", "Limit of what the container may write to its root filesystem (default 64g)")
	fl.StringArrayVar(&f.tmpfs, "tmpfs", nil, "Mount a tmpfs directory")
	fl.StringArrayVarP(&f.volumes, "volume", "v", nil, "Mount a volume or a directory of the host: [NAME|FILE.ext4|PATH:]DIR[:ro]")
	fl.StringArrayVar(&f.mounts, "mount", nil, "Attach a volume or tmpfs to the container: type=volume,src=NAME|FILE,dst=DIR[,readonly][,size=64g][,clone=ephemeral|FILE.delta][,durability=host|process][,uid=,gid=]")
	fl.Var(&f.shmSize, "shm-size", "Size of /dev/shm (default 64MiB)")

	fl.VarP(&f.memory, "memory", "m", "Memory limit")
	fl.Var(&f.cpus, "cpus", "Number of CPUs")
	fl.Int64Var(&f.pids, "pids-limit", 0, "Tune container pids limit (set -1 for unlimited)")
	fl.StringArrayVar(&f.ulimits, "ulimit", nil, "Ulimit options")
	fl.StringArrayVar(&f.sysctls, "sysctl", nil, "Sysctl options")

	fl.StringArrayVar(&f.capAdd, "cap-add", nil, "Add Linux capabilities (all are there unless dropped)")
	fl.StringArrayVar(&f.capDrop, "cap-drop", nil, "Drop Linux capabilities")
	fl.BoolVar(&f.privileged, "privileged", false, "Give extended privileges to this container, inside its own kernel")
	fl.StringArrayVar(&f.securityOpts, "security-opt", nil, "Security Options")

	fl.StringVar(&f.network, "network", string(api.NetworkNAT), `Connect the container to a network ("nat", "none", "ns:PATH"): the last takes over the interfaces of a network namespace of the host`)
	fl.StringVar(&f.network, "net", "", "")
	_ = fl.MarkHidden("net") // docker's old spelling
	fl.StringArrayVarP(&f.publish, "publish", "p", nil, "Publish a container's port to the host: [[IP:]HOST:]PORT[/udp] or unix:PATH:PORT; IP is 127.0.0.1 unless given")
	fl.StringArrayVar(&f.egress, "egress", nil, `What the container may reach: "allow" or "deny" for all, or with =CIDR[:PORTS], or allow-domain=NAME[:PORTS], NAME or *.NAME; @FILE reads a rule from each line`)
	fl.StringArrayVar(&f.addHosts, "add-host", nil, "Add a custom host-to-IP mapping (host:ip)")
	fl.StringArrayVar(&f.dns, "dns", nil, "Set custom DNS servers")
	fl.StringArrayVar(&f.dnsSearch, "dns-search", nil, "Set custom DNS search domains")
	fl.StringArrayVar(&f.dnsOptions, "dns-option", nil, "Set DNS options")

	fl.StringArrayVarP(&f.labels, "label", "l", nil, "Set meta data on a container")
	fl.StringArrayVar(&f.labelFiles, "label-file", nil, "Read in a line delimited file of labels")
	fl.StringArrayVar(&f.annotations, "annotation", nil, "Add an annotation to the container")

	fl.BoolVar(&f.packetWrite, "packet-socket-write", true, "Let packet sockets send: what the container's CAP_NET_RAW is worth")
	fl.BoolVar(&f.waitStart, "wait-start", false, "Start the container when the program behind --caller-fd says so")
	_ = fl.MarkHidden("wait-start")

	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("pull", "always", "missing", "never")
	complete("mount", mountTypes...)
	complete("progress", progressAuto, progressPlain, progressNone, progressJSON)
	complete("network", string(api.NetworkNAT), string(api.NetworkNone))
}

// convert fills in what the conversion wants to know.
func (f *runFlags) convert(o *convert.Options) error {
	o.Interactive, o.TTY, o.Init = f.interactive, f.tty, f.init
	o.Workdir, o.User, o.GroupAdd = f.workdir, f.user, f.groupAdd
	o.Hostname, o.Domainname = f.hostname, f.domainname
	o.Entrypoint, o.SetEntrypoint = f.entrypoint.value, f.entrypoint.set
	o.ReadOnly, o.Privileged = f.readOnly, f.privileged
	o.NoPacketWrite = !f.packetWrite
	o.MemoryBytes, o.ShmSizeBytes, o.RootfsSizeBytes = int64(f.memory), int64(f.shmSize), int64(f.rootfsSize)
	o.CPUMillis, o.Pids = int64(f.cpus), max(f.pids, 0)
	o.CapAdd, o.CapDrop = f.capAdd, f.capDrop
	o.DNSSearch, o.DNSOption = f.dnsSearch, f.dnsOptions
	o.StopSignal, o.StopTimeout = f.stopSignal, f.stopTimeout.pointer()
	if err := f.connect(o); err != nil {
		return err
	}
	if o.Workdir != "" && !strings.HasPrefix(o.Workdir, "/") {
		return api.Errorf(api.KindInvalid, "the working directory '%s' is invalid, it needs to be an absolute path", o.Workdir)
	}
	for _, name := range []string{o.Hostname, o.Domainname} {
		if err := convert.CheckHostname(name); err != nil {
			return err
		}
	}
	if o.StopSignal != "" {
		if _, err := convert.ParseSignal(o.StopSignal); err != nil {
			return err
		}
	}
	if err := f.lists(o); err != nil {
		return err
	}
	return f.pairs(o)
}

// lists parses the flags that may be given more than once.
func (f *runFlags) lists(o *convert.Options) error {
	if err := f.mount(o); err != nil {
		return err
	}
	for _, s := range f.ulimits {
		l, err := convert.ParseUlimit(s)
		if err != nil {
			return err
		}
		o.Ulimits = append(o.Ulimits, l)
	}
	for _, s := range f.addHosts {
		h, err := convert.ParseHost(s)
		if err != nil {
			return err
		}
		o.AddHosts = append(o.AddHosts, h)
	}
	for _, s := range f.dns {
		ip, err := convert.ParseDNS(s)
		if err != nil {
			return err
		}
		o.DNS = append(o.DNS, ip)
	}
	for _, s := range f.securityOpts {
		nnp, err := convert.ParseSecurityOpt(s)
		if err != nil {
			return err
		}
		o.NoNewPrivileges = o.NoNewPrivileges || nnp
	}
	return nil
}

// pairs parses what is NAME=VALUE, from flags and files.
func (f *runFlags) pairs(o *convert.Options) error {
	var err error
	if o.Env, err = readAllEnv(f.envFiles, f.env, f.envZero); err != nil {
		return err
	}
	if o.Labels, err = readLabels(f.labelFiles, f.labels); err != nil {
		return err
	}
	if o.Annotations, err = keyValues("annotation", f.annotations); err != nil {
		return err
	}
	for _, s := range f.sysctls {
		name, value, err := convert.ParseSysctl(s)
		if err != nil {
			return err
		}
		if o.Sysctls == nil {
			o.Sysctls = make(map[string]string)
		}
		o.Sysctls[name] = value
	}
	return nil
}

// bytesFlag is a size such as 512m.
type bytesFlag int64

func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return units.BytesSize(float64(*b))
}

func (b *bytesFlag) Set(s string) error {
	n, err := convert.ParseBytes(s)
	*b = bytesFlag(n)
	return err
}

func (*bytesFlag) Type() string { return "bytes" }

// cpusFlag is a number of processors, in thousandths.
type cpusFlag int64

func (c *cpusFlag) String() string {
	if *c == 0 {
		return ""
	}
	return fmt.Sprintf("%g", float64(*c)/1000)
}

func (c *cpusFlag) Set(s string) error {
	n, err := convert.ParseCPUs(s)
	*c = cpusFlag(n)
	return err
}

func (*cpusFlag) Type() string { return "decimal" }

// optionalString tells "" from not given.
type optionalString struct {
	value string
	set   bool
}

func (s *optionalString) String() string { return s.value }

func (s *optionalString) Set(v string) error {
	s.value, s.set = v, true
	return nil
}

func (*optionalString) Type() string { return "string" }

// optionalInt tells 0 from not given.
type optionalInt struct {
	value int
	set   bool
}

func (i *optionalInt) String() string {
	if !i.set {
		return ""
	}
	return fmt.Sprint(i.value)
}

func (i *optionalInt) Set(s string) error {
	var err error
	i.value, err = parseInt(s)
	i.set = err == nil
	return err
}

func (*optionalInt) Type() string { return "int" }

func (i *optionalInt) pointer() *int {
	if !i.set {
		return nil
	}
	return &i.value
}
