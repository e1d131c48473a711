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

// newKernel makes the platform, the memory, the clocks, the network and the
// kernel itself, and registers what guests may mount and open.
func (sb *sandbox) newKernel() error {
	ring0.InitDefault()
	if err := rand.Init(); err != nil {
		return fmt.Errorf("initialise random numbers: %w", err)
	}
	if err := usage.Init(); err != nil {
		return fmt.Errorf("initialise memory accounting: %w", err)
	}
	sb.timeline.reached("host features read")

	// The platform takes a fifth of the boot time, most of it waiting for the
	// first stub process: build the rest meanwhile.
	type madePlatform struct {
		p   platform.Platform
		err error
	}
	made := make(chan madePlatform, 1)
	go func() {
		p, err := newPlatform(sb.spec)
		made <- madePlatform{p, err}
	}()

	// Platform stays unset until it is joined: nothing before Init uses it.
	k := &kernel.Kernel{AllowSUID: true}
	sb.k = k
	memfd, err := memutil.CreateMemFD(guestMemoryName, 0)
	if err != nil {
		return fmt.Errorf("create guest memory: %w", err)
	}
	sb.memoryFD = memfd
	mf, err := pgalloc.NewMemoryFile(os.NewFile(uintptr(memfd), guestMemoryName), pgalloc.MemoryFileOpts{})
	if err != nil {
		return fmt.Errorf("create guest memory: %w", err)
	}
	k.SetMemoryFile(mf)
	if err := setTotalMemory(sb.spec.Resources.MemoryBytes); err != nil {
		return err
	}

	vdso, err := loader.PrepareVDSO(mf)
	if err != nil {
		return fmt.Errorf("prepare vdso: %w", err)
	}
	timekeeper := kernel.NewTimekeeper()
	params := kernel.NewVDSOParamPage(mf, vdso.ParamPage.FileRange())
	timekeeper.SetClocks(sentrytime.NewCalibratedClocks(false), params)

	userns := auth.NewRootUserNamespace()
	netns, err := sb.newRootNetworkNamespace(timekeeper, userns, k)
	if err != nil {
		return err
	}
	sb.timeline.reached("memory, clocks and network made")

	m := <-made
	if m.err != nil {
		return m.err
	}
	k.Platform = m.p
	sb.timeline.reached("platform made")

	if err := k.Init(kernel.InitKernelArgs{
		FeatureSet:           cpuid.HostFeatureSet().Fixed(),
		Timekeeper:           timekeeper,
		RootUserNamespace:    userns,
		RootNetworkNamespace: netns,
		ApplicationCores:     uint(sb.spec.Cores),
		Vdso:                 vdso,
		VdsoParams:           params,
		RootUTSNamespace:     kernel.NewUTSNamespace(sb.spec.Hostname, sb.spec.Domainname, userns),
		RootIPCNamespace:     kernel.NewIPCNamespace(userns),
		RootPIDNamespace:     kernel.NewRootPIDNamespace(userns),
		MaxFDLimit:           kernel.MaxFdLimit,
		Cgroup2FSInit:        cgroup2fs.NewFilesystem,
	}); err != nil {
		return fmt.Errorf("initialise kernel: %w", err)
	}
	sb.userns = userns
	sb.numberUserNamespace()
	if err := overrideSyscalls(); err != nil {
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
func newPlatform(s *api.Sandbox) (platform.Platform, error) {
	if s.Platform != "systrap" {
		return nil, api.Errorf(api.KindUnsupported, "platform %q: this build has only systrap", s.Platform)
	}
	if err := lockdown.AvoidNotify(); err != nil {
		return nil, fmt.Errorf("probe seccomp notify: %w", err)
	}
	constructor, err := platform.Lookup(s.Platform)
	if err != nil {
		return nil, api.Errorf(api.KindUnsupported, "platform %q: %w", s.Platform, err)
	}
	p, err := constructor.New(platform.Options{
		ApplicationCores: s.Cores,
		StartupTimer:     timing.New("platform", time.Now()),
	})
	if err != nil {
		return nil, fmt.Errorf("create platform %s: %w: the host must allow ptrace of a process' own children (see rungv doctor)", s.Platform, err)
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
	v.MustRegisterFilesystemType(proc.Name, &proc.FilesystemType{}, mountable)
	v.MustRegisterFilesystemType(sys.Name, &sys.FilesystemType{}, mountable)
	v.MustRegisterFilesystemType(tmpfs.Name, &tmpfs.FilesystemType{}, mountable)
	// These two are only ever mounted by boot itself.
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
