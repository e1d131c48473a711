// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
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

	// These are set by boot, before the guest runs, and then only read.
	k           *kernel.Kernel
	userns      *auth.UserNamespace
	memoryFD    int
	cgroupMount *vfs.Mount
	cgroups     guestCgroups
	volumes     []*volume
	watchdog    *watchdog.Watchdog
	layers      []string
	memory      memoryEnforcer
	streams     streamSets
	execs       execs
	pause       pauser
	// pids is the limit on guest tasks, 0 for none.
	pids atomic.Uint64
	cpu  cpuEnforcer

	// startedCh is closed once the guest runs or has failed to start; exitedCh
	// once its first process has ended.
	startedCh chan struct{}
	exitedCh  chan struct{}

	mu sync.Mutex
	// startErr says why the guest never ran.
	startErr error
	// first is the container, init its first process; set once it exists.
	first *container
	init  *kernel.ThreadGroup
	exit  api.ExitStatus
}

func newSandbox(h *api.HeadStart, tl *timeline) *sandbox {
	sb := &sandbox{
		head:      h,
		timeline:  tl,
		startedCh: make(chan struct{}),
		exitedCh:  make(chan struct{}),
	}
	sb.cgroups.sb = sb
	return sb
}

// setInit records the container's first process.
func (sb *sandbox) setInit(c *container, tg *kernel.ThreadGroup) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.first, sb.init = c, tg
}

// firstProcess returns the container and its first process, nil before they
// exist.
func (sb *sandbox) firstProcess() (*container, *kernel.ThreadGroup) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.first, sb.init
}

// started tells waiters that the guest runs.
func (sb *sandbox) started() { close(sb.startedCh) }

// failed tells waiters that the guest will never run.
func (sb *sandbox) failed(err error) {
	sb.mu.Lock()
	sb.startErr = err
	sb.mu.Unlock()
	close(sb.startedCh)
}

// waitInit waits for the container's first process, records how it ended, and
// tells waiters. Whatever else still runs in the guest is killed with it, as
// with any container.
func (sb *sandbox) waitInit() {
	_, tg := sb.firstProcess()
	tg.WaitExited()
	exit := exitStatus(tg)
	exit.At = time.Now()
	exit.OOMKilled = sb.memory.killed()
	sb.mu.Lock()
	sb.exit = exit
	sb.mu.Unlock()
	if !sb.keepsVolumes() {
		close(sb.exitedCh)
	}
	sb.k.Kill(linux.WaitStatusTerminationSignal(linux.SIGKILL))
	if sb.keepsVolumes() {
		// Who waits may open the volumes next.
		sb.k.WaitExited()
		if err := sb.finishVolumes(); err != nil {
			log.Warningf("bring volumes to rest: %v", err)
		}
		close(sb.exitedCh)
	}
}

// errNotStarted is the answer to calls that need a running guest.
var errNotStarted = &api.Error{Kind: api.KindState, Err: errors.New("the container has not started")}
