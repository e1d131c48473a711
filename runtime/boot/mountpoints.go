// SPDX-License-Identifier: Apache-2.0

// What is mounted on: directories and files that are made where they are missing.

package boot

import (
	"fmt"
	"path"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/runtime/api"
)

// makeDirectories makes dir and its parents, mode 0755, where they are missing.
func (m *mounter) makeDirectories(dir string) error {
	err := m.makeDirectoriesAt(dir)
	if caused(linuxerr.ENOENT, err) || caused(linuxerr.EEXIST, err) {
		// A link on the way leads to nothing: what it names is made, as by runc.
		if through, terr := m.through(dir); terr == nil && through != dir {
			err = m.makeDirectoriesAt(through)
		}
	}
	if err != nil {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	return nil
}

// makeDirectoriesAt does it where every link on the way leads somewhere.
func (m *mounter) makeDirectoriesAt(dir string) error {
	if dir == "/" {
		return nil
	}
	opts := vfs.MkdirOptions{Mode: 0o755}
	err := m.vfs.MkdirAllAt(m.ctx, dir, m.root, m.creds, &opts, true)
	if caused(linuxerr.EACCES, err) && m.spec.Rootfs.Host == nil {
		// An image's directories belong to nobody in a user namespace.
		m = m.admin()
		err = m.vfs.MkdirAllAt(m.ctx, dir, m.root, m.creds, &opts, true)
	}
	if caused(linuxerr.EROFS, err) || caused(linuxerr.EPERM, err) {
		// A read-only parent, /sys say, takes a mount point that exists in
		// the Sentry's memory only.
		opts.ForSyntheticMountpoint = true
		err = m.vfs.MkdirAllAt(m.ctx, dir, m.root, m.creds, &opts, true)
	}
	return err
}

// makeFile makes a file to mount another on, if there is none. A symlink in the
// image (/etc/resolv.conf often is one) is followed, as runc does; a dangling one
// is made good by O_CREAT, and by directories on the way to what it names.
func (m *mounter) makeFile(target string, mode linux.FileMode) error {
	// What is there is not opened: it may be a device.
	if is, err := m.existing(target); err != nil || is != 0 && !is.IsDir() {
		return err
	}
	err := m.createFile(target, mode)
	if !linuxerr.Equals(linuxerr.ENOENT, err) {
		return err
	}
	through, terr := m.through(target)
	if terr != nil || through == target {
		return err
	}
	if err := m.makeDirectories(path.Dir(through)); err != nil {
		return err
	}
	return m.createFile(through, mode)
}

func (m *mounter) createFile(name string, mode linux.FileMode) error {
	fd, err := m.vfs.OpenAt(m.ctx, m.creds, m.at(name), &vfs.OpenOptions{
		Flags: linux.O_RDONLY | linux.O_CREAT | linux.O_NONBLOCK,
		Mode:  mode,
	})
	if err != nil {
		return err
	}
	fd.DecRef(m.ctx)
	return nil
}

// through is a path with its links followed within the container's root, also where
// one leads to nothing yet.
func (m *mounter) through(p string) (string, error) {
	done, rest := "/", strings.Split(p, "/")
	for links := 0; len(rest) > 0; {
		next := rest[0]
		rest = rest[1:]
		// ".." of the root is the root.
		name := path.Join(done, next)
		pop := m.at(name)
		pop.FollowFinalSymlink = false
		target, err := m.vfs.ReadlinkAt(m.ctx, m.creds, pop)
		if err != nil || next == "" || next == "." || next == ".." {
			done = name // No link, or nothing.
			continue
		}
		if links++; links > linux.MaxSymlinkTraversals {
			return "", linuxerr.ELOOP
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
		if len(rest) > api.MaxPathBytes {
			return "", linuxerr.ENAMETOOLONG
		}
	}
	return done, nil
}

// ordinaryDirectory refuses a mount point of /proc or /sys that is a link or a file of
// the image's, as runc does: what follows would look for them there.
func (m *mounter) ordinaryDirectory(e *api.Mount) error {
	pop := m.at(e.Target)
	pop.FollowFinalSymlink = false
	st, err := m.vfs.StatAt(m.ctx, m.creds, pop, &vfs.StatOptions{Mask: linux.STATX_TYPE})
	if err == nil && !linux.FileMode(st.Mode).IsDir() {
		return api.Errorf(api.KindInvalid, "filesystem %q must be mounted on ordinary directory, which %s is not", e.Type, e.Target)
	}
	return nil // What is missing is made.
}
