// SPDX-License-Identifier: Apache-2.0

// Starting the process: numbering what is donated, and the fork.

package launch

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/lockdown"
)

const (
	// processName is argv[0] of a sandbox process; cmd/rungv's main looks for it.
	processName = "gvx-sandbox"
	// selfExecutable is the binary that is running, whatever became of its path.
	selfExecutable = "/proc/self/exe"
	// firstDonatedFD follows the standard streams and the spec.
	firstDonatedFD = 4
	// firstInheritedFD follows the launcher's own standard streams.
	firstInheritedFD = 3
	// maxFD is close_range's word for all.
	maxFD = 1<<32 - 1
)

// Config is a sandbox to be started. Start fills in every descriptor of Spec
// from the files here; a nil file is [api.NoFD]. The files stay the caller's,
// who may close them once Start has returned.
type Config struct {
	Spec *api.Sandbox
	// Layers are the rootfs' layers, parallel to Spec.Container.Rootfs.Layers.
	Layers []*os.File
	// Upper takes the rootfs' writes.
	Upper *os.File
	// UpperVolume are the files of Spec.Container.Rootfs.Upper, and Volumes
	// those of Spec.Container.Mounts, parallel to it: nil for a mount that is
	// no volume. The lowest base comes first.
	UpperVolume []*os.File
	Volumes     [][]*os.File
	// Init is the reaper of --init.
	Init *os.File
	// Broker is the sandbox's end of the channel to the network's broker.
	Broker *os.File
	// Listen is the listening control socket.
	Listen *os.File
	// Streams is the socket on which streams of additional processes arrive.
	Streams *os.File
	// Log takes the Sentry's log.
	Log *os.File
	// Stdin, Stdout and Stderr are the guest's ends of its streams.
	Stdin, Stdout, Stderr *os.File
	// SysProcAttr, if not nil, changes how the process is made: namespaces,
	// identity. It is called on the thread that will fork, locked to it, so
	// that it may restrict that thread for good.
	SysProcAttr func(*syscall.SysProcAttr) error
}

// Start starts the sandbox process. It returns when the process exists, long
// before the guest runs: [control.Client.WaitStarted] tells about that.
func Start(cfg *Config) (*Process, error) {
	near, far, err := controlPair()
	if err != nil {
		return nil, fmt.Errorf("start sandbox: make the control channel: %w", err)
	}
	defer far.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		near.Close()
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	defer null.Close()

	d := donate(cfg, far)
	spec, err := specFile(cfg.Spec)
	if err != nil {
		near.Close()
		return nil, err
	}
	defer spec.Close()

	// What this process inherited itself is not close-on-exec, as a rule. The
	// sandbox closes it too: this is for kernels that can spare it the work.
	_ = unix.CloseRange(firstInheritedFD, maxFD, unix.CLOSE_RANGE_CLOEXEC)
	files := append([]*os.File{null, null, null, spec}, d.files...)
	p, err := forkProcess(files, cfg.SysProcAttr)
	if err != nil {
		near.Close()
		return nil, fmt.Errorf("start sandbox: execute %s as %s: %w", selfExecutable, processName, err)
	}
	p.Control = control.NewClient(near)
	return p, nil
}

// donation numbers the files that go to the sandbox process.
type donation struct {
	files []*os.File
}

func (d *donation) add(f *os.File) api.FD {
	if f == nil {
		return api.NoFD
	}
	d.files = append(d.files, f)
	return api.FD(firstDonatedFD + len(d.files) - 1)
}

func (d *donation) addAll(files []*os.File) []api.FD {
	fds := make([]api.FD, len(files))
	for i, f := range files {
		fds[i] = d.add(f)
	}
	return fds
}

// donate writes into cfg.Spec the number that each file will have.
func donate(cfg *Config, controlEnd *os.File) *donation {
	d := &donation{}
	s := cfg.Spec
	s.ControlFD = d.add(controlEnd)
	s.ListenFD = d.add(cfg.Listen)
	s.StreamsFD = d.add(cfg.Streams)
	s.LogFD = d.add(cfg.Log)
	s.Network.BrokerFD = d.add(cfg.Broker)
	c := &s.Container
	for i := range c.Rootfs.Layers {
		c.Rootfs.Layers[i].FD = d.add(cfg.Layers[i])
	}
	c.Rootfs.UpperFD = d.add(cfg.Upper)
	if c.Rootfs.Upper != nil {
		c.Rootfs.Upper.FDs = d.addAll(cfg.UpperVolume)
	}
	for i := range c.Mounts {
		if v := c.Mounts[i].Volume; v != nil {
			v.FDs = d.addAll(cfg.Volumes[i])
		}
	}
	c.InitFD = d.add(cfg.Init)
	p := &c.Process
	p.StdinFD = d.add(cfg.Stdin)
	if cfg.Stdout == cfg.Stdin && cfg.Stderr == cfg.Stdin {
		// A terminal: one file, three streams.
		p.StdoutFD, p.StderrFD = p.StdinFD, p.StdinFD
	} else {
		p.StdoutFD, p.StderrFD = d.add(cfg.Stdout), d.add(cfg.Stderr)
	}
	return d
}

// specFile returns the spec as a memory file that nobody can change any more,
// to be read from its beginning.
func specFile(s *api.Sandbox) (*os.File, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	doc, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("start sandbox: encode its spec: %w", err)
	}
	if len(doc) > api.MaxSpecBytes {
		return nil, api.Errorf(api.KindLimit, "start sandbox: its spec is %d bytes, at most %d: shorten arguments, environment or files", len(doc), api.MaxSpecBytes)
	}
	fd, err := unix.MemfdCreate("gvx-spec", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("start sandbox: create a memory file for its spec: %w", err)
	}
	f := os.NewFile(uintptr(fd), "spec")
	// At an offset of its own: the reader starts at zero.
	if _, err := f.WriteAt(doc, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("start sandbox: write its spec: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("start sandbox: seal its spec: %w", err)
	}
	return f, nil
}

// controlPair returns the two ends of a control channel.
func controlPair() (near net.Conn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	nearFile := os.NewFile(uintptr(fds[0]), "control")
	far = os.NewFile(uintptr(fds[1]), "control")
	defer nearFile.Close() // FileConn duplicates it.
	if near, err = net.FileConn(nearFile); err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// forkProcess makes the child, from a thread that stays until it is reaped.
func forkProcess(files []*os.File, adjust func(*syscall.SysProcAttr) error) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	forked := make(chan error, 1)
	lockdown.OnOwnThread(func() {
		attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		if adjust != nil {
			if err := adjust(attr); err != nil {
				forked <- err
				return
			}
		}
		child, err := os.StartProcess(selfExecutable, []string{processName}, &os.ProcAttr{
			Dir:   "/",
			Env:   []string{},
			Files: files,
			Sys:   attr,
		})
		if err != nil {
			forked <- err
			return
		}
		p.process, p.PID = child, child.Pid
		forked <- nil
		p.reap()
	})
	if err := <-forked; err != nil {
		return nil, err
	}
	return p, nil
}
