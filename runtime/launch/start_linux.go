// SPDX-License-Identifier: Apache-2.0

// Starting the process: numbering what is donated, and handing it over.

package launch

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/control/handover"
)

// Config is a sandbox to be started. Start fills in every descriptor of Spec
// from the files here; a nil file is [api.NoFD]. The files stay the caller's,
// who may close them once Start has returned.
type Config struct {
	Spec *api.Sandbox
	// ContainerFiles are those of Spec.Container.
	ContainerFiles
	// Links are the packet sockets of Spec.Network.Links, whose descriptors are
	// indices into it.
	Links []*os.File
	// Broker is the sandbox's end of the channel to the network's broker.
	Broker *os.File
	// Listen is the listening control socket.
	Listen *os.File
	// Streams is the socket on which streams of additional processes arrive.
	Streams *os.File
}

// ContainerFiles are what a container's spec has descriptors for. The files stay
// the caller's.
type ContainerFiles struct {
	// Layers are the rootfs' layers, parallel to Rootfs.Layers.
	Layers []*os.File
	// Upper are the files of Rootfs.Upper, and Volumes those of Mounts, parallel
	// to it: nil for a mount that is no volume. The lowest base comes first.
	Upper   []*os.File
	Volumes [][]*os.File
	// RootTree is the socket of Rootfs.Host, and Trees are those of Mounts, parallel
	// to it: nil for a mount that is no bind mount. See [Gofer.Sockets].
	RootTree *os.File
	Trees    []*os.File
	// Init is the reaper of --init.
	Init *os.File
	// Stdin, Stdout and Stderr are the guest's ends of its streams.
	Stdin, Stdout, Stderr *os.File
	// Extra are those of Process.ExtraFDs.
	Extra []*os.File
}

// Number is for a container that joins a running sandbox: it fills in every
// descriptor of spec with the number of its file, from 0, in the list it returns.
func (f *ContainerFiles) Number(spec *api.Container) []*os.File {
	d := &donation{}
	d.addContainer(spec, f)
	return d.files
}

// Start gives the process its spec and its files. It returns when they are on
// their way, long before the guest runs: [control.Client.WaitStarted] tells about
// that. Whatever happens the embryo is used up.
func (e *Embryo) Start(cfg *Config) (*Process, error) {
	p, err := e.process()
	if err != nil {
		return nil, err
	}
	defer e.sender.Close()
	near, far, err := controlPair()
	if err != nil {
		e.Discard()
		return nil, fmt.Errorf("start sandbox: make the control channel: %w", err)
	}
	defer far.Close()
	d := donate(cfg, far)
	if err := e.sender.Spec(cfg.Spec, d.files); err != nil {
		near.Close()
		return nil, fmt.Errorf("start sandbox: %w", e.why(err))
	}
	p.Control = control.NewClient(near)
	return p, nil
}

// why ends the process, and returns why it took no spec: of one that has ended
// by itself the broken socket says nothing.
func (e *Embryo) why(cause error) error {
	e.sender.Close()
	if !errors.Is(cause, unix.EPIPE) && !errors.Is(cause, unix.ECONNRESET) {
		e.Discard()
		return cause
	}
	// Its socket is closed, so it is on its way out.
	ending, kind := e.child.Ending(), api.KindInternal
	if ending.Signal == unix.SIGKILL {
		kind = api.KindKilled // No fault of a sandbox ends it so.
	}
	return api.Errorf(kind, "the sandbox process %d ended before it had its spec: %v", e.child.PID, ending)
}

// donation numbers the files that go to the sandbox process.
type donation struct {
	first int
	files []*os.File
}

func (d *donation) add(f *os.File) api.FD {
	if f == nil {
		return api.NoFD
	}
	d.files = append(d.files, f)
	return api.FD(d.first + len(d.files) - 1)
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
	d := &donation{first: handover.FirstNumber}
	s := cfg.Spec
	s.ControlFD = d.add(controlEnd)
	s.ListenFD = d.add(cfg.Listen)
	s.StreamsFD = d.add(cfg.Streams)
	s.Network.BrokerFD = d.add(cfg.Broker)
	for i := range s.Network.Links {
		l := &s.Network.Links[i]
		for j, n := range l.FDs {
			l.FDs[j] = d.add(cfg.Links[n])
		}
	}
	d.addContainer(&s.Container, &cfg.ContainerFiles)
	return d
}

// addContainer adds what one container has.
func (d *donation) addContainer(c *api.Container, f *ContainerFiles) {
	for i := range c.Rootfs.Layers {
		c.Rootfs.Layers[i].FD = d.add(f.Layers[i])
	}
	if c.Rootfs.Upper != nil {
		c.Rootfs.Upper.FDs = d.addAll(f.Upper)
	}
	if c.Rootfs.Host != nil {
		c.Rootfs.Host.FD = d.add(f.RootTree)
	}
	for i := range c.Mounts {
		if v := c.Mounts[i].Volume; v != nil {
			v.FDs = d.addAll(f.Volumes[i])
		}
		if h := c.Mounts[i].Host; h != nil {
			h.FD = d.add(f.Trees[i])
		}
	}
	c.InitFD = d.add(f.Init)
	p := &c.Process
	p.StdinFD = d.add(f.Stdin)
	if f.Stdout == f.Stdin && f.Stderr == f.Stdin {
		// A terminal: one file, three streams.
		p.StdoutFD, p.StderrFD = p.StdinFD, p.StdinFD
	} else {
		p.StdoutFD, p.StderrFD = d.add(f.Stdout), d.add(f.Stderr)
	}
	p.ExtraFDs = d.addAll(f.Extra)
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
