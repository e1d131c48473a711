// SPDX-License-Identifier: Apache-2.0

// File systems that the host has mounted noexec. Guests' programs are mapped from the
// host's files as they are, and there the host's kernel refuses that.

package container

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
)

// honourNoExec refuses a root file system whose files are on such a file system: none
// of its programs could run, and each would die of a signal. Volumes and directories
// of the host there are noexec for the guest too.
func honourNoExec(c *api.Container, f *launch.ContainerFiles) error {
	for _, file := range slices.Concat(f.Layers, f.Upper) {
		if onNoExec(file) {
			return api.Errorf(api.KindUnsupported, "root file system: %s is on a file system that is mounted noexec, so that no program of the guest could run: choose another place for it (--root, or containerd's root), or mount that one without noexec", file.Name())
		}
	}
	for i := range c.Mounts {
		m := &c.Mounts[i]
		if i < len(f.Volumes) && slices.ContainsFunc(f.Volumes[i], onNoExec) {
			m.NoExec = true
		}
		if m.Host != nil {
			// By name: who makes it lead elsewhere gets the other place's option.
			var st unix.Statfs_t
			m.NoExec = m.NoExec || unix.Statfs(m.Host.Name, &st) == nil && st.Flags&unix.ST_NOEXEC != 0
		}
	}
	return nil
}

func onNoExec(file *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(file.Fd()), &st) == nil && st.Flags&unix.ST_NOEXEC != 0
}
