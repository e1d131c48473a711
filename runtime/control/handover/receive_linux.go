// SPDX-License-Identifier: Apache-2.0

// The sandbox process' end.

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// Receiver is the process' end of a handover. It waits in system calls, not in
// the runtime's poller: nothing else has to go on until it returns.
type Receiver struct {
	fd int
}

// NewReceiver takes over an inherited descriptor.
func NewReceiver(fd int) *Receiver { return &Receiver{fd} }

// Close ends the handover.
func (r *Receiver) Close() error { return unix.Close(r.fd) }

// HeadStart receives what the process can begin with.
func (r *Receiver) HeadStart() (*api.HeadStart, error) {
	buf := make([]byte, maxHeadStartBytes)
	kind, body, files, err := r.receive(buf)
	if err == nil && (kind != kindHeadStart || len(files) > 0) {
		closeAll(files)
		err = fmt.Errorf("message %q with %d files instead", kind, len(files))
	}
	h := new(api.HeadStart)
	if err == nil {
		err = json.Unmarshal(body, h)
	}
	if err == nil {
		err = h.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("receive the head start: %w: start sandboxes with rungv", err)
	}
	return h, nil
}

// Spec receives the files and the spec, which then names them by their
// descriptors, close-on-exec all of them. It returns io.EOF when the launcher
// has given up.
func (r *Receiver) Spec() (*api.Sandbox, error) {
	var files []int
	for {
		kind, body, more, err := r.receive(make([]byte, 1))
		if err == nil && (len(body) > 0 || len(more) == 0 || kind != kindFiles && (kind != kindSpec || len(more) > 1)) {
			err = fmt.Errorf("receive files: message %q with %d of them and %d bytes", kind, len(more), len(body))
		}
		if err == nil && kind == kindSpec {
			spec, err := readSpec(more[0], files)
			if err != nil {
				closeAll(files)
			}
			return spec, err
		}
		files = append(files, more...)
		if err == nil && len(files) > maxFiles {
			err = api.Errorf(api.KindLimit, "receive files: more than %d", maxFiles)
		}
		if err != nil {
			closeAll(files)
			return nil, err
		}
	}
}

// receive receives one message of at most len(buf) bytes.
func (r *Receiver) receive(buf []byte) (kind byte, body []byte, files []int, err error) {
	rights := make([]byte, unix.CmsgSpace(batchFiles*4))
	var n, oobn, flags int
	for {
		n, oobn, flags, _, err = unix.Recvmsg(r.fd, buf, rights, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, nil, nil, os.NewSyscallError("recvmsg", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil {
		return 0, nil, nil, fmt.Errorf("parse what came with a message: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // credentials, which nobody asked for
		}
		files = append(files, fds...)
	}
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		closeAll(files)
		return 0, nil, nil, errors.New("a message was cut short: the limit on open files is too low (ulimit -n)")
	case n == 0:
		closeAll(files)
		return 0, nil, nil, io.EOF
	}
	return buf[0], buf[1:n], files, nil
}

// readSpec reads, bounds and validates the document in fd, and closes fd. files
// are what its numbers stand for.
func readSpec(fd int, files []int) (*api.Sandbox, error) {
	f := os.NewFile(uintptr(fd), "spec")
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, api.MaxSpecBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	if len(doc) > api.MaxSpecBytes {
		return nil, api.Errorf(api.KindLimit, "read spec: longer than %d bytes", api.MaxSpecBytes)
	}
	s := new(api.Sandbox)
	if err := json.Unmarshal(doc, s); err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	if err := s.EachFD(func(fd *api.FD) error {
		switch n := int(*fd) - FirstNumber; {
		case *fd == api.NoFD:
		case n < 0 || n >= len(files):
			return api.Errorf(api.KindInvalid, "read spec: file %d of %d", n, len(files))
		default:
			*fd = api.FD(files[n])
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return s, s.Validate()
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
