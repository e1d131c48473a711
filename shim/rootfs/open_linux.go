// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/mkfs"
	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/runtime/api"
)

// Options say how a plan is carried out.
type Options struct {
	// Scratch is an empty directory of the container's, on which things are
	// mounted where nobody sees it.
	Scratch string
	// HostOverlay stacks EROFS layers below the snapshotter's own directory on the
	// host; otherwise what is written there stays with the sandbox.
	HostOverlay bool
}

// Root is an open root file system. Either Layers or Directory is set.
type Root struct {
	// Layers are EROFS images, the lowest first.
	Layers []*os.File
	// Upper is an ext4 image, locked, in whose UpperDirectory goes what is
	// written; nil without one.
	Upper          *os.File
	UpperDirectory string
	// Directory is the root file system itself, opened with O_PATH.
	Directory *os.File
	// ReadOnly says that nothing may be written.
	ReadOnly bool
}

// Open opens what a plan names. The caller closes it.
func Open(ctx context.Context, p *Plan, o Options) (_ *Root, err error) {
	r := &Root{ReadOnly: p.ReadOnly}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	switch {
	case p.Directory != "":
		r.Directory, err = openPath(p.Directory)
		return r, err
	case p.Host != nil:
		r.Directory, err = mountStack(o.Scratch, nil, p.Host, p.ReadOnly)
		return r, err
	case p.Upper != "" && o.HostOverlay:
		r.Directory, err = mountStack(o.Scratch, p.Layers, &Stack{Upper: p.Upper, Work: p.Work}, p.ReadOnly)
		return r, err
	}
	if len(p.Layers) == 0 {
		// An image without layers: there is always something to stand on.
		empty, err := emptyLayer(ctx)
		if err != nil {
			return nil, err
		}
		r.Layers = append(r.Layers, empty)
	}
	for _, path := range p.Layers {
		f, err := device.OpenHost(path, device.ReadOnly)
		if err != nil {
			return nil, fmt.Errorf("open layer: %w", err)
		}
		r.Layers = append(r.Layers, f)
	}
	if p.Volume != nil {
		if r.Upper, err = openVolume(p.Volume); err != nil {
			return nil, err
		}
		r.UpperDirectory = p.Volume.Directory
	}
	return r, nil
}

// Close closes the files. Who has got them has copies.
func (r *Root) Close() {
	for _, f := range append(r.Layers, r.Upper, r.Directory) {
		if f != nil {
			f.Close()
		}
	}
}

// Path leads to Directory, for this process.
func (r *Root) Path() string {
	return "/proc/self/fd/" + strconv.Itoa(int(r.Directory.Fd()))
}

// openVolume opens and locks a volume, and makes it first if it does not exist.
func openVolume(v *Volume) (*os.File, error) {
	d, err := device.OpenFile(v.Path, device.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		if err = format(v); err == nil {
			d, err = device.OpenFile(v.Path, device.ReadWrite)
		}
	}
	switch {
	case errors.Is(err, device.ErrLocked):
		return nil, api.Errorf(api.KindState, "writable layer %s: another container has it: %w", v.Path, err)
	case err != nil:
		return nil, fmt.Errorf("writable layer: %w", err)
	}
	return d.Host(), nil
}

// format makes a volume. It appears whole.
func format(v *Volume) error {
	part := v.Path + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	size := max(v.SizeBytes, mkfs.MinSize)
	d, err := device.CreateFile(part, size)
	if err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	err = mkfs.Format(d, mkfs.Options{Size: size, NoLostFound: true})
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(part, v.Path)
	}
	if err != nil {
		os.Remove(part)
		return fmt.Errorf("format %s: %w", v.Path, err)
	}
	return nil
}

// emptyLayer is an EROFS image with nothing in it, in a file without a name.
func emptyLayer(ctx context.Context) (*os.File, error) {
	fd, err := unix.MemfdCreate("empty-layer", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "empty layer")
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{})
	if err == nil {
		_, err = b.Finish(ctx)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make an empty layer: %w", err)
	}
	return f, nil
}

func openPath(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
