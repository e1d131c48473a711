// SPDX-License-Identifier: Apache-2.0

// What a bundle's container has open: its root, volumes, directories of the host
// and streams.

package container

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/guestinit"
	"z.gfire.dev/gvx/runtime/hooks"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/state"
)

// open opens all that the container gets. What it returns is closed by
// [Task.donated] and [Task.finish].
func (t *Task) open(oci *convert.OCI) (*launch.ContainerFiles, error) {
	files := &launch.ContainerFiles{}
	for _, step := range []func(*convert.OCI, *launch.ContainerFiles) error{
		t.openRootfs, t.openVolumes, t.openTrees, t.openStartHooks, t.openIdle, t.openStreams,
	} {
		if err := step(oci, files); err != nil {
			return nil, err
		}
	}
	return files, honourNoExec(oci.Container, files)
}

// openRootfs adds a root of images.
func (t *Task) openRootfs(oci *convert.OCI, files *launch.ContainerFiles) error {
	root := t.o.Rootfs
	if root == nil && oci.PrivateRoot {
		return t.openRootUpper(&oci.Container.Rootfs, files)
	}
	if root == nil {
		return nil
	}
	r := &oci.Container.Rootfs
	r.ReadOnly = r.ReadOnly || root.ReadOnly
	if root.Directory != nil {
		r.Host = &api.HostTree{FD: api.NoFD, Name: root.Directory.Name()}
		return nil
	}
	for i, f := range root.Layers {
		r.Layers = append(r.Layers, api.Layer{Format: "erofs", DiffID: root.LayerNames[i]})
		files.Layers = append(files.Layers, f)
	}
	if root.Upper != nil {
		r.Upper = &api.Volume{Durability: root.Durability, Name: root.Upper.Name()}
		r.UpperDirectory, r.KeepUpper = root.UpperDirectory, root.KeepUpper
		files.Upper = []*os.File{root.Upper}
		return nil
	}
	return t.openRootUpper(r, files)
}

// openRootUpper makes a writable layer that goes with the container.
func (t *Task) openRootUpper(root *api.Rootfs, files *launch.ContainerFiles) error {
	if err := t.r.openUpper(root, files, 0); err != nil {
		return err
	}
	for _, f := range files.Upper {
		t.closeLater(f)
	}
	return nil
}

// openVolumes opens the volumes that annotations and mounts of type ext4 name.
func (t *Task) openVolumes(oci *convert.OCI, files *launch.ContainerFiles) error {
	c := oci.Container
	files.Volumes = make([][]*os.File, len(c.Mounts))
	var mounts []state.Mount
	for k := range oci.Volumes {
		v := &oci.Volumes[k]
		i := slices.IndexFunc(c.Mounts, func(m api.Mount) bool { return m.Volume != nil && m.Target == v.Target })
		if i < 0 {
			return api.Errorf(api.KindInternal, "volume at %s has no mount", v.Target)
		}
		if t.r.Volumes == nil {
			return api.Errorf(api.KindUnsupported, "volume at %s: no place for volumes is known", v.Target)
		}
		o, err := t.r.Volumes.Open(v)
		if err != nil {
			return err
		}
		t.volumes = append(t.volumes, o)
		if err := t.checkJoining(o.Files); err != nil {
			return fmt.Errorf("volume %s: %w", o.Title(), err)
		}
		files.Volumes[i] = o.Files
		nameVolume(&c.Mounts[i], o)
		mounts = append(mounts, state.Mount{
			Name: o.Name, Source: o.Path, Files: o.Paths, Target: v.Target, ReadOnly: v.ReadOnly, Clone: v.Clone != "",
		})
	}
	if len(mounts) == 0 {
		return nil
	}
	return t.handle.Update(func(rec *state.Record) error {
		rec.Mounts = mounts
		return nil
	})
}

// checkJoining refuses what a sandbox that runs already cannot open: it may not ask
// a block device for its size any more.
func (t *Task) checkJoining(files []*os.File) error {
	if t.sandbox == nil {
		return nil
	}
	for _, f := range files {
		st, err := f.Stat()
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return api.Errorf(api.KindUnsupported, "%s is no regular file: a container that joins a sandbox has volumes in files only", f.Name())
		}
	}
	return nil
}

// openTrees starts a gofer for the directories and files of the host.
func (t *Task) openTrees(oci *convert.OCI, files *launch.ContainerFiles) error {
	c := oci.Container
	var err error
	trees := treesOf(c)
	if root := t.o.Rootfs; root != nil && root.Directory != nil {
		trees[0].opened = root.Directory
	}
	t.gofer, err = startGofer(trees, &launch.GoferConfig{Log: t.log.File(), LogLevel: t.r.LogLevel})
	if err != nil || t.gofer == nil {
		return err
	}
	if t.group != nil && !t.o.Self {
		if err := t.group.Add(t.gofer.PID()); err != nil {
			return err
		}
	}
	donateTrees(c, files, t.gofer)
	return nil
}

// openStartHooks has the guest's own first process run the hooks of the start.
func (t *Task) openStartHooks(oci *convert.OCI, files *launch.ContainerFiles) error {
	list := hooks.Of(t.spec.Hooks, hooks.StartContainer)
	if len(list) == 0 {
		return nil
	}
	rec := t.handle.Record()
	st := taskState(&rec)
	st.Pid = 1
	var err error
	if oci.Container.StartHooks, err = hooks.Argument(st.State, list); err != nil {
		return err
	}
	files.Init, err = os.Open("/proc/self/exe")
	t.closeLater(files.Init)
	if err != nil {
		return fmt.Errorf("open the program that runs startContainer hooks: %w", err)
	}
	return nil
}

// openIdle makes the program of a sandbox that only others have a use for.
func (t *Task) openIdle(_ *convert.OCI, files *launch.ContainerFiles) error {
	if !t.o.Idle {
		return nil
	}
	var err error
	if files.Init, err = reaperFile(); err != nil {
		return fmt.Errorf("make the sandbox's first program: %w", err)
	}
	t.closeLater(files.Init)
	return nil
}

// reaperFile is [guestinit.Reaper] in a file that nobody can change.
func reaperFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("gvx-reaper", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "gvx-reaper")
	defer f.Close()
	if _, err := f.Write(guestinit.Reaper()); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, os.NewSyscallError("seal a memory file", err)
	}
	// Only a descriptor that never could write may map such a file as shared.
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// openStreams finds the streams that are donated.
func (t *Task) openStreams(oci *convert.OCI, files *launch.ContainerFiles) error {
	s, err := newTaskStreams(oci.Container.Process.Terminal, t.o.Stdin, t.o.Stdout, t.o.Stderr)
	if err != nil {
		return err
	}
	t.streams = s
	if size := t.spec.Process.ConsoleSize; size != nil && oci.Container.Process.Terminal {
		w := unix.Winsize{Row: uint16(min(size.Height, 1<<16-1)), Col: uint16(min(size.Width, 1<<16-1))}
		_ = withFD(t.o.Stdin, func(fd uintptr) error { return unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &w) })
	}
	if t.sandbox != nil {
		// Pipes that copy have to be told: a sandbox that runs takes none that block.
		if _, err := s.donation(oci.Container.Process.Terminal); err != nil {
			return err
		}
	}
	files.Stdin, files.Stdout, files.Stderr = s.guest[0], s.guest[1], s.guest[2]
	if t.extras, err = newTaskExtras(t.o.Extra); err != nil {
		return err
	}
	files.Extra, oci.Container.Process.ExtraFDs = t.extras.files(), t.extras.names()
	return nil
}

// closeLater closes a file once it has been donated.
func (t *Task) closeLater(f *os.File) {
	if f != nil {
		t.opened = append(t.opened, f)
	}
}
