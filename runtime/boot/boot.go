// SPDX-License-Identifier: Apache-2.0

// Package boot is the sandbox process: one gVisor Sentry that is assembled
// here from gVisor's packages, locks itself down, and then runs guest code.
//
// The launcher executes this binary with one end of a handover on descriptor 3:
// see package handover. From then on:
//
//  1. with the head start, and before anything of the guest is known: shed the
//     outer world, that is take an empty root (when in a new mount namespace),
//     give up capabilities, set resource limits and close what was not donated;
//     make the platform (systrap attaches its first stub here), the memory file
//     and the clocks;
//  2. receive the spec and every file the sandbox will ever need; start the
//     control server on the donated socket, so that any failure, an earlier one
//     too, reaches the launcher;
//  3. make the network stack and the kernel, mount the root file system, resolve
//     user and command;
//  4. install the seccomp allow-list on all threads;
//  5. create the guest's first process and start the kernel.
//
// No guest instruction runs before step 4. The package opens nothing on the
// host (but /proc/self/maps-like files that gVisor reads before step 4), dials
// nobody and never imports host-side packages: a structure test enforces it.
//
// Lock order: container.making and execs.mu come first, never both; sandbox.mu is a leaf, no gVisor lock is taken
// under it.
package boot

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/gomaxprocs"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/handover"
	"z.gfire.dev/gvx/runtime/footprint"
	"z.gfire.dev/gvx/runtime/lockdown"
)

const (
	// ProcessName is argv[0] of the sandbox process.
	ProcessName = "gvx-sandbox"

	// HandoverFD is the descriptor over which everything arrives.
	HandoverFD = 3

	// exitBootFailed is the process' exit code when it could not boot. The
	// launcher learns the cause from the control channel.
	exitBootFailed = 125

	// reportGrace is how long a sandbox that could not boot waits for the
	// launcher to fetch the cause. The launcher hangs up as soon as it has it.
	reportGrace = 10 * time.Second
)

// Main runs the sandbox process. It does not return.
func Main() {
	deferCollection()
	// The first log line would open /etc/localtime.
	time.Local = time.UTC

	var tl timeline
	tl.reached("process started")
	from := handover.NewReceiver(HandoverFD)
	head, err := from.HeadStart()
	if err != nil {
		dieUnheard(err)
	}
	tl.start(head.StartedAt)
	// An explicit GOMAXPROCS keeps the Go runtime's monitor from asking for
	// the affinity mask every second, which the allow-list does not contain.
	gomaxprocs.SetBase(head.Cores)
	setupLog(head.LogLevel)

	sb := newSandbox(head, &tl)
	aheadErr := sb.getAhead()
	if err := sb.receiveSpec(from); err != nil {
		dieUnheard(err)
	}
	if err := sb.serveControl(); err != nil {
		dieUnheard(fmt.Errorf("serve control channel: %w", err))
	}
	if aheadErr == nil {
		aheadErr = sb.boot()
	}
	if err := aheadErr; err != nil {
		log.Warningf("sandbox %s: %v", sb.spec.ID, err)
		sb.failed(sb.first, err)
		time.Sleep(reportGrace)
		os.Exit(exitBootFailed)
	}
	sb.run()
}

// dieUnheard ends a process that has no control channel yet: what it says goes
// to the log.
func dieUnheard(err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", ProcessName, err)
	os.Exit(exitBootFailed)
}

// receiveSpec waits for the spec. It does not return when the launcher has none
// to give any more: then there is nothing to do, and nobody to tell.
func (sb *sandbox) receiveSpec(from *handover.Receiver) error {
	sb.timeline.reached("ready for the spec")
	spec, err := from.Spec()
	if err == io.EOF {
		os.Exit(0)
	}
	if err == nil && (spec.Network.Mode == api.NetworkHost) != sb.head.HostNetwork {
		err = api.Errorf(api.KindInvalid, "sandbox spec: network mode %q after a head start for another", spec.Network.Mode)
	}
	if err != nil {
		return err
	}
	sb.spec = spec
	sb.first = newContainer(&spec.Container)
	sb.containers[spec.Container.ID] = sb.first
	sb.pids.Store(uint64(spec.Resources.Pids))
	sb.timeline.reached("spec received")
	return from.Close()
}

// getAhead does everything that does not depend on the spec.
func (sb *sandbox) getAhead() error {
	if err := sb.shedHost(); err != nil {
		return err
	}
	if !sb.head.SpecFirst {
		sb.startPlatform()
	}
	return sb.prepareKernel()
}

// boot brings the sandbox up to the point where the guest's first process could
// be made, locked down.
func (sb *sandbox) boot() error {
	if sb.head.SpecFirst {
		sb.startPlatform()
	}
	if err := sb.receiveStreams(); err != nil {
		return err
	}
	if err := sb.reserveTrees(); err != nil {
		return err
	}
	filter := sb.compileFilter()
	if err := sb.newKernel(); err != nil {
		return err
	}
	if err := sb.attachLinks(sb.spec.Network.Links); err != nil {
		return err
	}
	if err := sb.setupCgroups(); err != nil {
		return err
	}
	if err := sb.prepareContainer(sb.first); err != nil {
		return err
	}
	if err := sb.joinPlatform(); err != nil {
		return err
	}
	return sb.lockdown(filter)
}

// run starts the kernel, and with it the first container unless that is held.
// It does not return: when the guest has ended, the launcher fetches the exit
// status and hangs up, which ends us; a launcher that is gone already has done
// so too.
func (sb *sandbox) run() {
	sb.watchdog.Start()
	err := sb.k.Start()
	if err == nil {
		sb.enforceMemory()
		sb.enforceCPU()
		sb.created(sb.first)
		if !sb.spec.Hold {
			err = sb.startContainer(sb.first)
		}
	}
	if err != nil {
		sb.failed(sb.first, err)
		time.Sleep(reportGrace)
		os.Exit(exitBootFailed)
	}
	resumeCollection(uint64(sb.spec.Resources.MemoryBytes))
	footprint.Settle(sb.forgetGuestMemory)
	select {}
}

// shedHost drops what the process inherited and will not need.
func (sb *sandbox) shedHost() error {
	// A launcher never comes this far inside another gVisor: package container
	// asks before it makes anything, and asking twice costs.
	// What the processor can do is read from /proc, which an empty root lacks.
	// Without it the Sentry would think too little of it: no FSGSBASE, which
	// every switch to a guest would pay for.
	cpuid.Initialize()
	if sb.head.HostNetwork {
		if err := sb.readHostNetwork(); err != nil {
			return err
		}
	}
	unix.Umask(0)
	if err := lockdown.Shed(lockdown.ShedOptions{
		Keep:      []int{HandoverFD},
		EmptyRoot: sb.head.Lockdown.EmptyRoot,
	}); err != nil {
		return fmt.Errorf("shed host state: %w", err)
	}
	sb.timeline.reached("host state shed")
	return nil
}
