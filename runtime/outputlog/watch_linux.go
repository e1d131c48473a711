// SPDX-License-Identifier: Apache-2.0

package outputlog

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watcher says when files of a directory change.
type watcher struct {
	file *os.File
	c    chan struct{}
}

func watch(dir string) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("follow the guest's log: %w", os.NewSyscallError("inotify_init1", err))
	}
	file := os.NewFile(uintptr(fd), "inotify")
	const events = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		file.Close()
		return nil, fmt.Errorf("follow the guest's log in %s: %w", dir, os.NewSyscallError("inotify_add_watch", err))
	}
	w := &watcher{file: file, c: make(chan struct{}, 1)}
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := file.Read(buf); err != nil {
				return
			}
			select {
			case w.c <- struct{}{}:
			default:
			}
		}
	}()
	return w, nil
}

func (w *watcher) changed() <-chan struct{} { return w.c }

func (w *watcher) close() { w.file.Close() }
