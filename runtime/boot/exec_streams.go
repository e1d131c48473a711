// SPDX-License-Identifier: Apache-2.0

// Streams of additional processes and files of further containers: descriptors
// that clients hand over on the donated streams socket, each set under an id that
// the client chose.

package boot

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
)

const (
	// maxPendingStreams bounds sets that nobody has asked for yet.
	maxPendingStreams = 64
	// maxPendingFiles bounds the descriptors in them: some containers' worth.
	maxPendingFiles = 1024
	// streamsPatience is how long an exec waits for its streams, which the
	// client sent before; and how long a set waits for its exec.
	streamsPatience = 5 * time.Second
	// streamsStay is when a set goes at the latest: whoever has the other end of a
	// pipe in it waits for that. A client that is held up may still come before.
	streamsStay = time.Minute
)

// streamSets holds what has arrived.
type streamSets struct {
	mu      sync.Mutex
	arrived map[string]streamSet
	// changed is closed, and made anew, when a set arrives.
	changed chan struct{}
}

// streamSet is one client's descriptors.
type streamSet struct {
	fds []int
	at  time.Time
}

func (s streamSet) close() {
	for _, fd := range s.fds {
		unix.Close(fd)
	}
}

// receiveStreams begins to receive. It has to be called before lockdown.
func (sb *sandbox) receiveStreams() error {
	sb.streams.arrived, sb.streams.changed = make(map[string]streamSet), make(chan struct{})
	fd := int(sb.spec.StreamsFD)
	if fd <= 0 {
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("streams socket, descriptor %d: %w", fd, err)
	}
	raw, err := os.NewFile(uintptr(fd), "streams").SyscallConn()
	if err != nil {
		return fmt.Errorf("streams socket, descriptor %d: %w", fd, err)
	}
	go func() {
		id := make([]byte, control.ExecIDBytes)
		rights := make([]byte, unix.CmsgSpace(4*control.MaxFiles))
		for {
			var n, rightsLen, flags int
			var err error
			if werr := raw.Read(func(s uintptr) bool {
				for {
					n, rightsLen, flags, _, err = unix.Recvmsg(int(s), id, rights, unix.MSG_CMSG_CLOEXEC)
					if err != unix.EINTR {
						return err != unix.EAGAIN
					}
				}
			}); werr != nil || err != nil {
				log.Warningf("streams socket: %v, %v", werr, err)
				return
			}
			set := parseRights(rights[:rightsLen])
			if n != control.ExecIDBytes || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 || len(set.fds) == 0 {
				set.close()
				continue
			}
			if to, ok := control.ParseArrival(string(id)); ok {
				sb.arrive(to, set)
				continue
			}
			sb.streams.put(string(id), set)
		}
	}()
	return nil
}

// parseRights returns the descriptors of a control message.
func parseRights(rights []byte) streamSet {
	set := streamSet{at: time.Now()}
	list, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return set
	}
	for i := range list {
		if fds, err := unix.ParseUnixRights(&list[i]); err == nil {
			set.fds = append(set.fds, fds...)
		}
	}
	return set
}

// put keeps a set for its exec. Sets of clients that died in between go when
// their time is up and another comes, or by themselves.
func (s *streamSets) put(id string, set streamSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := len(set.fds)
	for other, old := range s.arrived {
		if time.Since(old.at) > streamsPatience || other == id {
			old.close()
			delete(s.arrived, other)
			continue
		}
		files += len(old.fds)
	}
	if len(s.arrived) >= maxPendingStreams || files > maxPendingFiles {
		set.close()
		return
	}
	s.arrived[id] = set
	time.AfterFunc(streamsStay, func() { s.drop(id, set.at) })
	close(s.changed)
	s.changed = make(chan struct{})
}

// drop closes a set that nobody has asked for, if it arrived then; of the zero time,
// whenever it did.
func (s *streamSets) drop(id string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set, ok := s.arrived[id]; ok && (at.IsZero() || set.at.Equal(at)) {
		set.close()
		delete(s.arrived, id)
	}
}

// takeStreams returns the streams of a process that were sent under an id. The
// caller closes the set, on error too.
func (s *streamSets) takeStreams(ctx context.Context, id string) (streamSet, error) {
	set, err := s.take(ctx, id)
	if err == nil && len(set.fds) > control.MaxExecFiles {
		err = api.Errorf(api.KindLimit, "exec: %d descriptors, at most %d", len(set.fds), control.MaxExecFiles)
	}
	if err == nil {
		err = set.check()
	}
	return set, err
}

// number replaces the numbers of files in a container's spec by those of the
// descriptors that they have here.
func (s streamSet) number(spec *api.Container) error {
	var fds []*api.FD
	_ = spec.EachFD(func(fd *api.FD) error {
		fds = append(fds, fd)
		return nil
	})
	p := &spec.Process
	if p.Terminal && p.StdinFD == p.StdoutFD && p.StdinFD == p.StderrFD {
		// One file, three streams.
		fds = slices.DeleteFunc(fds, func(fd *api.FD) bool { return fd == &p.StdoutFD || fd == &p.StderrFD })
		defer func() { p.StdoutFD, p.StderrFD = p.StdinFD, p.StdinFD }()
	}
	if err := s.numberAll(fds); err != nil {
		return err
	}
	streams := []int{int(p.StdinFD)}
	if !p.Terminal {
		streams = append(streams, int(p.StdoutFD), int(p.StderrFD))
	}
	for _, fd := range p.ExtraFDs {
		streams = append(streams, int(fd))
	}
	return streamSet{fds: streams}.check()
}

// numberAll replaces numbers of the set's files by their descriptors. Each file is
// named exactly once.
func (s streamSet) numberAll(fds []*api.FD) error {
	used := make([]bool, len(s.fds))
	for _, fd := range fds {
		n := int(*fd)
		switch {
		case *fd == api.NoFD:
			continue
		case n < 0 || n >= len(s.fds):
			return fmt.Errorf("file %d of %d is named", n, len(s.fds))
		case used[n]:
			return fmt.Errorf("file %d is named twice", n)
		}
		used[n] = true
		*fd = api.FD(s.fds[n])
	}
	if i := slices.Index(used, false); i >= 0 {
		return fmt.Errorf("file %d is not named", i)
	}
	return nil
}

// take returns the set that was sent under an id.
func (s *streamSets) take(ctx context.Context, id string) (streamSet, error) {
	patience := time.NewTimer(streamsPatience)
	defer patience.Stop()
	for {
		s.mu.Lock()
		set, ok := s.arrived[id]
		delete(s.arrived, id)
		changed := s.changed
		s.mu.Unlock()
		if ok {
			return set, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return streamSet{}, ctx.Err()
		case <-patience.C:
			return streamSet{}, api.Errorf(api.KindInvalid, "exec: its streams have not arrived")
		}
	}
}

// check refuses descriptors of kinds that no client of ours sends, and such that
// block: what the Sentry would ask of them the allow-list denies, and that would
// end the sandbox. A program, which comes last, is a file and never blocks.
func (s streamSet) check() error {
	for _, fd := range s.fds {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("exec: stream: %w", err)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			continue
		case unix.S_IFIFO, unix.S_IFCHR:
		default:
			return api.Errorf(api.KindInvalid, "exec: a stream is neither a pipe nor a terminal nor a file")
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			return api.Errorf(api.KindInvalid, "exec: a stream is in blocking mode")
		}
	}
	return nil
}
