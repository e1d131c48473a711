// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/hostinet"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/sentry/watchdog"

	"z.gfire.dev/gvx/runtime/api"
)

// sandbox is the one sandbox of this process.
type sandbox struct {
	head     *api.HeadStart
	timeline *timeline
	// spec is nil until it has been received.
	spec *api.Sandbox
	// parts are what the kernel is made of, until it is.
	parts kernelParts
	// platform delivers the platform; nil before startPlatform.
	platform chan madePlatform

	// writes are those that go on after a stop.
	writes writes

	// These are set by boot, before the guest runs, and then only read.
	k        *kernel.Kernel
	userns   *auth.UserNamespace
	memoryFD int
	// openFiles is the process' own limit on open files, 0 if unknown.
	openFiles uint64
	// hostNetwork is the stack of network mode host, nil for the others.
	hostNetwork *hostinet.Stack
	// treesFD is the lowest of the descriptors to the gofer, see reserveTrees.
	treesFD     int
	usernses    userNamespaces
	cgroupMount *vfs.Mount
	cgroups     guestCgroups
	watchdog    *watchdog.Watchdog
	layers      []string
	memory      memoryEnforcer
	streams     streamSets
	arrivals    streamLimit
	execs       execs
	unbindable  unbindableMounts
	ipc         guestIPC
	pause       pauser
	// pids is the limit on guest tasks, 0 for none.
	pids atomic.Uint64
	cpu  cpuEnforcer

	// first is the container that the sandbox was made with, and ends with. It
	// is set with spec.
	first *container

	// shared are the tmpfs that containers have in common, by their names.
	// sharedMu comes before all locks of gVisor's.
	sharedMu sync.Mutex
	shared   map[string]*vfs.Mount

	mu sync.Mutex
	// containers are all, by id.
	containers map[string]*container
	// ending says that the guest is: it takes no more.
	ending bool
}

func newSandbox(h *api.HeadStart, tl *timeline) *sandbox {
	sb := &sandbox{head: h, timeline: tl, containers: make(map[string]*container), arrivals: streamLimit{most: maxArrivals}}
	sb.cgroups.sb, sb.ipc.sb = sb, sb
	return sb
}
