// SPDX-License-Identifier: Apache-2.0

// Files of a running sandbox. A process inside of it, started for each call,
// does the work: links lead nowhere but into the sandbox.

package gvx

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"z.gfire.dev/gvx/runtime/treecopy"
)

// MaxReadFileBytes bounds what ReadFile returns: it is all in memory.
const MaxReadFileBytes = 1 << 30

const (
	// maxListBytes and maxListFiles bound what a directory's listing takes in
	// memory: the guest may write it, and short lines become long values.
	maxListBytes = 1 << 30
	maxListFiles = 4 << 20
)

// FileInfo describes a file of a sandbox.
type FileInfo struct {
	// Name is its last element.
	Name string
	// Mode has type and permissions.
	Mode      fs.FileMode
	SizeBytes int64
	UID, GID  uint32
	ModTime   time.Time
	// Target is where a symbolic link points to.
	Target string
}

// checkPath refuses what is no absolute path.
func checkPath(op, name string) error {
	if !path.IsAbs(name) || strings.IndexByte(name, 0) >= 0 {
		return errorf(KindInvalid, op, "path %q: want an absolute one", name)
	}
	return nil
}

// ReadFile returns what is in a file, of MaxReadFileBytes at most.
func (sb *Sandbox) ReadFile(ctx context.Context, name string) ([]byte, error) {
	op := "read file " + name
	var data []byte
	found := false
	err := sb.copyOut(ctx, op, name, func(t *tar.Reader) error {
		h, err := t.Next()
		switch {
		case err != nil:
			return err
		case h.Typeflag != tar.TypeReg:
			return errorf(KindInvalid, op, "it is not a regular file")
		case h.Size > MaxReadFileBytes:
			return errorf(KindLimit, op, "it has %d bytes, at most %d: use CopyOut", h.Size, MaxReadFileBytes)
		}
		found = true
		data, err = io.ReadAll(t)
		return err
	})
	if err == nil && !found {
		err = errorf(KindInternal, op, "the sandbox sent nothing")
	}
	return data, err
}

// WriteFile makes a file with the given permissions, owned by root, or replaces
// what one holds. Its directory must exist.
func (sb *Sandbox) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	op := "write file " + name
	if err := checkPath(op, name); err != nil {
		return err
	}
	var archive bytes.Buffer
	t := tar.NewWriter(&archive)
	h := tar.Header{Typeflag: tar.TypeReg, Name: path.Base(name), Mode: int64(mode.Perm()), Size: int64(len(data)), ModTime: time.Now()}
	if err := t.WriteHeader(&h); err != nil {
		return errorf(KindInvalid, op, "%w", err)
	}
	_, _ = t.Write(data)
	_ = t.Close()
	return sb.copyIn(ctx, op, path.Dir(name), &archive)
}

// CopyIn lays out a tar archive in a directory, which must exist. A Read of the
// archive that takes long may go on for a while after an error.
func (sb *Sandbox) CopyIn(ctx context.Context, dir string, archive io.Reader) error {
	return sb.copyIn(ctx, "copy into "+dir, dir, archive)
}

func (sb *Sandbox) copyIn(ctx context.Context, op, dir string, archive io.Reader) error {
	if err := sb.ready(op, dir); err != nil {
		return err
	}
	return sb.runtime.run(ctx, op, streams{in: archive}, "cp", "--archive", "-", sb.id+":"+dir)
}

// CopyOut writes a file or directory to w as a tar archive, in which it has its
// own name.
func (sb *Sandbox) CopyOut(ctx context.Context, name string, w io.Writer) error {
	op := "copy out " + name
	if err := sb.ready(op, name); err != nil {
		return err
	}
	return sb.runtime.run(ctx, op, streams{out: w}, "cp", "--archive", sb.id+":"+name, "-")
}

// copyOut reads the archive of a file; what read leaves is thrown away.
func (sb *Sandbox) copyOut(ctx context.Context, op, name string, read func(*tar.Reader) error) error {
	if err := sb.ready(op, name); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := sb.runtime.run(ctx, op, streams{out: w}, "cp", "--follow-link", sb.id+":"+name, "-")
		w.CloseWithError(errors.Join(err, io.EOF))
		done <- err
	}()
	readErr := read(tar.NewReader(r))
	if readErr != nil {
		cancel() // It may be large.
	}
	_, _ = io.Copy(io.Discard, r)
	err := <-done
	var typed *Error
	switch {
	case errors.As(readErr, &typed):
		return typed
	case err != nil:
		return err
	case readErr != nil:
		return errorf(KindInternal, op, "the sandbox sent no archive: %w", readErr)
	}
	return nil
}

// Stat describes the file at name; a symbolic link is described itself.
func (sb *Sandbox) Stat(ctx context.Context, name string) (FileInfo, error) {
	op := "stat " + name
	list, err := sb.files(ctx, op, treecopy.DoStat, name)
	if err == nil && len(list) != 1 {
		err = errorf(KindInternal, op, "the sandbox described %d files", len(list))
	}
	if err != nil {
		return FileInfo{}, err
	}
	return list[0], nil
}

// ReadDir describes the files in a directory, in no order.
func (sb *Sandbox) ReadDir(ctx context.Context, name string) ([]FileInfo, error) {
	return sb.files(ctx, "list directory "+name, treecopy.DoList, name)
}

// RemoveAll removes a file or tree. One that is not there is no error.
func (sb *Sandbox) RemoveAll(ctx context.Context, name string) error {
	_, err := sb.files(ctx, "remove "+name, treecopy.DoRemove, name)
	return err
}

// MkdirAll makes a directory and those above it, with mode 0755.
func (sb *Sandbox) MkdirAll(ctx context.Context, name string) error {
	_, err := sb.files(ctx, "make directory "+name, treecopy.DoMkdir, name)
	return err
}

// files carries out a job and returns the files it describes.
func (sb *Sandbox) files(ctx context.Context, op string, do treecopy.Do, name string) ([]FileInfo, error) {
	if err := sb.ready(op, name); err != nil {
		return nil, err
	}
	out := boundedBuffer{max: maxListBytes}
	err := sb.runtime.run(ctx, op, streams{out: &out}, "files", string(do), sb.id, name)
	if out.over {
		err = errorf(KindLimit, op, "its description takes more than %d bytes", maxListBytes)
	}
	if err != nil {
		return nil, err
	}
	var list []FileInfo
	for lines := json.NewDecoder(&out.b); ; {
		var e treecopy.Entry
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil || bytes.ContainsAny(e.Name, "/\x00") && do == treecopy.DoList || e.Size < 0 {
			return nil, errorf(KindInternal, op, "the sandbox described no file (%v)", err)
		}
		if len(list) == maxListFiles {
			return nil, errorf(KindLimit, op, "more than %d files", maxListFiles)
		}
		list = append(list, FileInfo{Name: string(e.Name), Mode: e.Mode, SizeBytes: e.Size, UID: e.UID, GID: e.GID,
			ModTime: e.Time, Target: string(e.Target)})
	}
}

// ready checks a path, and that the guest runs.
func (sb *Sandbox) ready(op, name string) error {
	if err := checkPath(op, name); err != nil {
		return err
	}
	return sb.alive(op)
}
