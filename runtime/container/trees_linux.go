// SPDX-License-Identifier: Apache-2.0

// Directories and files of the host: opened here, served by a gofer of the
// container's own.

package container

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/state"
)

// sourceMode is docker's for a directory that it makes.
const sourceMode = 0o755

// openSources opens what the user wants of the host, and starts its gofer, before
// anything is downloaded.
func (u *run) openSources() error {
	if len(u.o.Binds) == 0 {
		return nil
	}
	var records []state.Mount
	for i := range u.o.Binds {
		b := &u.o.Binds[i]
		if b.Create {
			if err := makeSource(b); err != nil {
				return err
			}
		}
		records = append(records, state.Mount{Type: state.MountBind, Source: b.Source, Target: b.Target, ReadOnly: b.ReadOnly, Propagation: string(b.Propagation)})
	}
	// In the order of the spec's, which is made later.
	mounts, err := convert.Mounts(&u.o.Options)
	if err != nil {
		return err
	}
	u.sources = treesOf(&api.Container{Mounts: mounts})
	if u.gofer, err = startGofer(u.sources, &launch.GoferConfig{Log: u.log.File(), LogLevel: u.LogLevel}); err != nil {
		return err
	}
	return u.handle.Update(func(rec *state.Record) error {
		// A container that is started again has them already.
		old := slices.DeleteFunc(rec.Mounts, func(m state.Mount) bool { return m.Type == state.MountBind })
		rec.Mounts = append(old, records...)
		return nil
	})
}

// makeSource makes the directory of a -v that does not exist.
func makeSource(b *convert.BindMount) error {
	if _, err := os.Stat(b.Source); !errors.Is(err, os.ErrNotExist) {
		return nil // it exists, or opening it says what is wrong
	}
	if err := os.MkdirAll(b.Source, sourceMode); err != nil {
		return api.Errorf(hostErrorKind(err), "error while creating mount source path '%s': %w", b.Source, err)
	}
	return nil
}

// hostTree is a tree of a container, with the mount that shows it; nil for its root.
type hostTree struct {
	tree  *api.HostTree
	mount *api.Mount
	// opened is the tree itself, where no name leads there.
	opened *os.File
}

// treesOf are all host trees of a container, in the order in which launch.Config
// wants their sockets.
func treesOf(c *api.Container) []hostTree {
	var trees []hostTree
	if c.Rootfs.Host != nil {
		trees = append(trees, hostTree{tree: c.Rootfs.Host})
	}
	for i := range c.Mounts {
		if h := c.Mounts[i].Host; h != nil {
			trees = append(trees, hostTree{tree: h, mount: &c.Mounts[i]})
		}
	}
	return trees
}

// startGofer opens the trees by their names and starts a gofer for them. It notes in
// each whether it is a file.
func startGofer(trees []hostTree, cfg *launch.GoferConfig) (*launch.Gofer, error) {
	if len(trees) == 0 {
		return nil, nil
	}
	defer func() {
		for i := range cfg.Trees {
			cfg.Trees[i].File.Close()
		}
	}()
	for _, t := range trees {
		o, err := t.open()
		if err != nil {
			return nil, err
		}
		cfg.Trees = append(cfg.Trees, *o)
	}
	return launch.StartGofer(cfg)
}

// open opens a tree's root, links followed: it is the user's own path.
func (t *hostTree) open() (*launch.Tree, error) {
	name := t.tree.Name
	path := name
	if t.opened != nil {
		path = fmt.Sprintf("/proc/self/fd/%d", t.opened.Fd())
	}
	f, err := openPath(path)
	if errors.Is(err, unix.ENOENT) {
		return nil, api.Errorf(api.KindInvalid, "invalid mount config for type \"bind\": bind source path does not exist: %s", name)
	}
	if err != nil {
		return nil, api.Errorf(hostErrorKind(err), "open host directory %s: %w", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("open host directory %s: %w", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFREG:
		t.tree.IsFile = true
	default:
		f.Close()
		return nil, api.Errorf(api.KindUnsupported, "mount %s: neither a directory nor a regular file: devices, pipes and sockets of the host are not for guests", name)
	}
	o := &launch.Tree{File: f, Name: name, Submounts: !t.tree.NonRecursive}
	if m := t.mount; m != nil {
		o.ReadOnly, o.NoSUID = m.ReadOnly, m.NoSUID
		switch m.Propagation {
		case api.PropagationSlave, api.PropagationRSlave, api.PropagationShared, api.PropagationRShared:
			o.Follow = true
		}
	}
	return o, nil
}

// openPath opens a file for its name alone.
func openPath(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// hostErrorKind is what an error of the host's is to the user.
func hostErrorKind(err error) api.Kind {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return api.KindPermission
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return api.KindNoSpace
	}
	return api.KindInvalid
}

// donateTrees gives a gofer's sockets to the files of a container, for all of whose
// trees it was started ([treesOf]).
func donateTrees(c *api.Container, f *launch.ContainerFiles, g *launch.Gofer) {
	if g == nil {
		return
	}
	sockets := g.Sockets()
	if c.Rootfs.Host != nil {
		f.RootTree, sockets = sockets[0], sockets[1:]
	}
	f.Trees = make([]*os.File, len(c.Mounts))
	for i := range c.Mounts {
		if c.Mounts[i].Host != nil {
			f.Trees[i], sockets = sockets[0], sockets[1:]
		}
	}
}

// addSources is donateTrees for trees that were opened before there was a spec.
func (u *run) addSources(cfg *launch.Config) {
	for i, t := range treesOf(&cfg.Spec.Container) {
		t.tree.IsFile = u.sources[i].tree.IsFile
	}
	donateTrees(&cfg.Spec.Container, &cfg.ContainerFiles, u.gofer)
}

// goferDone is closed when a gofer has ended; nil without one.
func goferDone(g *launch.Gofer) <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.Done()
}

// goferFailed says what is wrong with a gofer that has ended: nothing, if its sandbox
// has hung up on it, nor if there is none.
func goferFailed(g *launch.Gofer, log *launch.Log) error {
	if g == nil {
		return nil
	}
	select {
	case <-g.Done():
	default:
		return nil
	}
	e := g.Ending()
	if e.Err == nil && e.Signal == 0 && e.Code == 0 {
		return nil
	}
	err := api.Errorf(api.KindInternal, "the gofer process %d, which serves the container's host directories, ended before its guest did: %v", g.PID(), e)
	if e.Signal == syscall.SIGKILL {
		return err
	}
	return withLastWords(err, log)
}

// endGofer waits for the gofer, after the sandbox.
func (u *run) endGofer() {
	if u.gofer != nil {
		u.gofer.End(endGrace)
		u.gofer = nil
	}
}
