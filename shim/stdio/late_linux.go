// SPDX-License-Identifier: Apache-2.0

// Readers that come late. containerd opens a fifo beside the start of what writes to
// it, and does not wait: a short process may have ended before. runc's shim waits for
// the reader before it starts a process. Here a process starts at once, and the fifo
// keeps a writer until its reader has come: without one its bytes would be lost, and
// the reader would wait for a writer for ever.

package stdio

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/launch"
)

// A reader that is late comes within moments, one that is started again within
// seconds: how long to wait between looks, at first and at most.
const (
	firstLook = 5 * time.Millisecond
	rareLook  = 500 * time.Millisecond
)

// letGo gives up the shim's end of a fifo, which keeps a writer until somebody reads.
func (s *Set) letGo(f *os.File) {
	writer, err := writerOf(f)
	// A child that has not become its program yet has a copy, which reads, too.
	syscall.ForkLock.RLock()
	f.Close()
	sure := !launch.Forking()
	syscall.ForkLock.RUnlock()
	if err != nil {
		return // It is closed already, or there is no descriptor left to wait with.
	}
	if sure && hasReader(writer) {
		writer.Close()
		return
	}
	s.late.Go(func() {
		defer writer.Close()
		for wait := firstLook; launch.Forking() || !hasReader(writer); wait = min(2*wait, rareLook) {
			select {
			case <-s.closing:
				if time.Now().After(s.giveUp) || unread(writer) == 0 {
					return
				}
				time.Sleep(firstLook)
			case <-time.After(wait):
			}
		}
	})
}

// writerOf opens the fifo behind a descriptor for writing only.
func writerOf(f *os.File) (writer *os.File, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	if controlErr := raw.Control(func(fd uintptr) {
		writer, err = openFIFO(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY)
	}); controlErr != nil {
		return nil, controlErr
	}
	return writer, err
}

// hasReader says whether anybody has the other end of a pipe.
func hasReader(writer *os.File) bool {
	poll := []unix.PollFd{{Fd: int32(writer.Fd())}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLERR == 0
}

// unread is how many bytes a pipe holds.
func unread(writer *os.File) int {
	n, err := unix.IoctlGetInt(int(writer.Fd()), unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// lateOutput is a fifo that is copied to.
type lateOutput struct {
	*os.File
	set *Set
}

// Close ends what a reader gets.
func (l lateOutput) Close() error {
	l.set.letGo(l.File)
	return nil
}
