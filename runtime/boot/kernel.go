// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/memutil"
	"gvisor.dev/gvisor/pkg/rand"
	"gvisor.dev/gvisor/pkg/ring0"
	"gvisor.dev/gvisor/pkg/sentry/devices/memdev"
	"gvisor.dev/gvisor/pkg/sentry/devices/ttydev"
	"gvisor.dev/gvisor/pkg/sentry/devices/tundev"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/dev"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/devpts"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/devtmpfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/fuse"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/mqfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/proc"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/sys"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/loader"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	sentrytime "gvisor.dev/gvisor/pkg/sentry/time"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/sentry/watchdog"
	"gvisor.dev/gvisor/pkg/sighandling"
	"gvisor.dev/gvisor/pkg/timing"

	"z.gfire.dev/gvx/ext4lite/sentryfs"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/lockdown"

	// What guests can use is what is linked in: the platform, the system call
	// table, and the socket families.
	_ "gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	_ "gvisor.dev/gvisor/pkg/sentry/socket/netlink"
	_ "gvisor.dev/gvisor/pkg/sentry/socket/netlink/netfilter"
	_ "gvisor.dev/gvisor/pkg/sentry/socket/netlink/route"
	_ "gvisor.dev/gvisor/pkg/sentry/socket/netlink/uevent"
	_ "gvisor.dev/gvisor/pkg/sentry/socket/unix"
	_ "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

// guestMemoryName is what the host shows for the guest's memory in
// /proc/PID/maps and smaps.
const guestMemoryName = "gvx-guest-memory"

// kernelParts are what a kernel is made of that no spec has a say in.
type kernelParts struct {
	memory     *pgalloc.MemoryFile
	vdso       *loader.VDSO
	params     *kernel.VDSOParamPage
	timekeeper *kernel.Timekeeper
}

type madePlatform struct {
	p   platform.Platform
	err error
}

// startPlatform begins to make the platform, which takes longer than anything
// else, most of it waiting for the first stub process.
func (sb *sandbox) startPlatform() {
	ring0.InitDefault()
	made := make(chan madePlatform, 1)
	sb.platform = made
	go func() {
		p, err := newPlatform(sb.head)
		if err == nil {
			err = spareAddressSpace(p)
		}
		made <- madePlatform{p, err}
	}()
}

// spareAddressSpace makes an address space and gives it back, so that the
// guest's first process finds one: it takes a process of the host's.
func spareAddressSpace(p platform.Platform) error {
	as, err := p.NewAddressSpace()
	if err != nil {
		return fmt.Errorf("create an address space: %w", err)
	}
	as.Release()
	return nil
}

// comingPlatform stands in for a platform that is being made, while the kernel is
// initialised and file systems are mounted: all that asks a platform for more
// than this is tasks, and there are none yet.
type comingPlatform struct{ platform.Platform }

// HasCPUNumbers implements platform.Platform.
func (comingPlatform) HasCPUNumbers() bool { return false }

// joinPlatform waits for the platform.
func (sb *sandbox) joinPlatform() error {
	m := <-sb.platform
	if m.err != nil {
		return m.err
	}
	if m.p.HasCPUNumbers() {
		return api.Errorf(api.KindInternal, "platform %q numbers processors, which its kernel was not told", sb.head.Platform)
	}
	sb.k.Platform = m.p
	sb.timeline.reached("platform made")
	return nil
}

// prepareKernel makes the guest's memory and its clocks.
func (sb *sandbox) prepareKernel() error {
	if err := rand.Init(); err != nil {
		return fmt.Errorf("initialise random numbers: %w", err)
	}
	if err := usage.Init(); err != nil {
		return fmt.Errorf("initialise memory accounting: %w", err)
	}
	memfd, err := memutil.CreateMemFD(guestMemoryName, 0)
	if err != nil {
		return fmt.Errorf("create guest memory: %w", err)
	}
	sb.memoryFD = memfd
	mf, err := pgalloc.NewMemoryFile(os.NewFile(uintptr(memfd), guestMemoryName), pgalloc.MemoryFileOpts{})
	if err != nil {
		return fmt.Errorf("create guest memory: %w", err)
	}
	vdso, err := loader.PrepareVDSO(mf)
	if err != nil {
		return fmt.Errorf("prepare vdso: %w", err)
	}
	sb.parts.memory, sb.parts.vdso = mf, vdso
	sb.parts.timekeeper = kernel.NewTimekeeper()
	sb.parts.params = kernel.NewVDSOParamPage(mf, vdso.ParamPage.FileRange())
	sb.parts.timekeeper.SetClocks(sentrytime.NewCalibratedClocks(false), sb.parts.params)
	sb.timeline.reached("memory and clocks made")
	return nil
}

// newKernel makes the network and the kernel itself, and registers what guests
// may mount and open.
func (sb *sandbox) newKernel() error {
	parts := sb.parts
	sb.parts = kernelParts{}
	k := &kernel.Kernel{AllowSUID: true, Platform: comingPlatform{}}
	sb.k = k
	k.SetMemoryFile(parts.memory)
	if err := setTotalMemory(sb.spec.Resources.MemoryBytes); err != nil {
		return err
	}
	userns := auth.NewRootUserNamespace()
	// The namespaces are those of the first container.
	owner, err := sb.usernses.of(userns, sb.spec.Container.Namespaces.User)
	if err != nil {
		return err
	}
	netns, err := sb.newRootNetworkNamespace(parts.timekeeper, owner, k)
	if err != nil {
		return err
	}
	sb.timeline.reached("network made")

	if err := k.Init(kernel.InitKernelArgs{
		FeatureSet:           cpuid.HostFeatureSet().Fixed(),
		Timekeeper:           parts.timekeeper,
		RootUserNamespace:    userns,
		RootNetworkNamespace: netns,
		ApplicationCores:     uint(sb.head.Cores),
		Vdso:                 parts.vdso,
		VdsoParams:           parts.params,
		RootUTSNamespace:     kernel.NewUTSNamespace(sb.spec.Hostname, sb.spec.Domainname, owner),
		RootIPCNamespace:     kernel.NewIPCNamespace(owner),
		RootPIDNamespace:     kernel.NewRootPIDNamespace(owner),
		MaxFDLimit:           kernel.MaxFdLimit,
		Cgroup2FSInit:        cgroup2fs.NewFilesystem,
	}); err != nil {
		return fmt.Errorf("initialise kernel: %w", err)
	}
	sb.userns = userns
	sb.numberUserNamespace()
	if err := sb.overrideSyscalls(); err != nil {
		return err
	}
	if err := sb.registerFilesystems(); err != nil {
		return err
	}
	if err := sb.mountHostFiles(); err != nil {
		return err
	}
	k.RegisterContainerName(sb.spec.Container.ID, sb.spec.Container.ID)
	// Stubs stop and continue all the time; nobody waits for the signal.
	if err := sighandling.IgnoreChildStop(); err != nil {
		return fmt.Errorf("ignore child stop signals: %w", err)
	}
	opts := watchdog.DefaultOpts
	opts.StartupTimeout = 0
	sb.watchdog = watchdog.New(k, opts)
	sb.timeline.reached("kernel initialised")
	return nil
}

// newPlatform makes the Sentry's platform. Where a parent holds a
// seccomp-notify listener systrap cannot have one of its own, and must be made
// to use its futex loop before it tries.
func newPlatform(h *api.HeadStart) (platform.Platform, error) {
	if h.Platform != "systrap" {
		return nil, api.Errorf(api.KindUnsupported, "platform %q: this build has only systrap", h.Platform)
	}
	if err := lockdown.AvoidNotify(); err != nil {
		return nil, fmt.Errorf("probe seccomp notify: %w", err)
	}
	constructor, err := platform.Lookup(h.Platform)
	if err != nil {
		return nil, api.Errorf(api.KindUnsupported, "platform %q: %w", h.Platform, err)
	}
	p, err := constructor.New(platform.Options{
		ApplicationCores: h.Cores,
		StartupTimer:     timing.New("platform", time.Now()),
	})
	if err != nil {
		return nil, fmt.Errorf("create platform %s: %w: the host must allow ptrace of a process' own children (see rungv doctor)", h.Platform, err)
	}
	return p, nil
}

// setTotalMemory makes /proc/meminfo and tmpfs' default size follow the memory
// limit; without one (zero) they follow the host's memory, as in docker.
func setTotalMemory(limitBytes int64) error {
	total := uint64(limitBytes)
	if limitBytes <= 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return fmt.Errorf("ask for the host's memory size: %w", err)
		}
		total = uint64(info.Totalram) * uint64(info.Unit)
	}
	usage.MinimumTotalMemoryBytes = total
	usage.MaximumTotalMemoryBytes = total
	tmpfs.SetTotalHostMem(total)
	return nil
}

// registerFilesystems registers the file systems and devices of the guest.
func (sb *sandbox) registerFilesystems() error {
	v := sb.k.VFS()
	mountable := &vfs.RegisterFilesystemTypeOptions{AllowUserMount: true, AllowUserList: true}
	v.MustRegisterFilesystemType(cgroup2fs.Name, &cgroup2fs.FilesystemType{}, mountable)
	v.MustRegisterFilesystemType(devpts.Name, &devpts.FilesystemType{}, mountable)
	v.MustRegisterFilesystemType(devtmpfs.Name, &devtmpfs.FilesystemType{}, mountable)
	v.MustRegisterFilesystemType(fuse.Name, &fuse.FilesystemType{}, mountable)
	v.MustRegisterFilesystemType(mqfs.Name, &mqfs.FilesystemType{}, mountable)
	v.MustRegisterFilesystemType(overlay.Name, &overlayType{}, mountable)
	v.MustRegisterFilesystemType(proc.Name, &procType{ipc: &sb.ipc}, mountable)
	v.MustRegisterFilesystemType(sys.Name, &sysfs{}, mountable)
	v.MustRegisterFilesystemType(tmpfs.Name, &tmpfs.FilesystemType{}, mountable)
	// These are only ever mounted by boot itself: a guest's options for gofer would
	// name descriptors of the sandbox.
	v.MustRegisterFilesystemType(gofer.Name, &gofer.FilesystemType{}, &vfs.RegisterFilesystemTypeOptions{})
	v.MustRegisterFilesystemType(dev.Name, &dev.FilesystemType{}, &vfs.RegisterFilesystemTypeOptions{})
	sentryfs.Register(v)

	if err := memdev.Register(v); err != nil {
		return fmt.Errorf("register memory devices: %w", err)
	}
	if err := ttydev.Register(v); err != nil {
		return fmt.Errorf("register terminal devices: %w", err)
	}
	if err := tundev.Register(v); err != nil {
		return fmt.Errorf("register network tunnel device: %w", err)
	}
	if err := fuse.Register(v); err != nil {
		return fmt.Errorf("register fuse device: %w", err)
	}
	return nil
}

// mountHostFiles makes the hidden mount in which imported descriptors live.
func (sb *sandbox) mountHostFiles() error {
	v := sb.k.VFS()
	fs, err := host.NewFilesystem(v)
	if err != nil {
		return fmt.Errorf("create file system of imported descriptors: %w", err)
	}
	defer fs.DecRef(sb.k.SupervisorContext())
	sb.k.SetHostMount(v.NewDisconnectedMount(fs, nil, &vfs.MountOptions{}))
	return nil
}
