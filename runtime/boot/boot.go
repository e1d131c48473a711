// SPDX-License-Identifier: Apache-2.0

// Package boot is the sandbox process: one gVisor Sentry that is assembled
// here from gVisor's packages, locks itself down, and then runs guest code.
//
// The launcher executes this binary with a spec on descriptor 3 and every file
// the sandbox will ever need on descriptors named in that spec. From then on:
//
//  1. read and validate the spec; start the control server on the donated
//     socket, so that any later failure reaches the launcher;
//  2. shed the outer world: empty root (when in a new mount namespace), no
//     capabilities, resource limits, and every descriptor that was not donated;
//  3. make the platform (systrap attaches its first stub here), the memory
//     file, the clocks and the network stack, side by side where they allow it;
//  4. make the kernel, mount the root file system, resolve user and command;
//  5. install the seccomp allow-list on all threads;
//  6. create the guest's first process and start the kernel.
//
// No guest instruction runs before step 5. The package opens nothing on the
// host (but /proc/self/maps-like files that gVisor reads before step 5), dials
// nobody and never imports host-side packages: a structure test enforces it.
//
// Lock order: sandbox.mu is a leaf; no gVisor lock is taken under it.
package boot

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/gomaxprocs"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/lockdown"
)

const (
	// ProcessName is argv[0] of the sandbox process.
	ProcessName = "gvx-sandbox"

	// SpecFD is the descriptor on which the spec arrives.
	SpecFD = 3

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
	s, err := readSpec(SpecFD)
	if err != nil {
		// Without a spec there is no control channel: the launcher reads this.
		fmt.Fprintf(os.Stderr, "%s: %v\n", ProcessName, err)
		os.Exit(exitBootFailed)
	}
	tl.start(s.StartedAt)
	// An explicit GOMAXPROCS keeps the Go runtime's monitor from asking for
	// the affinity mask every second, which the allow-list does not contain.
	gomaxprocs.SetBase(s.Cores)
	setupLog(s)

	sb := newSandbox(s, &tl)
	sb.pids.Store(uint64(s.Resources.Pids))
	if err := sb.serveControl(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: serve control channel: %v\n", ProcessName, err)
		os.Exit(exitBootFailed)
	}
	if err := sb.boot(); err != nil {
		log.Warningf("sandbox %s: %v", s.ID, err)
		sb.failed(err)
		time.Sleep(reportGrace)
		os.Exit(exitBootFailed)
	}
	sb.run()
}

// readSpec reads, bounds and validates the document on fd, and closes fd.
func readSpec(fd int) (*api.Sandbox, error) {
	f := os.NewFile(uintptr(fd), "spec")
	if f == nil {
		return nil, fmt.Errorf("read spec: descriptor %d is not open: start sandboxes with rungv", fd)
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, api.MaxSpecBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	if len(doc) > api.MaxSpecBytes {
		return nil, api.Errorf(api.KindLimit, "read spec: longer than %d bytes", api.MaxSpecBytes)
	}
	s := new(api.Sandbox)
	if err := json.Unmarshal(doc, s); err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return s, nil
}

// boot brings the sandbox up to the point where the guest's first process
// exists, locked down but not yet running.
func (sb *sandbox) boot() error {
	if err := sb.shedHost(); err != nil {
		return err
	}
	if err := sb.receiveStreams(); err != nil {
		return err
	}
	filter := sb.compileFilter()
	if err := sb.newKernel(); err != nil {
		return err
	}
	c, err := sb.prepareContainer(&sb.spec.Container)
	if err != nil {
		return err
	}
	if err := sb.lockdown(filter); err != nil {
		return err
	}
	return sb.createProcess(c)
}

// run lets the guest run until it has ended and the launcher has hung up.
func (sb *sandbox) run() {
	sb.watchdog.Start()
	if err := sb.k.Start(); err != nil {
		sb.failed(fmt.Errorf("start kernel: %w", err))
		time.Sleep(reportGrace)
		os.Exit(exitBootFailed)
	}
	sb.timeline.reached("guest started")
	sb.enforceMemory()
	sb.enforceCPU()
	sb.started()
	resumeCollection()
	sb.waitInit()
	// The launcher fetches the exit status and hangs up, which ends us; a
	// launcher that is gone already has done so too.
	select {}
}

// donatedFDs lists every descriptor that the spec names, for the keep list.
func donatedFDs(s *api.Sandbox) []int {
	fds := []int{0, 1, 2}
	add := func(fd api.FD) {
		if fd >= 0 {
			fds = append(fds, int(fd))
		}
	}
	add(s.ControlFD)
	add(s.ListenFD)
	add(s.StreamsFD)
	add(s.LogFD)
	add(s.Network.BrokerFD)
	c := &s.Container
	for _, l := range c.Rootfs.Layers {
		add(l.FD)
	}
	add(c.Rootfs.UpperFD)
	addVolume := func(v *api.Volume) {
		if v != nil {
			for _, fd := range v.FDs {
				add(fd)
			}
		}
	}
	addVolume(c.Rootfs.Upper)
	for i := range c.Mounts {
		addVolume(c.Mounts[i].Volume)
	}
	add(c.InitFD)
	add(c.Process.StdinFD)
	add(c.Process.StdoutFD)
	add(c.Process.StderrFD)
	return fds
}

// shedHost drops what the process inherited and will not need.
func (sb *sandbox) shedHost() error {
	// A launcher never comes this far inside another gVisor: package container
	// asks before it makes anything, and asking twice costs.
	// What the processor can do is read from /proc, which an empty root lacks.
	// Without it the Sentry would think too little of it: no FSGSBASE, which
	// every switch to a guest would pay for.
	cpuid.Initialize()
	unix.Umask(0)
	if err := lockdown.Shed(lockdown.ShedOptions{
		Keep:      donatedFDs(sb.spec),
		EmptyRoot: sb.spec.Lockdown.EmptyRoot,
	}); err != nil {
		return fmt.Errorf("shed host state: %w", err)
	}
	sb.timeline.reached("host state shed")
	return nil
}
