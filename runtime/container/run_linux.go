// SPDX-License-Identifier: Apache-2.0

// A run in the foreground, from the record to the exit status.

package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/lockdown"
	"z.gfire.dev/gvx/runtime/netns"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/usernet"
	"z.gfire.dev/gvx/runtime/volumes"
)

const (
	// endGrace is how long a sandbox that was told to end has for it: it kills
	// its guests and exits, which takes milliseconds, but a host in distress
	// must not turn a clean end into a kill.
	endGrace = 10 * time.Second
	// callTimeout bounds a call that is answered at once.
	callTimeout = 5 * time.Second
	// controlSocket is the socket for everyone but the launcher, in the
	// container's directory.
	controlSocket = "control.sock"
	// streamsSocket is where clients hand over the streams of an exec.
	streamsSocket = "streams.sock"
	// controlBacklog is how many clients may wait for the sandbox to accept.
	controlBacklog = 64
	// logTailLines is how much of a sandbox's log goes into the error about
	// its unexpected end.
	logTailLines = 12
)

// exitSignalBase is added to a signal's number to make an exit code of it.
const exitSignalBase = 128

// errInsideGVisor refuses a host that cannot work, before anything is done.
var errInsideGVisor = api.Errorf(api.KindUnsupported, "run a container: this host is itself a gVisor sandbox: its signal frames do not say which fault they are about, which a Sentry needs to know; run rungv outside of runsc")

// run is one run under way.
type run struct {
	*Runner
	o       RunOptions
	handle  *state.Handle
	signals *signals

	pin     *images.Pin
	streams *launch.Streams
	log     *launch.Log
	embryo  *launch.Embryo
	// delivery is the signals on their way to the guest.
	delivery delivery
	process  *launch.Process
	// group is nil where the host gave none.
	group *hostcgroup.Group
	// broker is nil but for network mode nat.
	broker *usernet.Broker
	// namespace is what network mode netns is about, and taken what the sandbox
	// has of it; nil otherwise.
	namespace *netns.Namespace
	taken     *netns.Taken
	// stopArrivals ends what comes to the guest by way of the namespace; nil
	// before it has begun.
	stopArrivals func()
	// volumes are open until the sandbox has ended. diskBytes is what each took on
	// the host's disk when the end was asked for, 0 if it is not compacted then; nil
	// before.
	volumes   []*volumes.Opened
	diskBytes []int64
	// gofer is nil without directories of the host, which are sources.
	gofer   *launch.Gofer
	sources []hostTree
	began   int64
}

// Run runs a container in the foreground and returns how it ended. An error
// comes with the exit status that stands for it where there is one (a command
// that does not exist, a sandbox that was killed); otherwise the status is
// zero and the error's kind is all there is.
func (r *Runner) Run(ctx context.Context, o RunOptions) (api.ExitStatus, error) {
	if lockdown.DetectGVisor() {
		// The sandbox process would say so too: after the image was pulled.
		return api.ExitStatus{}, errInsideGVisor
	}
	u := &run{Runner: r, o: o, began: monotonicNanos()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.signals = catchSignals(o.TTY, cancel)
	defer u.signals.stop()

	err := u.fork()
	if err != nil {
		return api.ExitStatus{}, err
	}
	defer u.discard()
	// Who learns of the container may send it any signal: from its record on
	// none is dropped.
	<-u.signals.all
	if u.handle, err = u.enter(); err != nil {
		return api.ExitStatus{}, err
	}
	u.watchCaller(ctx, cancel)
	if err = u.writeCIDFile(); err == nil && o.hub != nil {
		err = o.hub.open(u.handle.Dir(), o.Log)
	}
	if err == nil {
		err = u.prepare(ctx)
	}
	defer u.release()
	if err != nil {
		return u.neverExisted(err)
	}
	exit, err := u.supervise(ctx)
	u.closeVolumes() // Before anybody hears that the container has ended.
	return exit, u.finish(exit, err)
}

// enter makes the container's record, where it has none yet.
func (u *run) enter() (*state.Handle, error) {
	o := &u.o
	if o.handle != nil {
		return o.handle, o.handle.Update(func(rec *state.Record) error {
			rec.Detached, rec.Error = o.Detached, ""
			return nil
		})
	}
	return u.State.Create(state.Record{
		Image: o.Image, Options: o.Options, AutoRemove: o.AutoRemove, Log: o.Log, Detached: o.Detached,
	}, o.Name)
}

// prepare does everything up to the start of the sandbox process.
func (u *run) prepare(ctx context.Context) error {
	if err := u.openNetwork(); err != nil {
		return err
	}
	if err := u.openVolumes(); err != nil {
		return err
	}
	if err := u.openSources(); err != nil {
		return err
	}
	img, err := u.Images.Pull(ctx, u.o.Image, u.o.Pull)
	if u.o.PullDone != nil {
		u.o.PullDone()
	}
	if err != nil {
		return imageError(err)
	}
	if u.pin, err = u.Images.Pin(img); err != nil {
		return err
	}
	layers := make([]string, len(img.LayerDiffIDs))
	for i, d := range img.LayerDiffIDs {
		layers[i] = d.String()
	}
	spec, err := convert.Sandbox(convert.Input{
		ID: u.handle.ID(), Image: img.Config, Layers: layers, Cores: runtime.NumCPU(), Options: u.guestOptions(),
	})
	if err != nil {
		return err
	}
	stopSignal, err := convert.StopSignal(img.Config, &u.o.Options)
	if err != nil {
		return err
	}
	if err := u.awaitStart(ctx); err != nil {
		return err
	}
	if err := u.start(spec); err != nil {
		return err
	}
	sandbox, _ := state.Identify(u.process.PID)
	return u.handle.Update(func(rec *state.Record) error {
		rec.ImageID, rec.Process, rec.Hostname = img.ID.String(), spec.Container.Process, spec.Hostname
		rec.StopSignal, rec.Sandbox, rec.Links = stopSignal, sandbox, u.links()
		return nil
	})
}

// start makes what is donated besides the layers, and starts the process.
func (u *run) start(spec *api.Sandbox) error {
	cfg := &launch.Config{Spec: spec}
	cfg.Layers = u.pin.Layers()
	closeUpper, err := u.addVolumes(cfg)
	if err != nil {
		return err
	}
	defer closeUpper()
	u.addSources(cfg)
	if cfg.Listen, err = listenUnix(u.handle.Dir(), controlSocket, unix.SOCK_STREAM); err != nil {
		return err
	}
	defer cfg.Listen.Close()
	if cfg.Streams, err = listenUnix(u.handle.Dir(), streamsSocket, unix.SOCK_DGRAM); err != nil {
		return err
	}
	defer cfg.Streams.Close()
	if u.o.Init {
		if cfg.Init, err = os.Open("/proc/self/exe"); err != nil {
			return fmt.Errorf("open the reaper for --init: %w", err)
		}
		defer cfg.Init.Close()
	}
	u.streams, err = launch.NewStreams(launch.StreamOptions{
		In: u.o.Stdin, Interactive: u.o.Interactive, Out: u.o.Stdout, Err: u.o.Stderr,
		TTY: u.o.TTY, DetachKeys: u.o.DetachKeys, Signal: u.signalForeground,
	})
	if err != nil {
		return err
	}
	if u.o.TTY {
		spec.Container.Process.Rows, spec.Container.Process.Columns, _ = u.streams.UserSize()
	}
	if u.broker != nil {
		cfg.Broker = u.broker.File()
		defer u.broker.Donated()
	}
	cfg.Stdin, cfg.Stdout, cfg.Stderr = u.streams.Stdin(), u.streams.Stdout(), u.streams.Stderr()
	if err := honourNoExec(&spec.Container, &cfg.ContainerFiles); err != nil {
		return err
	}
	if err := u.joinHostCgroup(spec.ID); err != nil {
		return err
	}
	if err := u.takeNamespace(cfg); err != nil {
		return err
	}
	defer u.log.Donated()
	if u.gofer != nil {
		defer u.gofer.Donated()
	}
	if u.process, err = u.embryo.Start(cfg); err != nil {
		return err
	}
	if u.taken != nil {
		u.taken.CloseFiles() // The sandbox has them.
	}
	if u.broker != nil {
		u.broker.Start()
	}
	u.streams.Start()
	if u.o.hub != nil {
		u.o.hub.bind(u.resizeGuest)
	}
	return nil
}

// release gives back what is open, whatever happened.
func (u *run) release() {
	if u.streams != nil {
		u.streams.Close()
	}
	if u.pin != nil {
		u.pin.Close()
	}
	u.closeNetwork()
	u.closeVolumes()
	u.endGofer()
	u.group.Remove()
}

// neverExisted undoes a run that failed before its guest was started.
func (u *run) neverExisted(cause error) (api.ExitStatus, error) {
	if u.process != nil {
		u.process.Kill()
		u.process.End(endGrace)
	}
	if u.o.handle != nil {
		u.failedStart(cause)
		return api.ExitStatus{}, cause
	}
	if u.o.CIDFile != "" && !errors.Is(cause, errCIDFile) {
		os.Remove(u.o.CIDFile)
	}
	if err := u.handle.Remove(); err != nil {
		cause = errors.Join(cause, err)
	}
	if sig := u.signals.fatal(); sig != 0 {
		return api.ExitStatus{Code: exitSignalBase + int(sig), Signal: int(sig)}, nil
	}
	return api.ExitStatus{}, cause
}

// waited is the answer to a Wait call.
type waited struct {
	exit api.ExitStatus
	err  error
}

// supervise stands by from the start of the process to its end.
func (u *run) supervise(ctx context.Context) (api.ExitStatus, error) {
	if err := u.streams.MakeRaw(); err != nil {
		u.warn("%v", err)
	}
	// Asked before the guest is known to run: one round trip less at its end.
	ended := make(chan waited, 1)
	go func() {
		exit, err := u.process.Control.Wait(context.Background(), u.handle.ID())
		ended <- waited{exit, err}
	}()
	started, err := u.process.Control.WaitStarted(ctx, u.handle.ID())
	if err != nil {
		return u.failedToStart(err)
	}
	err = u.handle.Update(func(rec *state.Record) error {
		rec.StartedAt, rec.Phases, rec.Layers = time.Now().UTC(), started.Phases, started.Lockdown
		return rec.SetState(api.StateRunning)
	})
	if err != nil {
		u.warn("%v", err)
	}
	if u.taken != nil {
		u.stopArrivals = serveArrivals(u.taken, u.handle.Dir(), u.warn)
	}
	if u.o.Started != nil {
		u.o.Started()
	}
	u.signals.proxy()
	detached, goferDone := u.streams.Detached(), goferDone(u.gofer)
	for {
		select {
		case w := <-ended:
			// A guest that has lost its files may end before its gofer's end is told.
			if err := goferFailed(u.gofer, u.log); err != nil {
				return u.withoutGofer(err)
			}
			return u.ended(w)
		case sig := <-u.signals.c:
			if exit, end := u.signal(sig); end {
				return exit, nil
			}
		case <-u.o.Gone:
			u.process.End(endGrace)
			return killedExit(), errCallerGone
		case <-goferDone:
			goferDone = nil
			if err := goferFailed(u.gofer, u.log); err != nil {
				return u.withoutGofer(err)
			}
		case <-detached:
			detached = nil
			u.warn("detach keys: nobody would look after the container: it goes on in the foreground")
		}
	}
}

// withoutGofer ends a sandbox whose gofer has failed.
func (u *run) withoutGofer(cause error) (api.ExitStatus, error) {
	u.process.Kill()
	u.process.End(endGrace)
	return api.ExitStatus{Code: exitOwnFailure, At: time.Now().UTC()}, cause
}

// ended ends the sandbox after its guest, and delivers its last output.
func (u *run) ended(w waited) (api.ExitStatus, error) {
	if w.err != nil {
		return u.lost(w.err)
	}
	u.process.End(endGrace)
	u.tellCompacted()
	lost := u.streams.Drain()
	switch {
	case lost == nil:
		return w.exit, nil
	case w.exit.Code == 0:
		// Whoever asks for the status alone must not take it for success.
		return w.exit, api.Errorf(api.KindInternal, "the container has ended with status 0, but its output is not complete: %w", lost)
	}
	u.warn("%v", lost)
	return w.exit, nil
}

// failedToStart turns the report of a guest that never ran into docker's exit
// codes.
func (u *run) failedToStart(cause error) (api.ExitStatus, error) {
	if errors.Is(cause, control.ErrClosed) {
		return u.lost(cause)
	}
	u.process.Kill()
	u.process.End(endGrace)
	if sig := u.signals.fatal(); sig != 0 {
		return api.ExitStatus{Code: exitSignalBase + int(sig), Signal: int(sig), At: time.Now().UTC()}, nil
	}
	if err := goferFailed(u.gofer, u.log); err != nil {
		cause = err
	}
	exit := api.ExitStatus{Code: ExitCode(cause), At: time.Now().UTC()}
	return exit, fmt.Errorf("failed to start the container: %w", cause)
}

// lost reports a sandbox process that ended without a word.
func (u *run) lost(cause error) (api.ExitStatus, error) {
	if !errors.Is(cause, control.ErrClosed) {
		// The channel works, but its answer is none: do not trust the rest.
		u.process.Kill()
	}
	ending := u.process.End(endGrace)
	if err := u.streams.Drain(); err != nil {
		u.warn("%v", err)
	}
	exit := api.ExitStatus{Code: exitOwnFailure, At: time.Now().UTC()}
	if ending.Signal != 0 {
		exit.Code, exit.Signal = exitSignalBase+int(ending.Signal), int(ending.Signal)
	}
	kind := api.KindInternal
	if ending.Signal == syscall.SIGKILL {
		kind = api.KindKilled // No fault of a sandbox ends it so.
	}
	err := api.Errorf(kind, "the sandbox process %d ended before its guest did: %v", u.process.PID, ending)
	if !errors.Is(cause, control.ErrClosed) {
		err = api.Errorf(api.KindInternal, "the sandbox process %d failed: %w", u.process.PID, cause)
	}
	// Of a sandbox that somebody killed the log tells nothing.
	if ending.Signal != syscall.SIGKILL {
		err = withLastWords(err, u.log)
	}
	return exit, err
}

// withLastWords adds to an error what a log ends with.
func withLastWords(err error, log *launch.Log) error {
	tail := log.Tail()
	if tail == "" {
		return err
	}
	return fmt.Errorf("%w\nits last words:\n  %s", err, strings.Join(lastWords(tail), "\n  "))
}

// lastWords picks the lines of a log that say why its sandbox ended: where the
// Go runtime or gVisor began to report a panic, whose cause comes first and is
// followed by more goroutines than anybody wants to read; else the last ones.
func lastWords(log string) []string {
	lines := strings.Split(log, "\n")
	for i, line := range lines {
		for _, head := range []string{"panic: ", "fatal error: ", "SIG", "runtime: "} {
			if strings.HasPrefix(line, head) {
				return lines[i:min(len(lines), i+logTailLines)]
			}
		}
	}
	return lines[max(0, len(lines)-logTailLines):]
}

// finish writes the last word into the record, or removes it.
func (u *run) finish(exit api.ExitStatus, cause error) error {
	u.streams.Restore()
	if u.o.hub != nil {
		u.o.hub.end(exit)
	}
	if u.o.AutoRemove {
		if err := u.handle.Remove(); err != nil {
			u.warn("%v", err)
		}
		return cause
	}
	err := u.handle.Update(func(rec *state.Record) error {
		rec.FinishedAt, rec.Exit = exit.At, &exit
		if cause != nil {
			rec.Error = cause.Error()
		}
		return rec.SetState(api.StateStopped)
	})
	if err != nil {
		u.warn("%v", err)
	}
	if err := u.handle.Close(); err != nil {
		u.warn("%v", err)
	}
	return cause
}

// warn tells the user something while the guest may own the terminal.
func (u *run) warn(format string, args ...any) {
	if u.Warn != nil {
		u.Warn(format, args...)
	}
}

var errCIDFile = errors.New("container ID file found")

// writeCIDFile writes the id where the user wants it.
func (u *run) writeCIDFile() error {
	if u.o.CIDFile == "" {
		return nil
	}
	f, err := os.OpenFile(u.o.CIDFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return api.Errorf(api.KindExists, "%w, make sure the other container isn't running or delete %s", errCIDFile, u.o.CIDFile)
	}
	if err == nil {
		_, err = io.WriteString(f, u.handle.ID())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return api.Errorf(api.KindInvalid, "failed to write the container ID file: %w", err)
	}
	return nil
}

// monotonicNanos is the clock that launcher and sandbox share.
func monotonicNanos() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// signalForeground carries ^C, ^\ and ^Z to whom the terminal belongs.
func (u *run) signalForeground(sig syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_ = u.process.Control.Signal(ctx, u.handle.ID(), int(sig), control.TargetForeground)
}
