// SPDX-License-Identifier: Apache-2.0

// Containers that go on without whoever started them: the supervisor, which is
// their launcher, and how it comes to be.

package container

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/footprint"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/state"
)

// The descriptors of a supervisor: the channel to its caller, and its order.
const (
	SupervisorCallerFD = 3
	supervisorOrderFD  = 4
	// supervisorExtraFD is the first of those that a container or a process is to have.
	supervisorExtraFD = 5
)

// order is what a supervisor is told to do, one of these: run a new container,
// start one that was created, create one of a bundle, run an additional process in
// such a one.
type order struct {
	Run    *runOrder   `json:"run,omitempty"`
	Start  string      `json:"start,omitempty"`
	Create *TaskCreate `json:"create,omitempty"`
	Exec   *TaskExec   `json:"exec,omitempty"`
}

// one says whether the order is for one thing.
func (o *order) one() bool {
	n := 0
	for _, given := range []bool{o.Run != nil, o.Start != "", o.Create != nil, o.Exec != nil} {
		if given {
			n++
		}
	}
	return n == 1
}

// runOrder is what travels of [RunOptions].
type runOrder struct {
	Image      string           `json:"image"`
	Policy     images.Policy    `json:"policy"`
	Platform   image.Platform   `json:"platform"`
	Name       string           `json:"name,omitempty"`
	CIDFile    string           `json:"cidFile,omitempty"`
	AutoRemove bool             `json:"autoRemove,omitempty"`
	Options    convert.Options  `json:"options"`
	Log        *state.LogConfig `json:"log,omitempty"`
}

func (o *runOrder) options() *RunOptions {
	return &RunOptions{
		Image: o.Image, Pull: images.PullOptions{Policy: o.Policy, Platform: o.Platform}, Name: o.Name, CIDFile: o.CIDFile,
		AutoRemove: o.AutoRemove, Options: o.Options, Log: o.Log,
	}
}

// maxOrderBytes bounds an order: the options of the largest spec.
const maxOrderBytes = 2 * api.MaxSpecBytes

// Detach runs a new container with a supervisor of its own, and returns once
// its guest runs. argv are the arguments with which this program, executed
// again, becomes a supervisor: it calls [Runner.Supervise] and speaks to
// [SupervisorCallerFD] as to any caller. A failure comes with docker's exit
// code for it, and with an id where the container has left a record.
func Detach(ctx context.Context, argv []string, o RunOptions) (id string, code int, err error) {
	return launchSupervisor(ctx, argv, &order{Run: &runOrder{
		Image: o.Image, Policy: o.Pull.Policy, Platform: o.Pull.Platform, Name: o.Name, CIDFile: o.CIDFile,
		AutoRemove: o.AutoRemove, Options: o.Options, Log: o.Log,
	}})
}

// StartDetached starts a container that was created, likewise.
func StartDetached(ctx context.Context, argv []string, id string) (code int, err error) {
	_, code, err = launchSupervisor(ctx, argv, &order{Start: id})
	return code, err
}

// launchSupervisor starts a supervisor and listens to it until it has no more
// to say.
func launchSupervisor(ctx context.Context, argv []string, what *order) (id string, code int, err error) {
	_, conn, err := startSupervisor(argv, what, false)
	if err != nil {
		return "", exitOwnFailure, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	return hearSupervisor(conn, api.EventStarted)
}

// startSupervisor starts a supervisor, from the calling thread, and returns its
// number and the channel on which it reports. With streams, it has this process'. extra
// are further files for it.
func startSupervisor(argv []string, what *order, streams bool, extra ...*os.File) (pid int, _ net.Conn, err error) {
	fail := func(err error) (int, net.Conn, error) {
		return 0, nil, fmt.Errorf("start a supervisor: %w", err)
	}
	doc, err := json.Marshal(what)
	if err != nil {
		return fail(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(os.NewSyscallError("socketpair", err))
	}
	far, near := os.NewFile(uintptr(fds[1]), "caller"), os.NewFile(uintptr(fds[0]), "supervisor")
	defer far.Close()
	conn, err := net.FileConn(near)
	near.Close()
	if err != nil {
		return fail(err)
	}
	orderFile, err := memoryFile("gvx-order", doc)
	if err != nil {
		conn.Close()
		return fail(err)
	}
	defer orderFile.Close()

	// What this process inherited, the write end of somebody's pipe say, must
	// not live on in the supervisor.
	_ = unix.CloseRange(SupervisorCallerFD, 1<<32-1, unix.CLOSE_RANGE_CLOEXEC)
	cmd := exec.Command("/proc/self/exe", argv[1:]...)
	cmd.Args[0] = argv[0]
	// Standard error is this process' for as long as the image is pulled.
	cmd.Stderr = os.Stderr
	if streams {
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
	}
	cmd.ExtraFiles = append([]*os.File{far, orderFile}, extra...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return fail(err)
	}
	pid = cmd.Process.Pid
	if streams {
		// Its end belongs to whoever inherits it from us: an engine, which learns
		// the exit code from that. It may come before our own.
		_ = cmd.Process.Release()
	} else {
		go cmd.Wait()
	}
	return pid, conn, nil
}

// hearSupervisor reads what a supervisor reports, up to an event or its failure.
func hearSupervisor(conn io.Reader, until api.EventType) (id string, code int, err error) {
	events := json.NewDecoder(io.LimitReader(conn, maxOrderBytes))
	for {
		var e api.Event
		if err := events.Decode(&e); err != nil {
			return id, exitOwnFailure, api.Errorf(api.KindInternal, "the container's supervisor ended before the container was started")
		}
		switch e.Type {
		case api.EventCreated:
			id = e.Container
		case api.EventWarning:
			fmt.Fprintf(os.Stderr, "rungv: %s\n", e.Message)
		case api.EventStarted:
		case api.EventFailed:
			return id, e.Code, api.Errorf(e.Kind, "%s", e.Message)
		}
		if e.Type == until {
			return id, 0, nil
		}
	}
}

// memoryFile is an unnamed file with content, at its beginning.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Supervise does what the order on its descriptor says and returns when the
// container, or the additional process, has ended. adjust completes the options of
// a run with what does not travel: functions. gone is closed when the caller has
// ended, which ends a container that does not run yet. bare says that this process
// stands for what has ended, and is to end with its exit code.
func (r *Runner) Supervise(ctx context.Context, gone <-chan struct{}, report SupervisorReport, adjust func(*RunOptions) error) (exit api.ExitStatus, bare bool, err error) {
	f := os.NewFile(supervisorOrderFD, "order")
	doc, err := io.ReadAll(io.LimitReader(f, maxOrderBytes))
	f.Close()
	var what order
	if err == nil {
		err = json.Unmarshal(doc, &what)
	}
	if err != nil || !what.one() {
		return exit, false, api.Errorf(api.KindInvalid, "a supervisor is started by rungv itself, not by hand: %v", err)
	}
	var o *RunOptions
	switch {
	case what.Create != nil:
		exit, err = r.superviseTask(ctx, gone, what.Create, report.Created)
		return exit, true, err
	case what.Exec != nil:
		var extra []*os.File
		if extra, err = inheritedFDs(supervisorExtraFD, what.Exec.PreserveFDs); err == nil {
			exit, err = r.superviseExec(ctx, gone, what.Exec, extra, report.Started)
		}
		return exit, true, err
	}
	if what.Start != "" {
		if o, err = r.startOptions(what.Start); err != nil {
			return exit, false, err
		}
	} else {
		o = what.Run.options()
	}
	if err := adjust(o); err != nil {
		return exit, false, err
	}
	// The guest decides what ends the container, nobody's terminal.
	o.SignalProxy, o.Detached = true, true
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running := make(chan struct{})
	o.Created = report.Created
	o.Started = func() {
		close(running)
		report.Started()
		standAlone()
	}
	go func() {
		select {
		case <-gone:
			select {
			case <-running:
			default:
				cancel()
			}
		case <-running:
		}
	}()
	h, err := newHub(o, r.warnf)
	if err != nil {
		return exit, false, err
	}
	exit, err = r.Run(ctx, *o)
	h.end(exit)
	return exit, false, err
}

// debugf is for what must not be said on the standard error of a guest.
func (r *Runner) debugf(format string, args ...any) {
	if r.Debug != nil {
		r.Debug(format, args...)
	}
}

func (r *Runner) warnf(format string, args ...any) {
	if r.Warn != nil {
		r.Warn(format, args...)
	}
}

// standAlone lets go of what ties a supervisor to its caller.
func standAlone() {
	if null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil {
		for fd := range 3 {
			_ = unix.Dup3(int(null.Fd()), fd, 0)
		}
		null.Close()
	}
	_ = os.Chdir("/")
	// What the start needed would stay for as long as the container does.
	footprint.SettleToWait()
}

// startOptions are the options of a container that was created, with its
// handle.
func (r *Runner) startOptions(ref string) (*RunOptions, error) {
	h, err := r.State.Acquire(ref)
	if err != nil {
		return nil, err
	}
	rec := h.Record()
	// With what has been changed of it since.
	if now, err := r.State.Get(rec.ID); err == nil {
		rec.Options = now.Options
	}
	return &RunOptions{Image: rec.Image, AutoRemove: rec.AutoRemove, Options: rec.Options, Log: rec.Log, handle: h}, nil
}

// StartAttached starts a container that was created in the foreground, with
// the streams and functions of o.
func (r *Runner) StartAttached(ctx context.Context, ref string, o RunOptions) (api.ExitStatus, error) {
	so, err := r.startOptions(ref)
	if err != nil {
		return api.ExitStatus{}, err
	}
	so.Pull, so.PullDone, so.SignalProxy, so.DetachKeys = o.Pull, o.PullDone, o.SignalProxy, o.DetachKeys
	so.Stdin, so.Stdout, so.Stderr = o.Stdin, o.Stdout, o.Stderr
	so.Interactive = so.Interactive && o.Interactive
	return r.Run(ctx, *so)
}

// Create enters a container without starting it, and returns its id and name.
func (r *Runner) Create(ctx context.Context, o RunOptions) (id string, err error) {
	h, err := r.State.Create(state.Record{
		Image: o.Image, Options: o.Options, AutoRemove: o.AutoRemove, Log: o.Log,
	}, o.Name)
	if err != nil {
		return "", err
	}
	u := &run{Runner: r, o: o, handle: h}
	if err = u.writeCIDFile(); err == nil {
		if err = u.check(ctx); err == nil {
			return h.ID(), h.Close()
		}
		if o.CIDFile != "" {
			os.Remove(o.CIDFile)
		}
	}
	if rerr := h.Remove(); rerr != nil {
		r.warnf("%v", rerr)
	}
	return "", err
}

// check finds what would keep a created container from being started, as far
// as that can be said before, and completes its record.
func (u *run) check(ctx context.Context) error {
	img, err := u.Images.Pull(ctx, u.o.Image, u.o.Pull)
	if u.o.PullDone != nil {
		u.o.PullDone()
	}
	if err != nil {
		return err
	}
	layers := make([]string, len(img.LayerDiffIDs))
	for i, d := range img.LayerDiffIDs {
		layers[i] = d.String()
	}
	spec, err := convert.Sandbox(convert.Input{
		ID: u.handle.ID(), Image: img.Config, Layers: layers, Cores: runtime.NumCPU(), Options: u.o.Options,
	})
	if err != nil {
		return err
	}
	stopSignal, err := convert.StopSignal(img.Config, &u.o.Options)
	if err != nil {
		return err
	}
	return u.handle.Update(func(rec *state.Record) error {
		rec.ImageID, rec.Process, rec.Hostname, rec.StopSignal = img.ID.String(), spec.Container.Process, spec.Hostname, stopSignal
		return rec.SetState(api.StateCreated)
	})
}

// failedStart leaves a created container whose start failed as it was, with the
// reason.
func (u *run) failedStart(cause error) {
	err := u.handle.Update(func(rec *state.Record) error {
		rec.Error, rec.FinishedAt = cause.Error(), time.Now().UTC()
		return nil
	})
	if err != nil {
		u.warn("%v", err)
	}
	if err := u.handle.Close(); err != nil {
		u.warn("%v", err)
	}
}
