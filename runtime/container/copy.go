// SPDX-License-Identifier: Apache-2.0

// Files into and out of a running container, through a process inside of it.

package container

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/treecopy"
)

const (
	// maxCopyErrorBytes bounds what the container's side says about a failure.
	maxCopyErrorBytes = 4 << 10
	// maxAnnounceBytes bounds the line before a stream.
	maxAnnounceBytes = 64 << 10
)

// CopyIn copies a host's file or directory to dest in a container, with docker's
// rules, and returns how many bytes of stream that took.
func (r *Runner) CopyIn(ctx context.Context, ref, src, dest string, follow, owner bool) (int64, error) {
	real, s, err := treecopy.Find(src, follow)
	if err != nil {
		return 0, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("copy into a container: %w", err)
	}
	defer read.Close()
	counted := &countWriter{w: write}
	packed := make(chan error, 1)
	go func() {
		err := treecopy.Pack(counted, real, ".")
		write.Close()
		packed <- err
	}()
	job := treecopy.Job{Path: dest, Source: s, Owner: owner}
	err = r.copyJob(ctx, ref, &job, read, io.Discard)
	read.Close() // The packer may be blocked.
	if perr := <-packed; perr != nil && err == nil {
		err = perr
	}
	return counted.n, err
}

// CopyStreamIn lays a tar stream out in a directory of a container.
func (r *Runner) CopyStreamIn(ctx context.Context, ref string, in *os.File, dest string, owner bool) error {
	return r.copyJob(ctx, ref, &treecopy.Job{Path: dest, Raw: true, Owner: owner}, in, io.Discard)
}

// CopyStreamOut writes a file or directory of a container to out, as tar.
func (r *Runner) CopyStreamOut(ctx context.Context, ref, src string, out io.Writer, follow bool) error {
	return r.copyJob(ctx, ref, &treecopy.Job{Out: true, Path: src, Follow: follow}, nil, out)
}

// Files carries out a job on files of a container, whose answer goes to out.
func (r *Runner) Files(ctx context.Context, ref string, do treecopy.Do, path string, follow bool, out io.Writer) error {
	return r.copyJob(ctx, ref, &treecopy.Job{Do: do, Path: path, Follow: follow}, nil, out)
}

// CopyOut copies a file or directory of a container to dest on the host, with
// docker's rules, and returns how many bytes of stream that took.
func (r *Runner) CopyOut(ctx context.Context, ref, src, dest string, follow, owner bool, skipped func(name, why string)) (int64, error) {
	read, write := io.Pipe()
	counted := &countWriter{w: write}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unpacked := make(chan error, 1)
	go func() {
		err := unpackOut(read, src, dest, owner, skipped)
		// Whoever packs stops with us.
		read.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		if err != nil {
			cancel()
		}
		unpacked <- err
	}()
	err := r.copyJob(ctx, ref, &treecopy.Job{Out: true, Path: src, Root: ".", Announce: true, Follow: follow}, nil, counted)
	write.CloseWithError(io.EOF)
	uerr := <-unpacked
	if uerr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = uerr
	}
	return counted.n, err
}

// unpackOut lays out what a container sends. Of its own word about the source
// only whether that is a directory counts.
func unpackOut(r io.Reader, src, dest string, owner bool, skipped func(name, why string)) error {
	in := bufio.NewReaderSize(r, maxAnnounceBytes)
	line, err := in.ReadSlice('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		return nil // The container's side says why.
	}
	var told treecopy.Source
	if err == nil {
		err = json.Unmarshal(line, &told)
	}
	if err != nil {
		return api.Errorf(api.KindInternal, "the container's answer is no stream of files: %w", err)
	}
	s := treecopy.Source{Dir: told.Dir, Contents: strings.HasSuffix(src, "/.") || strings.Trim(src, "/") == "", Base: guestBase(src)}
	dir, name, err := treecopy.Resolve(dest, s)
	if err != nil {
		return api.Errorf(api.KindInvalid, "%w", err)
	}
	if err := treecopy.Unpack(in, dir, treecopy.UnpackOptions{Name: name, Owner: owner, Skipped: skipped}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// guestBase is the last element of a guest's path, whatever the host's own
// separators are.
func guestBase(p string) string {
	p = strings.TrimRight(strings.TrimSuffix(p, "/."), "/")
	base := p[strings.LastIndexByte(p, '/')+1:]
	if base == "" || base == "." || base == ".." {
		return "root"
	}
	return base
}

// copyJob runs the container's side of a copy.
func (r *Runner) copyJob(ctx context.Context, ref string, job *treecopy.Job, in *os.File, out io.Writer) error {
	if !strings.HasPrefix(job.Path, "/") {
		job.Path = "/" + job.Path
	}
	rec, err := r.State.Get(ref)
	if err != nil {
		return err
	}
	if rec.State == api.StateStopped {
		return api.Errorf(api.KindState, "container %s has stopped: its files went with its sandbox", rec.Name)
	}
	args, err := job.Args()
	if err != nil {
		return err
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("open the container's side of the copy: %w", err)
	}
	defer program.Close()
	said := &headWriter{left: maxCopyErrorBytes}
	res, err := r.Exec(ctx, rec.ID, ExecOptions{
		Args: args, User: "0:0", Workdir: "/", Privileged: true, Program: program,
		Interactive: in != nil, Stdin: in, Stdout: out, Stderr: said,
	})
	switch {
	case err != nil:
		return err
	case res.Exit.Code == 0:
		return nil
	case res.ContainerEnded:
		return api.Errorf(api.KindState, "copy: container %s has ended meanwhile", rec.Name)
	case res.Exit.OOMKilled:
		return api.Errorf(api.KindLimit, "copy: the container's side was killed by the memory limit of container %s: raise it", rec.Name)
	case treecopy.IsNotFound(res.Exit.Code) && (job.Out || job.Do != ""):
		return api.Errorf(api.KindNotFound, "Could not find the file %s in container %s", job.Path, rec.Name)
	case treecopy.IsNotFound(res.Exit.Code):
		return api.Errorf(api.KindNotFound, "Could not find the directory %s in container %s", job.Path, rec.Name)
	case res.Exit.Signal == signalKill:
		return api.Errorf(api.KindKilled, "copy: the container's side was killed")
	case res.Exit.Signal != 0:
		return api.Errorf(api.KindInternal, "copy: the container's side was killed by signal %d", res.Exit.Signal)
	}
	return api.Errorf(api.KindInvalid, "copy: container %s: %s", rec.Name, control.Clean(strings.TrimSpace(said.String()), maxCopyErrorBytes))
}

// countWriter counts what passes.
type countWriter struct {
	w io.Writer
	n int64
}

func (c *countWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// headWriter keeps the beginning of what is written.
type headWriter struct {
	bytes.Buffer
	left int
}

func (h *headWriter) Write(p []byte) (int, error) {
	n := min(len(p), h.left)
	h.left -= n
	h.Buffer.Write(p[:n])
	return len(p), nil
}
