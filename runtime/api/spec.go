// SPDX-License-Identifier: Apache-2.0

// Package api holds the data that the host half and the sandbox process of gvx
// exchange: the sandbox spec, the life-cycle states and the kinds of error.
//
// It owns no behaviour beyond validation: it opens no file, starts no process
// and imports nothing but the standard library, so that every other package,
// on every operating system, may import it.
//
// A sandbox spec travels as JSON, as package handover says. Both ends are the
// same binary, yet the sandbox checks it as if it were hostile: see
// [Sandbox.Validate].
package api

import "time"

// SpecVersion is the version of the [Sandbox] document. Launcher and sandbox
// must agree on it exactly: they are the same binary.
const SpecVersion = 1

// FD is the number of a donated descriptor as the sandbox process sees it.
// NoFD says that there is none.
type FD int

// InitName is argv[0] of the reaper that InitFD names.
const InitName = "gvx-init"

// NoFD is the FD of something that was not donated.
const NoFD FD = -1

// Sandbox is what a sandbox process is told beyond its [HeadStart]: what the one
// Sentry looks like and which container it starts with.
type Sandbox struct {
	// Version is SpecVersion.
	Version int `json:"version"`
	// ID is the sandbox's identifier, 64 hexadecimal digits for `rungv run`.
	ID string `json:"id"`
	// Hostname and Domainname are the initial UTS names.
	Hostname   string `json:"hostname"`
	Domainname string `json:"domainname,omitempty"`
	// Network says what the guest's network consists of.
	Network Network `json:"network"`
	// Resources are the limits of the whole sandbox.
	Resources Resources `json:"resources"`
	// Sysctls are written below the guest's /proc/sys before init starts.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// ControlFD is a connected stream socket to the launcher: the control
	// channel. When its other end closes, the sandbox ends.
	ControlFD FD `json:"controlFD"`
	// ListenFD is a listening unix socket for further control connections,
	// or NoFD.
	ListenFD FD `json:"listenFD"`
	// StreamsFD is a bound datagram socket on which clients hand over the
	// streams of additional processes, or NoFD.
	StreamsFD FD `json:"streamsFD"`
	// Hold keeps the first container from running until the control channel
	// says so, as containers that are added later are.
	Hold bool `json:"hold,omitempty"`
	// LateTrees says that containers which join later may have host directories.
	// Their sockets to a gofer come on descriptors of any number, so that messages
	// can be addressed on every socket of the sandbox: not with NetworkNAT. Those of
	// NetworkNetns reach their own namespace and no other, those of NetworkHost are
	// the guest's to address anyway.
	LateTrees bool `json:"lateTrees,omitempty"`
	// Container is the first container.
	Container Container `json:"container"`
}

// MaxContainers bounds the containers of one sandbox.
const MaxContainers = 256

// NetworkMode selects what the root network namespace of the guest holds.
type NetworkMode string

const (
	// NetworkNone is a loopback interface and nothing else.
	NetworkNone NetworkMode = "none"
	// NetworkNAT is eth0 behind the user-mode router.
	NetworkNAT NetworkMode = "nat"
	// NetworkNetns is the interfaces of a network namespace of the host, taken
	// over as they are: see [Link].
	NetworkNetns NetworkMode = "netns"
	// NetworkHost is the host's own network: each socket of a guest's is one that the
	// sandbox process makes. What the guest reaches, and who reaches it, is what any
	// process of the sandbox' user reaches, the host's loopback too.
	NetworkHost NetworkMode = "host"
)

// Network describes the guest's root network namespace.
type Network struct {
	Mode NetworkMode `json:"mode"`
	// BrokerFD is a connected packet socket to the broker, for NetworkNAT:
	// see package netwire. NoFD otherwise.
	BrokerFD FD `json:"brokerFD"`
	// IPv6 gives a guest of NetworkNAT an IPv6 address beside the other.
	IPv6 bool `json:"ipv6,omitempty"`
	// Links are the interfaces of NetworkNetns that are there from the start;
	// others, or all of them, may be attached when the guest is started.
	Links []Link `json:"links,omitempty"`
	// NoPacketWrite keeps the guest's packet sockets from sending: what they
	// send passes no filter of the guest's own.
	NoPacketWrite bool `json:"noPacketWrite,omitempty"`
}

// Resources are the limits that the sandbox enforces on its guests. Zero means
// no limit.
type Resources struct {
	// MemoryBytes bounds what all guests together hold.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// CPUMillis bounds processor time: 1000 is one processor.
	CPUMillis int64 `json:"cpuMillis,omitempty"`
	// Pids bounds how many guest tasks exist at once.
	Pids int64 `json:"pids,omitempty"`
}

// Lockdown records the outer isolation layers, for doctor, inspect and tests.
type Lockdown struct {
	// Namespaces are those made new for the process: "user", "pid", "net",
	// "ipc", "mnt", "uts".
	Namespaces []string `json:"namespaces,omitempty"`
	// Landlock is the ABI version in force, 0 where the host has none.
	Landlock int `json:"landlock,omitempty"`
	// EmptyRoot says that the sandbox shall pivot into an empty root before
	// it drops its capabilities; only with a new mount namespace.
	EmptyRoot bool `json:"emptyRoot,omitempty"`
}

// Container is one container of a sandbox.
type Container struct {
	ID      string  `json:"id"`
	Process Process `json:"process"`
	Rootfs  Rootfs  `json:"rootfs"`
	// Mounts are made in this order, on top of the rootfs and, unless Explicit
	// is set, of the defaults (/proc, /sys, /sys/fs/cgroup, /dev, /dev/pts,
	// /dev/shm, /dev/mqueue).
	Mounts []Mount `json:"mounts,omitempty"`
	// Explicit says that the container is an OCI bundle's: Mounts are all
	// there is, /dev holds what Devices and the runtime specification name,
	// PATH is not added to an environment.
	Explicit bool `json:"explicit,omitempty"`
	// Namespaces says what the container shares with others of its sandbox.
	Namespaces Namespaces `json:"namespaces,omitzero"`
	// Hostname and Domainname are those of a UTS namespace of its own, of all
	// containers but the first, which has the sandbox's.
	Hostname   string `json:"hostname,omitempty"`
	Domainname string `json:"domainname,omitempty"`
	// Devices are made besides those that every OCI container has; Explicit
	// containers only, as all that follow up to Propagation.
	Devices []Device `json:"devices,omitempty"`
	// MaskedPaths and ReadonlyPaths are hidden and write-protected where they
	// exist, once everything is mounted.
	MaskedPaths   []string `json:"maskedPaths,omitempty"`
	ReadonlyPaths []string `json:"readonlyPaths,omitempty"`
	// Sysctls are written below the container's /proc/sys, after those of the
	// sandbox.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Propagation is that of the root's mount.
	Propagation Propagation `json:"propagation,omitempty"`
	// Resources are the limits of this container alone, within the sandbox's.
	Resources Resources `json:"resources,omitzero"`
	// Directories are made on the rootfs where they are missing: the places
	// of volumes that the image declares.
	Directories []string `json:"directories,omitempty"`
	// Files are small files placed over the rootfs (/etc/hosts, …), each as a
	// bind mount of its own, as docker does.
	Files []File `json:"files,omitempty"`
	// ShmSizeBytes is the size of /dev/shm.
	ShmSizeBytes int64 `json:"shmSizeBytes,omitempty"`
	// Privileged leaves /sys and /proc/sys writable for the guest.
	Privileged bool `json:"privileged,omitempty"`
	// InitFD is a static executable that runs as process 1, with argv[0]
	// InitName and the command behind "--": it reaps orphans and forwards
	// signals (docker's --init). NoFD runs the command itself as process 1.
	InitFD FD `json:"initFD"`
	// StartHooks, if not empty, is the argument that has the program of InitFD
	// run OCI startContainer hooks and then become the command, in place of
	// reaping for it: see package hooks.
	StartHooks string `json:"startHooks,omitempty"`
	// Idle says that there is no command: the program of InitFD is all that runs,
	// in a root with nothing in it. Such a container keeps a sandbox for others.
	Idle bool `json:"idle,omitempty"`
}

// Process is the first process of a container or an additional one (exec).
type Process struct {
	// Args is the command line; Args[0] is looked up in the guest's PATH.
	Args []string `json:"args"`
	// Env is NAME=value. PATH and HOME are added where missing, as docker does.
	Env []string `json:"env,omitempty"`
	// Cwd is made when missing.
	Cwd string `json:"cwd"`
	// User is docker's form: name|uid[:group|gid]; empty is root.
	User string `json:"user,omitempty"`
	// AdditionalGroups are names or numbers.
	AdditionalGroups []string `json:"additionalGroups,omitempty"`
	// Capabilities are the bounding set of the guest, "CAP_…" names. A process
	// that is not root holds none of them effective, as in docker.
	Capabilities []string `json:"capabilities"`
	// Account, if not nil, is who the process runs as, in numbers, in place of
	// User and AdditionalGroups.
	Account *Account `json:"account,omitempty"`
	// CapabilitySets, if not nil, are the process' sets one by one, in place of
	// Capabilities.
	CapabilitySets *CapabilitySets `json:"capabilitySets,omitempty"`
	// Seccomp, if not nil, filters the process' system calls, by the guest's
	// own kernel.
	Seccomp *Seccomp `json:"seccomp,omitempty"`
	// OOMScoreAdj is the guest's oom_score_adj; nil leaves it.
	OOMScoreAdj *int `json:"oomScoreAdj,omitempty"`
	// NoNewPrivileges sets the guest's no_new_privs.
	NoNewPrivileges bool `json:"noNewPrivileges,omitempty"`
	// Rlimits by name ("nofile", …), as `docker run --ulimit`.
	Rlimits []Rlimit `json:"rlimits,omitempty"`
	// Terminal says that StdinFD = StdoutFD = StderrFD is a host terminal's
	// replica side.
	Terminal bool `json:"terminal,omitempty"`
	// Rows and Columns are the terminal's first size; 0 leaves it.
	Rows    uint16 `json:"rows,omitempty"`
	Columns uint16 `json:"columns,omitempty"`
	// The standard streams: pipes or a terminal, never a host's regular file.
	StdinFD  FD `json:"stdinFD"`
	StdoutFD FD `json:"stdoutFD"`
	StderrFD FD `json:"stderrFD"`
	// ExtraFDs are the process' descriptors from 3 on: pipes, terminals and /dev/null,
	// as the streams.
	ExtraFDs []FD `json:"extraFDs,omitempty"`
}

// Rlimit is one resource limit of a guest process.
type Rlimit struct {
	Name string `json:"name"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// Rootfs is the stack of file systems at a container's "/".
type Rootfs struct {
	// Layers are read-only, lowest first.
	Layers []Layer `json:"layers,omitempty"`
	// Host, if not nil, is a host directory in place of Layers. The guest writes
	// into that directory itself, unless Upper holds what it writes.
	Host *HostTree `json:"host,omitempty"`
	// Upper is an ext4 volume that holds what the guest writes; nil keeps it in
	// memory, or in the directory that Host serves.
	Upper *Volume `json:"upper,omitempty"`
	// UpperDirectory is the directory of Upper that takes what is written, made
	// where it is missing; "" is its root.
	UpperDirectory string `json:"upperDirectory,omitempty"`
	// KeepUpper says that somebody looks at Upper when the container has ended.
	KeepUpper bool `json:"keepUpper,omitempty"`
	// ReadOnly mounts the root read-only, the others with these options.
	ReadOnly bool `json:"readOnly,omitempty"`
	NoSUID   bool `json:"noSUID,omitempty"`
	NoDev    bool `json:"noDev,omitempty"`
	NoExec   bool `json:"noExec,omitempty"`
}

// Layer is a read-only file system image, donated as a descriptor.
type Layer struct {
	FD FD `json:"fd"`
	// Format is "erofs".
	Format string `json:"format"`
	// DiffID names the content, for messages.
	DiffID string `json:"diffID,omitempty"`
}

// MountType selects what is mounted.
type MountType string

const (
	// MountTmpfs is a file system in the sandbox's memory.
	MountTmpfs MountType = "tmpfs"
	// MountVolume is an ext4 volume in a donated host file.
	MountVolume MountType = "volume"
	// MountBind is a host directory or file that the gofer serves.
	MountBind MountType = "bind"
	// These are file systems of the Sentry's own, for Explicit containers.
	MountProc   MountType = "proc"
	MountSysfs  MountType = "sysfs"
	MountDevpts MountType = "devpts"
	MountMqueue MountType = "mqueue"
	// MountCgroup is the guest's cgroup v2 hierarchy.
	MountCgroup MountType = "cgroup"
)

// Mount is one additional mount of a container.
type Mount struct {
	Type   MountType `json:"type"`
	Target string    `json:"target"`
	// Source is what the guest's table of mounts calls a file system of the
	// Sentry's; "" is the type's own name.
	Source   string `json:"source,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	NoExec   bool   `json:"noExec,omitempty"`
	NoSUID   bool   `json:"noSUID,omitempty"`
	NoDev    bool   `json:"noDev,omitempty"`
	NoATime  bool   `json:"noATime,omitempty"`
	// Propagation is the mount's own; "" is private.
	Propagation Propagation `json:"propagation,omitempty"`
	// Options are KEY=VALUE for the file system itself: of devpts gid, mode
	// and ptmxmode, of a tmpfs nr_inodes and nr_blocks.
	Options []string `json:"options,omitempty"`
	// Shared, if not empty, names a tmpfs that all containers of the sandbox
	// that name it have in common; the first one's mode and size count.
	Shared string `json:"shared,omitempty"`
	// CopyUp fills a tmpfs with what the root has at Target.
	CopyUp bool `json:"copyUp,omitempty"`
	// SizeBytes bounds a tmpfs; 0 is the sandbox's memory limit.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Mode, UID and GID are those of a tmpfs' root.
	Mode uint32 `json:"mode,omitempty"`
	UID  uint32 `json:"uid,omitempty"`
	GID  uint32 `json:"gid,omitempty"`
	// Volume is what a MountVolume serves; nil for every other type.
	Volume *Volume `json:"volume,omitempty"`
	// Host is what a MountBind serves; nil for every other type.
	Host *HostTree `json:"host,omitempty"`
	// Populate copies what the root file system has at Target into a volume
	// that is empty; the owner of its root too, unless UID or GID is set.
	Populate bool `json:"populate,omitempty"`
}

// Durability says what a guest's fsync means for a volume.
type Durability string

const (
	// DurabilityHost makes fsync return when the data is on the host's disk.
	DurabilityHost Durability = "host"
	// DurabilityProcess keeps the order of writes only: enough where no more
	// than the sandbox process can die, or for a clone that is thrown away.
	DurabilityProcess Durability = "process"
)

// MaxVolumeFiles bounds the files of one volume: a delta and its bases.
const MaxVolumeFiles = 5

// Volume is an ext4 volume whose host files were donated and locked by the
// launcher; the sandbox opens nothing.
type Volume struct {
	// FDs are its files, the lowest base first. All but the last are only
	// read; the last one is written unless the mount is read-only. A plain
	// volume is one file.
	FDs []FD `json:"fds"`
	// Durability is DurabilityHost or DurabilityProcess.
	Durability Durability `json:"durability"`
	// Compact asks for the volume to be compacted when the sandbox is stopped
	// gracefully, before it is marked clean.
	Compact bool `json:"compact,omitempty"`
	// Name is what messages call it: the host path of its last file.
	Name string `json:"name"`
}

// HostTree is a directory or a file of the host, as the gofer serves it: see
// package gofer.
type HostTree struct {
	// FD is a socket that is connected to the gofer: gofer's hello first, then
	// gVisor's lisafs protocol.
	FD FD `json:"fd"`
	// Exclusive says that nobody else changes the tree while the sandbox runs:
	// it may be cached. Otherwise everything is written through and checked
	// before it is believed.
	Exclusive bool `json:"exclusive,omitempty"`
	// NonRecursive leaves out what the host has mounted below.
	NonRecursive bool `json:"nonRecursive,omitempty"`
	// IsFile says that the tree is one file and no directory.
	IsFile bool `json:"isFile,omitempty"`
	// Name is what messages call it: the path on the host.
	Name string `json:"name"`
}

// File is a small file placed over the rootfs.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// ExitStatus is how a container or exec ended.
type ExitStatus struct {
	// Code is 0 to 255; 128+n for signal n.
	Code int `json:"code"`
	// Signal is the signal that ended it, 0 if it exited.
	Signal int `json:"signal,omitempty"`
	// OOMKilled says that the memory limit was the cause.
	OOMKilled bool `json:"oomKilled,omitempty"`
	// At is when it ended.
	At time.Time `json:"at"`
}
