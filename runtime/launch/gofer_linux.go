// SPDX-License-Identifier: Apache-2.0

// The gofer: the process that opens host files for a sandbox.

package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/handover"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// Tree is a directory or a file of the host for a container.
type Tree struct {
	// File is open with O_PATH; it stays the caller's.
	File *os.File
	// Name is its path, for messages.
	Name string
	// ReadOnly and NoSUID are the mount's.
	ReadOnly, NoSUID bool
	// Submounts takes along what the host has mounted below, and Follow also what it
	// mounts there later.
	Submounts, Follow bool
}

// GoferConfig says what a gofer serves.
type GoferConfig struct {
	Trees []Tree
	// Log takes its log, which is its last words as a rule; nil drops them.
	Log *os.File
	// LogLevel is "warning", "info" or "debug".
	LogLevel string
}

// Gofer is a gofer process. It ends when the sandbox has closed all sockets, and
// with its launcher.
type Gofer struct {
	process *Process
	sockets []*os.File
}

// StartGofer starts a gofer. It returns before the process answers anything, which
// a sandbox that mounts one of its trees waits for.
func StartGofer(cfg *GoferConfig) (*Gofer, error) {
	g := &Gofer{}
	var err error
	if g.process, err = g.start(cfg); err != nil {
		g.Donated()
		return nil, fmt.Errorf("start the gofer: %w", err)
	}
	return g, nil
}

// start makes sockets and configuration, and forks.
func (g *Gofer) start(cfg *GoferConfig) (*Process, error) {
	outer, alone := lockdown.PlanGofer()
	c := api.Gofer{Version: api.SpecVersion, LogLevel: cfg.LogLevel, Trees: make([]api.GoferTree, len(cfg.Trees))}
	if alone {
		c.Owner = &api.HostUser{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	}
	files := make([]*os.File, api.GoferConfigFD+1, api.GoferConfigFD+1+2*len(cfg.Trees))
	add := func(f *os.File) api.FD {
		files = append(files, f)
		return api.FD(len(files) - 1)
	}
	var ours []*os.File
	defer func() {
		for _, f := range ours {
			f.Close()
		}
	}()
	for i := range cfg.Trees {
		t := &cfg.Trees[i]
		root, detached := t.detach()
		if detached {
			ours = append(ours, root)
		} else if err := t.canStay(); err != nil {
			return nil, err
		}
		near, far, err := socketPair("gofer")
		if err != nil {
			return nil, err
		}
		g.sockets, ours = append(g.sockets, near), append(ours, far)
		c.Trees[i] = api.GoferTree{
			RootFD: add(root), SocketFD: add(far), Detached: detached, Submounts: t.Submounts, Follow: t.Follow,
			ReadOnly: t.ReadOnly, NoSUID: t.NoSUID, Name: t.Name,
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files[0], files[1], files[2] = null, null, null
	if cfg.Log != nil {
		files[2] = cfg.Log
	}
	return forkGofer(&c, files, outer)
}

// forkGofer starts the process, without namespaces where the host refuses them.
func forkGofer(c *api.Gofer, files []*os.File, outer *lockdown.Outer) (*Process, error) {
	p, err := tryGofer(c, files, outer)
	if err != nil && lockdown.Refused(err) {
		p, err = tryGofer(c, files, outer.Without())
	}
	if err != nil {
		return nil, fmt.Errorf("execute %s as %s: %w", selfExecutable, api.GoferName, err)
	}
	return p, nil
}

func tryGofer(c *api.Gofer, files []*os.File, outer *lockdown.Outer) (*Process, error) {
	c.Lockdown = api.Lockdown{Namespaces: outer.Namespaces, Landlock: outer.Landlock, EmptyRoot: outer.EmptyRoot}
	c.Capabilities = outer.Capabilities
	doc, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	config, err := handover.SealedFile("gvx-gofer", doc)
	if err != nil {
		return nil, err
	}
	defer config.Close()
	files[api.GoferConfigFD] = config
	return execute(api.GoferName, files, outer)
}

// detach gives the tree a mount of its own, if this process may. One that is to
// show what the host mounts later has to stay where it is.
func (t *Tree) detach() (root *os.File, detached bool) {
	if t.Follow {
		return t.File, false
	}
	fd, err := lockdown.Detach(int(t.File.Fd()), "", lockdown.DetachOptions{Submounts: t.Submounts, ReadOnly: t.ReadOnly})
	if err != nil {
		return t.File, false
	}
	return os.NewFile(uintptr(fd), t.Name), true
}

// canStay says whether a tree can be served as the host has it: with all that is
// mounted below.
func (t *Tree) canStay() error {
	if t.Submounts {
		return nil
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", t.File.Fd()))
	if err != nil {
		return fmt.Errorf("find %s: %w", t.Name, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the host's mounts: %w", err)
	}
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if fields := strings.Fields(line); len(fields) > mountPointField && strings.HasPrefix(unescapeMount.Replace(fields[mountPointField]), strings.TrimSuffix(path, "/")+"/") {
			return api.Errorf(api.KindUnsupported, "%s: something is mounted below it, at %s, which only root can leave out: take it as it is, or start gvx as root", t.Name, fields[mountPointField])
		}
	}
	return nil
}

// mountPointField is where a line of mountinfo says where a mount is.
const mountPointField = 4

// unescapeMount reads mountinfo's form of a path.
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// socketPair returns the two ends of a stream.
func socketPair(name string) (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// PID is the process' id on the host.
func (g *Gofer) PID() int { return g.process.PID }

// Sockets are the sandbox' ends, parallel to the trees.
func (g *Gofer) Sockets() []*os.File { return g.sockets }

// Donated closes them here: the sandbox has them, or never will.
func (g *Gofer) Donated() {
	for _, f := range g.sockets {
		f.Close()
	}
	g.sockets = nil
}

// Done is closed once the process has been reaped.
func (g *Gofer) Done() <-chan struct{} { return g.process.Done() }

// Ending returns how the process ended; it blocks until it has.
func (g *Gofer) Ending() Ending { return g.process.Ending() }

// End waits for the process, whose sandbox has ended, and kills it if it has not
// followed within grace.
func (g *Gofer) End(grace time.Duration) Ending {
	g.Donated()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-g.process.done:
	case <-t.C:
		g.process.Kill()
	}
	return g.process.Ending()
}
