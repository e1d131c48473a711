// SPDX-License-Identifier: Apache-2.0

// The launcher's end.

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// The kernel bounds the descriptors that one user has on their way between
	// processes. Others' arrive within milliseconds, so that waiting helps:
	// up to inFlightPatience, looking every inFlightPause.
	inFlightPause    = 2 * time.Millisecond
	inFlightPatience = 10 * time.Second
)

// Sender is the launcher's end of a handover.
type Sender struct {
	socket *os.File
}

// Pair makes a handover. far is for the process, as a descriptor that it
// inherits; the caller closes it.
func Pair() (s *Sender, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket for the handover: %w", err)
	}
	return &Sender{os.NewFile(uintptr(fds[0]), "handover")}, os.NewFile(uintptr(fds[1]), "handover"), nil
}

// Close ends the handover. A process that has no spec yet ends too.
func (s *Sender) Close() { s.socket.Close() }

// HeadStart sends what the process can begin with.
func (s *Sender) HeadStart(h *api.HeadStart) error {
	if err := h.Validate(); err != nil {
		return err
	}
	doc, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode the head start: %w", err)
	}
	return s.send(append([]byte{kindHeadStart}, doc...))
}

// Spec sends the files, in the order of their numbers, and then the spec.
func (s *Sender) Spec(spec *api.Sandbox, files []*os.File) error {
	if len(files) > maxFiles {
		return api.Errorf(api.KindLimit, "hand over %d files, at most %d: use fewer volumes", len(files), maxFiles)
	}
	doc, err := specFile(spec)
	if err != nil {
		return err
	}
	defer doc.Close()
	for batch := range slices.Chunk(files, batchFiles) {
		if err := s.send([]byte{kindFiles}, batch...); err != nil {
			return err
		}
	}
	return s.send([]byte{kindSpec}, doc)
}

// send sends one message.
func (s *Sender) send(body []byte, files ...*os.File) error {
	return SendFiles(int(s.socket.Fd()), body, files)
}

// SendFiles sends a message with files on a socket that waits for room. The files
// keep their mode: one that does not block stays so.
func SendFiles(socket int, body []byte, files []*os.File) error {
	fail := func(err error) error { return fmt.Errorf("hand over %d files: %w", len(files), err) }
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			raw, err := f.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
			}
			if err != nil {
				return fail(err)
			}
		}
		rights = unix.UnixRights(fds...)
	}
	defer runtime.KeepAlive(files)
	for begun := time.Now(); ; time.Sleep(inFlightPause) {
		err := unix.Sendmsg(socket, body, rights, nil, unix.MSG_NOSIGNAL)
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ETOOMANYREFS) && time.Since(begun) < inFlightPatience {
			continue
		}
		return fail(err)
	}
}

// specFile returns the spec as a sealed file.
func specFile(s *api.Sandbox) (*os.File, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	doc, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the spec: %w", err)
	}
	if len(doc) > api.MaxSpecBytes {
		return nil, api.Errorf(api.KindLimit, "the spec is %d bytes, at most %d: shorten arguments, environment or files", len(doc), api.MaxSpecBytes)
	}
	return SealedFile("gvx-spec", doc)
}

// SealedFile returns a document as a memory file that nobody can change any more,
// to be read from its beginning.
func SealedFile(name string, doc []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create the memory file %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	// At an offset of its own: the reader starts at zero.
	if _, err := f.WriteAt(doc, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("write the memory file %s: %w", name, err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the memory file %s: %w", name, err)
	}
	return f, nil
}
