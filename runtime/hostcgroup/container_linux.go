// SPDX-License-Identifier: Apache-2.0

// The cgroup of an OCI container: where its bundle wants it, with the limits
// that the bundle wants, in either version or through systemd.

package hostcgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/cgroups/systemd"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// scopePrefix is what systemd's scopes are named after where a bundle names none.
const scopePrefix = "gvx"

// maxPlacementBytes bounds linux.cgroupsPath: Linux' limit on a path.
const maxPlacementBytes = 4095

// ErrNoSystemd says that systemd is to manage the cgroup and does not run here.
// As with runc that is no reason to go on without: whoever asked for it relies
// on it.
var ErrNoSystemd = errors.New("systemd not running on this host, cannot use systemd cgroups manager")

// Placement says where a container's cgroup is.
type Placement struct {
	// Path is the bundle's linux.cgroupsPath. Absolute, it is below the root of
	// each hierarchy; relative, below the caller's own group (version 1) or
	// beside it (version 2), as runc has it; empty, it is ID there. With Systemd
	// it is slice:prefix:name.
	Path string
	// ID is the container's.
	ID string
	// Systemd has systemd make and manage it.
	Systemd bool
}

// Container is the cgroup of one OCI container. Its host processes are the
// sandbox, and what serves it. A nil Container is that of a host without: all its
// methods do nothing.
//
// Container is safe for concurrent use.
type Container struct {
	mu      sync.Mutex
	manager cgroups.Manager
	// pending are the limits to be set at the first Add: systemd makes no scope
	// without a process.
	pending *cgroups.Resources
}

// CreateContainer makes the cgroup, with missing parents, and sets its limits
// (nil for none). With systemd both happen in the first [Container.Add].
//
// The error wraps [ErrUnavailable] where this host or this user has none to give;
// then a caller may go on without, and should do so unless limits or a path were
// asked for (runc fails then). It is [ErrNoSystemd], or of another kind, where
// what was asked for cannot be had. A group that exists is used as it is, but one with
// processes, or frozen, is refused as by runc: limits would hold for others too, and
// nothing would run.
func CreateContainer(p Placement, r *specs.LinuxResources) (*Container, error) {
	c, err := openContainer(p, r, nil)
	if err != nil {
		return nil, err
	}
	if err := c.usable(); err != nil {
		return nil, api.Errorf(api.KindState, "cgroup %s: %w", p.describe(), err)
	}
	if p.Systemd {
		return c, nil
	}
	existed := c.exists()
	if err := c.manager.Apply(-1); err != nil {
		if !existed {
			_ = c.manager.Destroy()
		}
		return nil, availability("create cgroup "+p.describe(), err)
	}
	if err := c.manager.Set(c.pending); err != nil {
		if !existed {
			_ = c.manager.Destroy()
		}
		return nil, availability("set limits of cgroup "+p.describe(), err)
	}
	c.pending = nil
	return c, nil
}

// Planned are the [Container.Paths] of the group that CreateContainer will make, for
// who wants to find it again whatever happens meanwhile. systemd chooses its own:
// then, and where there are no groups, they are none.
func Planned(p Placement) map[string]string {
	if p.Systemd {
		return nil
	}
	c, err := openContainer(p, nil, nil)
	if err != nil {
		return nil // Creating it tells why.
	}
	return c.Paths()
}

// OpenContainer returns the cgroup that [CreateContainer] made, in the same or in
// another process, from its [Container.Paths].
func OpenContainer(p Placement, paths map[string]string) (*Container, error) {
	if len(paths) == 0 {
		return nil, api.Errorf(api.KindInvalid, "open cgroup %s: no paths recorded", p.describe())
	}
	c, err := openContainer(p, nil, maps.Clone(paths))
	if err != nil {
		return nil, err
	}
	c.pending = nil
	return c, nil
}

func openContainer(p Placement, r *specs.LinuxResources, paths map[string]string) (*Container, error) {
	config, err := p.config()
	if err != nil {
		return nil, err
	}
	if config.Resources, err = resources(r); err != nil {
		return nil, err
	}
	if p.Systemd && !systemd.IsRunningSystemd() {
		return nil, api.Errorf(api.KindUnsupported, "cgroup %s: %w", p.describe(), ErrNoSystemd)
	}
	m, err := manager.NewWithPaths(config, paths)
	if err != nil {
		if errors.Is(err, cgroups.ErrV1NoUnified) {
			return nil, api.Errorf(api.KindUnsupported, "cgroup %s: limits of version 2 (unified) on a host of version 1: %w", p.describe(), err)
		}
		return nil, fmt.Errorf("%w: cgroup %s: %w", ErrUnavailable, p.describe(), err)
	}
	return &Container{manager: m, pending: config.Resources}, nil
}

// config is the library's form of a placement.
func (p *Placement) config() (*cgroups.Cgroup, error) {
	switch {
	case p.ID == "" || strings.ContainsAny(p.ID, "/\x00\n"):
		return nil, api.Errorf(api.KindInvalid, "cgroup of container %q: no id for one", p.ID)
	case len(p.Path) > maxPlacementBytes:
		return nil, api.Errorf(api.KindLimit, "cgroup of container %s: a path of %d bytes, at most %d", p.ID, len(p.Path), maxPlacementBytes)
	case strings.ContainsAny(p.Path, "\x00\n"):
		// A line break would make a second line of /proc/PID/cgroup.
		return nil, api.Errorf(api.KindInvalid, "cgroup of container %s: path %q holds a line break or a zero byte", p.ID, p.Path)
	}
	c := &cgroups.Cgroup{Systemd: p.Systemd, Rootless: os.Geteuid() != 0}
	if !p.Systemd {
		if c.Path = cleanPath(p.Path); c.Path == "" {
			c.Name = p.ID
		}
		return c, nil
	}
	c.ScopePrefix, c.Name = scopePrefix, p.ID
	if p.Path == "" {
		return c, nil
	}
	parts := strings.Split(p.Path, ":")
	if len(parts) != 3 || strings.Contains(parts[1]+parts[2], "/") || parts[2] == "" {
		return nil, api.Errorf(api.KindInvalid, "expected cgroupsPath to be of format \"slice:prefix:name\" for systemd cgroups, got %q instead", p.Path)
	}
	c.Parent, c.ScopePrefix, c.Name = parts[0], parts[1], parts[2]
	return c, nil
}

// cleanPath takes every way up out of a path, absolute or relative.
func cleanPath(p string) string {
	if p == "" {
		return ""
	}
	clean := path.Clean("/" + p)
	if path.IsAbs(p) {
		return clean
	}
	return strings.TrimPrefix(clean, "/")
}

func (p *Placement) describe() string {
	if p.Path != "" {
		return p.Path
	}
	return p.ID
}

// availability sorts errors: what the host refuses wraps ErrUnavailable.
func availability(what string, err error) error {
	switch {
	case errors.Is(err, cgroups.ErrRootless), errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, os.ErrNotExist):
		// A value that the kernel does not take, or a file that it lacks.
		return api.Errorf(api.KindInvalid, "%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Paths are the group's directories: by controller in version 1, under the empty
// name in version 2. Whoever wants to come back keeps them.
func (c *Container) Paths() map[string]string {
	if c == nil {
		return nil
	}
	return maps.Clone(c.manager.GetPaths())
}

// Path is the directory of a controller, "" if there is none; in version 2 it is
// the same for all.
func (c *Container) Path(controller string) string {
	if c == nil {
		return ""
	}
	return c.manager.Path(controller)
}

// Unified says whether this host's hierarchy is that of version 2.
func Unified() bool { return cgroups.IsCgroup2UnifiedMode() }

func (c *Container) exists() bool {
	for _, dir := range c.manager.GetPaths() {
		if _, err := os.Stat(dir); err == nil {
			return true
		}
	}
	return false
}

// usable says why a container cannot have a group that exists.
func (c *Container) usable() error {
	if !c.exists() {
		return nil
	}
	// As runc: of version 1 one hierarchy stands for all. It may go meanwhile.
	if pids, err := c.manager.GetAllPids(); err == nil && len(pids) > 0 {
		return fmt.Errorf("container's cgroup is not empty: %d process(es) found", len(pids))
	}
	if state, err := c.manager.GetFreezerState(); err == nil && state == cgroups.Frozen {
		return errors.New("container's cgroup unexpectedly frozen")
	}
	return nil
}

// AddBelow moves a process into groups below this one that exist: below names their
// paths by controller, or one for all under the empty name. Controllers without a path
// have it in the group itself.
func (c *Container) AddBelow(pid int, below map[string]string) error {
	if c == nil || len(below) == 0 {
		return c.Add(pid)
	}
	if err := c.Add(pid); err != nil {
		return err
	}
	dirs := c.Paths()
	for controller, sub := range below {
		chosen := map[string]string{controller: dirs[controller]}
		switch {
		case controller == "":
			chosen = dirs
		case dirs[controller] == "":
			return api.Errorf(api.KindInvalid, "unknown controller %s in SubCgroupPaths", controller)
		}
		for _, dir := range chosen {
			to := path.Join(dir, sub)
			if to != dir && !strings.HasPrefix(to, dir+"/") {
				return api.Errorf(api.KindInvalid, "bad sub cgroup path: %s", sub)
			}
			if err := cgroups.WriteCgroupProc(to, pid); err != nil {
				return api.Errorf(api.KindInvalid, "error adding pid %d to cgroups: %w", pid, err)
			}
		}
	}
	return nil
}

// Add moves a process into the cgroup. What it forks from then on is in it too.
func (c *Container) Add(pid int) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		if err := c.manager.AddPid("", pid); err != nil {
			return availability(fmt.Sprintf("move process %d into its cgroup", pid), err)
		}
		return nil
	}
	if err := c.manager.Apply(pid); err != nil {
		return availability(fmt.Sprintf("have systemd make a cgroup for process %d", pid), err)
	}
	if err := c.manager.Set(c.pending); err != nil {
		return availability("set limits of a cgroup", err)
	}
	c.pending = nil
	return nil
}

// Update changes limits; what r leaves out stays as it is.
func (c *Container) Update(r *specs.LinuxResources) error {
	if c == nil {
		return nil
	}
	res, err := resources(r)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.manager.Set(res); err != nil {
		return availability("change limits of a cgroup", err)
	}
	return nil
}

// Stats counts what the group's processes use: for `rungv events`, in runc's
// form, and for containerd's metrics.
func (c *Container) Stats() (*cgroups.Stats, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: no usage to read", ErrUnavailable)
	}
	s, err := c.manager.GetStats()
	if err != nil {
		return nil, availability("read usage of a cgroup", err)
	}
	return s, nil
}

// Processes are the host's processes in the group.
func (c *Container) Processes() ([]int, error) {
	if c == nil {
		return nil, nil
	}
	pids, err := c.manager.GetAllPids()
	if err != nil {
		return nil, availability("list processes of a cgroup", err)
	}
	return pids, nil
}

// Remove removes the group and what is below it, once its processes are gone; a
// group that does not exist is none to be removed. Parents stay, as with runc.
func (c *Container) Remove() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.manager.Destroy(); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// AdjustOOMScore sets process.oomScoreAdj. It is a wish: whoever may not lower the
// score below what it was gets an error that wraps [ErrUnavailable].
func AdjustOOMScore(pid, score int) error {
	const lowest, highest = -1000, 1000
	if score < lowest || score > highest {
		return api.Errorf(api.KindInvalid, "process.oomScoreAdj %d: want %d to %d", score, lowest, highest)
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(score)), 0)
	if err != nil {
		return availability(fmt.Sprintf("set the oom score of process %d to %d", pid, score), err)
	}
	return nil
}
