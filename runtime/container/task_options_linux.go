// SPDX-License-Identifier: Apache-2.0

// Containers of OCI bundles: what is asked for.

package container

import (
	"os"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/netns"
)

// TaskOptions describe a container of an OCI bundle.
type TaskOptions struct {
	// ID is what its engine calls it.
	ID string
	// Bundle is its document and directory.
	Bundle *bundle.Bundle
	// Systemd has systemd make the host's cgroup.
	Systemd bool
	// HostNetwork lets a bundle without a network namespace have the host's network.
	HostNetwork bool
	// Self says that this process is there for the container alone: it is the one
	// that the world sees as the container's, and lives in its cgroup. Otherwise
	// the sandbox process is.
	Self bool
	// Outside is the network namespace of whoever asked for the container, where
	// the bundle's hooks for the runtime run; nil for this process'.
	Outside *netns.Namespace
	// Sandbox is the container, of this process too, whose sandbox this one is to
	// join; nil for one of its own, unless the bundle's annotations name the
	// sandbox of another process' container.
	Sandbox *Task
	// Idle makes a sandbox in which nothing of the bundle runs, for others to join:
	// its first process is [guestinit.Reaper], its root is empty.
	Idle bool
	// Rootfs are files for the root in place of the bundle's directory; nil for
	// that.
	Rootfs *TaskRootfs
	// Stdin, Stdout and Stderr are the streams, nil for /dev/null. They stay the
	// caller's. Where the bundle wants a terminal, all three are the same, its
	// replica side.
	Stdin, Stdout, Stderr *os.File
	// Extra are the process' descriptors from 3 on, which are taken over.
	Extra []*os.File
	// Note, if not nil, is told of hooks that fail where that is no error, and of
	// what of the bundle has no meaning here.
	Note func(format string, args ...any)
}

// TaskRootfs is a root file system of images.
type TaskRootfs struct {
	// Layers are EROFS images, the lowest first, with names for messages.
	Layers     []*os.File
	LayerNames []string
	// Upper is an ext4 image, locked, that takes what is written; nil keeps it in
	// an unnamed file. UpperDirectory, KeepUpper and Durability are as in
	// [api.Rootfs] and [api.Volume].
	Upper          *os.File
	UpperDirectory string
	KeepUpper      bool
	Durability     api.Durability
	// Directory is the root itself in place of Layers, opened with O_PATH.
	Directory *os.File
	// ReadOnly says that nothing can be written.
	ReadOnly bool
}
