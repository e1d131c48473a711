// SPDX-License-Identifier: Apache-2.0

// Hearing of the host's out-of-memory killer at work in a cgroup.

package hostcgroup

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memoryEvents is where each version counts its kills, under "oom_kill".
const (
	memoryEventsV1 = "memory.oom_control"
	memoryEventsV2 = "memory.events"
)

// Version 1 tells of a shortage just before it kills: the counter follows within
// this time, or nothing was killed.
const (
	killPatience = 2 * time.Second
	killPause    = 5 * time.Millisecond
)

// inotifyBytes holds a few events of files without names.
const inotifyBytes = 16 * unix.SizeofInotifyEvent

// OOMKills counts the processes of the group that the host has killed for want of
// memory.
func (c *Container) OOMKills() (uint64, error) {
	dir, file, err := c.memoryEvents()
	if err != nil {
		return 0, err
	}
	return readOOMKills(filepath.Join(dir, file))
}

// memoryEvents names the file that counts.
func (c *Container) memoryEvents() (dir, file string, err error) {
	if c == nil {
		return "", "", fmt.Errorf("%w: no memory events", ErrUnavailable)
	}
	dir, file = c.manager.Path("memory"), memoryEventsV1
	if Unified() {
		file = memoryEventsV2
	}
	if dir == "" {
		return "", "", fmt.Errorf("%w: no memory controller", ErrUnavailable)
	}
	return dir, file, nil
}

// readOOMKills reads a file of lines NAME VALUE.
func readOOMKills(name string) (uint64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, availability("count kills for want of memory", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if value, ok := strings.CutPrefix(sc.Text(), "oom_kill "); ok {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("count kills for want of memory: %s: %w", name, err)
			}
			return n, nil
		}
	}
	if err := sc.Err(); err != nil {
		return 0, fmt.Errorf("count kills for want of memory: %w", err)
	}
	return 0, fmt.Errorf("%w: %s counts no kills", ErrUnavailable, name)
}

// WatchOOM returns a channel that delivers when the host has killed processes of
// the group for want of memory, kills in quick succession once. It is closed when
// the group is gone or ctx has ended.
func (c *Container) WatchOOM(ctx context.Context) (<-chan struct{}, error) {
	dir, file, err := c.memoryEvents()
	if err != nil {
		return nil, err
	}
	var source *os.File
	if Unified() {
		source, err = watchEventsV2(dir)
	} else {
		source, err = watchEventsV1(dir)
	}
	if err != nil {
		return nil, availability("watch for want of memory", err)
	}
	before, err := readOOMKills(filepath.Join(dir, file))
	if err != nil {
		source.Close()
		return nil, err
	}
	killed := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { source.Close() })
	go func() {
		defer close(killed)
		defer source.Close()
		defer stop()
		buf := make([]byte, inotifyBytes)
		for {
			if _, err := source.Read(buf); err != nil {
				return
			}
			now, err := killsAfter(filepath.Join(dir, file), before)
			if err != nil {
				return // The group is gone: that is an event too.
			}
			if now > before {
				before = now
				select {
				case killed <- struct{}{}:
				default:
				}
			}
			if Unified() && !populated(dir) {
				return // Removal of a group of version 2 is no event.
			}
		}
	}()
	return killed, nil
}

// killsAfter counts the kills after an event, which were before so far.
func killsAfter(file string, before uint64) (uint64, error) {
	for deadline := time.Now().Add(killPatience); ; time.Sleep(killPause) {
		now, err := readOOMKills(file)
		if err != nil || now > before || Unified() || time.Now().After(deadline) {
			return now, err
		}
	}
}

// watchEventsV1 returns an event counter that counts shortages of memory, and the
// group's end.
func watchEventsV1(dir string) (*os.File, error) {
	events, err := os.Open(filepath.Join(dir, memoryEventsV1))
	if err != nil {
		return nil, err
	}
	defer events.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	counter := os.NewFile(uintptr(fd), "oom events")
	order := fmt.Sprintf("%d %d", fd, events.Fd())
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(order), 0); err != nil {
		counter.Close()
		return nil, err
	}
	return counter, nil
}

// watchEventsV2 watches the counters of memory and of processes.
func watchEventsV2(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	watch := os.NewFile(uintptr(fd), "memory events")
	for _, file := range []string{memoryEventsV2, "cgroup.events"} {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, file), unix.IN_MODIFY); err != nil {
			watch.Close()
			return nil, err
		}
	}
	return watch, nil
}

// populated says whether a group of version 2 has processes.
func populated(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	return err == nil && strings.Contains(string(text), "populated 1")
}
