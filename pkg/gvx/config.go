// SPDX-License-Identifier: Apache-2.0

// What a sandbox consists of.

package gvx

import (
	"io"
	"net/netip"
	"time"
)

// Platform selects how guest code is run and its system calls are caught.
type Platform string

const (
	// PlatformAuto takes what the host offers: systrap on Linux.
	PlatformAuto Platform = ""
	// PlatformSystrap catches system calls by seccomp, in ordinary processes.
	PlatformSystrap Platform = "systrap"
	// PlatformHVF is macOS' hypervisor: [ErrUnsupported] in this version.
	PlatformHVF Platform = "hvf"
	// PlatformWHPX is Windows' hypervisor: [ErrUnsupported] in this version.
	PlatformWHPX Platform = "whpx"
)

// NetworkMode selects what a sandbox's network is.
type NetworkMode string

const (
	// NetModeNAT is a user-mode network: eth0 behind a router of its own, with
	// connections opened by rungv, which holds them against the egress rules.
	// It is the default.
	NetModeNAT NetworkMode = "nat"
	// NetModeNone is a loopback interface and nothing else.
	NetModeNone NetworkMode = "none"
)

// PullPolicy says when an image is fetched.
type PullPolicy string

const (
	// PullMissing fetches what is not in the store. It is the default.
	PullMissing PullPolicy = "missing"
	// PullAlways asks the registry every time.
	PullAlways PullPolicy = "always"
	// PullNever makes a missing image an error.
	PullNever PullPolicy = "never"
)

// Config describes a sandbox. The zero value of a field is its default.
type Config struct {
	// RuntimePath is the rungv binary: $GVX_RUNGV if empty, else found in PATH.
	RuntimePath string
	// Root is where rungv keeps state, images and volumes: its own default,
	// which depends on the user, if empty.
	Root string
	// Platform is how guest code is run.
	Platform Platform

	// OCIImage is a registry reference ("docker:dind"), or oci:DIR[:TAG],
	// oci-archive:FILE, docker-archive:FILE, rootfs:DIR, rootfs-tar:FILE.
	OCIImage string
	// ImagePlatform is os/arch[/variant] for images of several; the host's if
	// empty.
	ImagePlatform string
	// Pull says when the image is fetched.
	Pull PullPolicy

	// Entrypoint replaces the image's if it is not empty or EntrypointSet is
	// true; the image's command is then not used either.
	Entrypoint    []string
	EntrypointSet bool
	// Cmd replaces the image's command.
	Cmd []string
	// Envv adds to the image's environment, NAME=value each. Values do not
	// appear in the host's process list.
	Envv []string
	// WorkingDir replaces the image's; it is made where missing.
	WorkingDir string
	// User is name|uid[:group|gid], the image's if empty.
	User string
	// TTY gives the guest a terminal for its three streams: what it writes
	// comes through Stdout.
	TTY bool
	// Init runs a small process 1 that reaps orphans and forwards signals.
	Init bool

	// Name is the container's, for `rungv ps`; one is made up if empty.
	Name string
	// Hostname is the first digits of the container's id if empty.
	Hostname string
	// Labels are for whoever lists containers.
	Labels map[string]string

	// Mounts are made in this order.
	Mounts []Mount
	// ReadOnly makes the root file system read-only.
	ReadOnly bool
	// ShmSizeBytes is the size of /dev/shm, 64 MiB if 0.
	ShmSizeBytes int64
	// Resources are limits.
	Resources Resources
	// Ulimits are resource limits of the first process, by name: "nofile".
	Ulimits map[string]Ulimit
	// Sysctls are written below the guest's /proc/sys.
	Sysctls map[string]string

	// NetworkMode is NetModeNAT if empty.
	NetworkMode NetworkMode
	// NetRaw gives the guest CAP_NET_RAW: raw and packet sockets.
	NetRaw bool
	// AllowPacketSocketWrite lets packet sockets send, not only listen.
	AllowPacketSocketWrite bool
	// Publish are ports of the guest to be reached from the host.
	Publish []Port
	// Docker publishes the API of an engine inside the guest, its port 2375,
	// on a unix socket of the sandbox's own: see [Sandbox.DockerHost].
	Docker bool
	// Egress are rules for what the guest may reach, the first that covers a
	// destination decides: "allow", "deny", "allow=CIDR[:PORTS]",
	// "deny=CIDR[:PORTS]", "allow-domain=NAME". None allows all but the host's
	// loopback, link-local and cloud metadata addresses.
	Egress []string
	// AddHosts are lines of /etc/hosts, by name.
	AddHosts map[string]netip.Addr
	// DNS are name servers to ask instead of the host's.
	DNS []netip.Addr

	// AllowSUID lets set-user-ID programs and file capabilities of the guest
	// raise its privileges, inside its own kernel. Without it the guest runs
	// with no_new_privs.
	AllowSUID bool
	// CapDrop are capabilities to take from the guest, "NET_ADMIN" say; it
	// has all but what NetRaw says.
	CapDrop []string

	// StopSignal and StopTimeout are what [Sandbox.Stop] uses: the image's, and
	// ten seconds, if empty.
	StopSignal  string
	StopTimeout time.Duration

	// Stdin is the guest's standard input; none if nil. It is read as the guest
	// reads; its end is passed on, but not by a terminal. A Read that has begun
	// is not waited for when the guest ends.
	Stdin io.Reader
	// Stdout and Stderr take what the guest writes; it is lost if nil. They are
	// called from one goroutine each, from the same one if they are equal. An
	// *os.File is handed to rungv as it is. A Write that fails, or has not returned
	// ten seconds after the guest's end, is [ErrOutput].
	Stdout, Stderr io.Writer
	// Warn, if not nil, is told what went wrong without ending anything, by one
	// goroutine at a time. It must not call the sandbox, which waits for it.
	Warn func(message string)
}

// Resources are limits on a sandbox. Zero is none.
type Resources struct {
	// MemoryBytes bounds what all guest processes hold together. Above it the
	// largest is killed.
	MemoryBytes int64
	// CPUMillis bounds processor time: 1000 is one processor.
	CPUMillis int64
	// Pids bounds how many tasks there are at once.
	Pids int64
	// RootfsBytes bounds what is written to the root file system.
	RootfsBytes int64
}

// Ulimit is a resource limit of a process.
type Ulimit struct{ Soft, Hard uint64 }

// MountKind is the kind of a [Mount].
type MountKind string

const (
	// MountVolume is an ext4 volume in a file of the host.
	MountVolume MountKind = "volume"
	// MountBind is a directory or a regular file of the host, which has to exist.
	// What either side changes, the other sees.
	MountBind MountKind = "bind"
	// MountTmpfs is memory.
	MountTmpfs MountKind = "tmpfs"
)

// Durability is what a guest's fsync on a volume means.
type Durability string

const (
	// DurabilityHost means that the data is on the host's disk.
	DurabilityHost Durability = "host"
	// DurabilityProcess keeps the order of writes only: it survives the
	// sandbox, not the host.
	DurabilityProcess Durability = "process"
)

// CloneEphemeral, as [Mount.Clone], makes the sandbox write to an unnamed
// copy-on-write clone that is gone with it.
const CloneEphemeral = "ephemeral"

// Mount is something mounted in the guest.
type Mount struct {
	Kind MountKind
	// ImagePath is the volume's file, or its name in rungv's store; a missing
	// one is made. For MountBind it is the host's directory or file; a relative
	// path is the calling process'.
	ImagePath string
	// GuestPath is where it is mounted, absolute.
	GuestPath string
	ReadOnly  bool
	// SizeBytes is the size of a volume that is made, or of a tmpfs.
	SizeBytes int64
	// Clone, for volumes, leaves the file as it is: CloneEphemeral, or the path
	// of a delta file to be made and kept.
	Clone string
	// Durability, for volumes, is rungv's choice if empty: DurabilityProcess
	// for ephemeral clones, else DurabilityHost.
	Durability Durability
}

// Transport is the transport protocol of a [Port].
type Transport string

const (
	// TCP is the default.
	TCP Transport = "tcp"
	// UDP carries datagrams.
	UDP Transport = "udp"
)

// Port is a port of the guest that is reached from the host.
type Port struct {
	// Guest is the guest's port.
	Guest uint16
	// HostIP is 127.0.0.1 if it is not set; HostPort 0 lets the host choose.
	HostIP   netip.Addr
	HostPort uint16
	// Path, if not empty, is a unix socket to listen on instead.
	Path string
	// Transport is TCP if empty.
	Transport Transport
}
