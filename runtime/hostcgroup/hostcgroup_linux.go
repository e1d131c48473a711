// SPDX-License-Identifier: Apache-2.0

// Package hostcgroup puts a sandbox process into a cgroup of the host, where
// the launcher may make one: root, with a hierarchy it can write. It is a
// second line: a sandbox holds its guests to their limits by itself, and the
// host's limit catches what it misses, its own growth included.
//
// It never needs a cgroup: [ErrUnavailable] says that this host or this user
// has none to give, and the caller goes on without. Both hierarchies are known,
// version 1 (one directory per controller, below the launcher's own group) and
// version 2 (one directory, below the hierarchy's root as runc has it, because
// a group with processes cannot have limited children there).
//
// [Group] is for `rungv run`. An OCI bundle instead names its group and its limits
// itself, and engines read what is used there: that is [Container], which leaves
// the files to the cgroup library of runc, so that they are what runc would make.
//
// Formats: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of the kernel.
package hostcgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// namePrefix of every group that this package makes: sweep looks for it.
	namePrefix = "gvx-"
	// parentV2 is the group of version 2 that holds them all.
	parentV2 = "gvx"

	// What a sandbox needs besides its guests' memory: the Sentry's heap and
	// stacks, page tables, buffers; it grows with the guest's.
	overheadBytes   = 64 << 20
	overheadDivisor = 16

	// periodMicros is the period of processor bandwidth, docker's.
	periodMicros = 100_000

	// The kernel needs a moment to let go of a group whose last process has
	// just been killed.
	removeAttempts = 50
	removePause    = 2 * time.Millisecond

	// debrisAge is how old an empty group must be to be nobody's: a launcher
	// puts its process in within milliseconds.
	debrisAge = 10 * time.Second

	// maxLineBytes bounds a line of /proc/self/cgroup and mountinfo.
	maxLineBytes = 64 << 10
)

// ErrUnavailable says that there is no cgroup to be had here.
var ErrUnavailable = errors.New("no writable cgroup")

// Limits are those of one sandbox. Zero is no limit.
type Limits struct {
	// MemoryBytes is the guests' limit; the group's is larger by what the
	// sandbox itself needs.
	MemoryBytes int64
	// CPUMillis is thousandths of a processor.
	CPUMillis int64
}

// Group is one sandbox's cgroup: one directory, or one for each controller.
type Group struct {
	dirs []string
}

// setting is one file of a group and what is written to it.
type setting struct{ file, value string }

// Possible says whether Create can make a group at all, by what costs nothing to
// know.
func Possible(l Limits) bool {
	return (l.MemoryBytes > 0 || l.CPUMillis > 0) && os.Geteuid() == 0
}

// Create makes the group of the sandbox id with its limits, or returns an
// error that wraps [ErrUnavailable] where this host has none to give. Without
// limits it makes none and returns nil. What killed launchers left behind is
// removed on the way.
func Create(id string, l Limits) (*Group, error) {
	if l.MemoryBytes <= 0 && l.CPUMillis <= 0 {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: only root's sandboxes get one", ErrUnavailable)
	}
	h, err := findHierarchies()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	h.sweep(debrisAge)
	g := &Group{}
	for _, c := range h.plan(l) {
		dir := filepath.Join(c.parent, namePrefix+id)
		if err := c.make(dir); err != nil {
			g.Remove()
			return nil, fmt.Errorf("%w: limit sandbox in %s: %w", ErrUnavailable, dir, err)
		}
		g.dirs = append(g.dirs, dir)
	}
	return g, nil
}

// Add moves a process into the group. What it forks from then on is in it too.
func (g *Group) Add(pid int) error {
	if g == nil {
		return nil
	}
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("move sandbox process %d into its cgroup: %w", pid, err)
		}
	}
	return nil
}

// Remove removes the group once its processes are gone.
func (g *Group) Remove() {
	if g == nil {
		return
	}
	for _, dir := range g.dirs {
		for range removeAttempts {
			if err := unix.Rmdir(dir); err == nil || !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(removePause)
		}
	}
}

// sweep removes what launchers that were killed left behind: groups without
// processes, which is what the kernel agrees to remove, that are older than
// age. A younger one may be waiting for its process.
func (h *hierarchies) sweep(age time.Duration) {
	for _, parent := range h.parents() {
		entries, err := os.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), namePrefix) {
				continue
			}
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > age {
				_ = unix.Rmdir(filepath.Join(parent, e.Name()))
			}
		}
	}
}

// hierarchies is what this process sees of the host's cgroups.
type hierarchies struct {
	// v1 maps a controller to the launcher's own group in its hierarchy.
	v1 map[string]string
	// v2 is the root of the unified hierarchy, "" if there is none.
	v2 string
}

// controlled is one directory to be made.
type controlled struct {
	parent   string
	settings []setting
	// enable are the controllers of version 2 to enable on the way down.
	enable []string
	v2Root string
}

// plan says which directories carry l: those of version 1 where the controller
// is there, else the one of version 2.
func (h *hierarchies) plan(l Limits) []controlled {
	var plan []controlled
	unified := controlled{v2Root: h.v2, parent: filepath.Join(h.v2, parentV2)}
	if l.MemoryBytes > 0 {
		limit := strconv.FormatInt(l.MemoryBytes+overheadBytes+l.MemoryBytes/overheadDivisor, 10)
		if own, ok := h.v1["memory"]; ok {
			plan = append(plan, controlled{parent: own, settings: []setting{{"memory.limit_in_bytes", limit}}})
		} else {
			unified.enable = append(unified.enable, "+memory")
			unified.settings = append(unified.settings, setting{"memory.max", limit})
		}
	}
	if l.CPUMillis > 0 {
		quota := strconv.FormatInt(l.CPUMillis*periodMicros/1000, 10)
		period := strconv.Itoa(periodMicros)
		if own, ok := h.v1["cpu"]; ok {
			plan = append(plan, controlled{parent: own, settings: []setting{{"cpu.cfs_period_us", period}, {"cpu.cfs_quota_us", quota}}})
		} else {
			unified.enable = append(unified.enable, "+cpu")
			unified.settings = append(unified.settings, setting{"cpu.max", quota + " " + period})
		}
	}
	if len(unified.settings) > 0 && h.v2 != "" {
		plan = append(plan, unified)
	}
	return plan
}

// make makes the directory with its settings, or nothing.
func (c *controlled) make(dir string) error {
	if err := c.enableParent(); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, s := range c.settings {
		if err := os.WriteFile(filepath.Join(dir, s.file), []byte(s.value), 0); err != nil {
			_ = unix.Rmdir(dir)
			return err
		}
	}
	return nil
}

// enableParent makes the parent of version 2 and lets it have limited children.
func (c *controlled) enableParent() error {
	if len(c.enable) == 0 {
		return nil
	}
	if err := os.Mkdir(c.parent, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for _, dir := range []string{c.v2Root, c.parent} {
		for _, e := range c.enable {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(e), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// parents are the directories in which groups may have been left.
func (h *hierarchies) parents() []string {
	var dirs []string
	for _, controller := range []string{"memory", "cpu"} {
		if own, ok := h.v1[controller]; ok {
			dirs = append(dirs, own)
		}
	}
	if h.v2 != "" {
		dirs = append(dirs, filepath.Join(h.v2, parentV2))
	}
	return dirs
}

// findHierarchies reads where the cgroup file systems are mounted and which
// groups this process is in.
func findHierarchies() (*hierarchies, error) {
	own, err := readFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseHierarchies(own, mounts), nil
}

func readFile(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, maxLineBytes)
	for sc.Scan() {
		lines = append(lines, sc.Text())
	}
	return lines, sc.Err()
}

// parseHierarchies joins /proc/self/cgroup (cgroups(7): ID:CONTROLLERS:PATH)
// and /proc/self/mountinfo (proc_pid_mountinfo(5)).
func parseHierarchies(own, mounts []string) *hierarchies {
	h := &hierarchies{v1: map[string]string{}}
	paths := map[string]string{}
	for _, line := range own {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			paths[c] = f[2]
		}
	}
	for _, line := range mounts {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		root, mountPoint := left[3], left[4]
		switch right[0] {
		case "cgroup2":
			if h.v2 == "" {
				h.v2 = mountPoint
			}
		case "cgroup":
			for _, c := range strings.Split(right[2], ",") {
				path, member := paths[c]
				below, err := filepath.Rel(root, path)
				if !member || err != nil || strings.HasPrefix(below, "..") {
					continue
				}
				h.v1[c] = filepath.Join(mountPoint, below)
			}
		}
	}
	return h
}
