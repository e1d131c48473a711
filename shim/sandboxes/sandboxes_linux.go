// SPDX-License-Identifier: Apache-2.0

// Package sandboxes makes the containers of containerd's tasks by runtime/container,
// in the very process of the shim: no command is run for it.
//
// It owns what a shim's containers have in common: where their records are kept,
// which a later "delete" finds when the shim is gone, and how an administrator's
// options apply. It knows neither events nor containerd's calls, and speaks the
// kinds of error of runtime/api.
package sandboxes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/volumes"
	"z.gfire.dev/gvx/shim/options"
	"z.gfire.dev/gvx/shim/pod"
	"z.gfire.dev/gvx/shim/rootfs"
	"z.gfire.dev/gvx/shim/task"
)

// rootLink is, in a bundle, a link to the folder with the records of its shim's
// containers.
const rootLink = "gvx-root"

// Places are where things are kept on the host.
type Places struct {
	// Run is emptied by a reboot: records and sockets, "/run/gvx/shim".
	Run string
	// Data has room: what guests write without a volume, and volumes by name,
	// "/var/lib/gvx".
	Data string
}

// rootVariable is an environment variable that names another folder for both;
// containerd's configuration can set it for all shims.
const rootVariable = "GVX_ROOT"

// DefaultPlaces are those of the present user.
func DefaultPlaces() Places {
	if root := os.Getenv(rootVariable); filepath.IsAbs(root) {
		return Places{Run: filepath.Join(root, "run"), Data: filepath.Join(root, "data")}
	}
	if os.Geteuid() == 0 {
		return Places{Run: "/run/gvx/shim", Data: "/var/lib/gvx"}
	}
	run, data := os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("XDG_DATA_HOME")
	if run == "" {
		run = filepath.Join(os.TempDir(), fmt.Sprintf("gvx-%d", os.Getuid()))
	}
	if data == "" {
		data = filepath.Join(os.Getenv("HOME"), ".local", "share")
	}
	return Places{Run: filepath.Join(run, "gvx", "shim"), Data: filepath.Join(data, "gvx")}
}

// Runtime is a task.Runtime.
type Runtime struct {
	places Places
	// root is the folder with the records.
	root string
}

var _ task.Runtime = (*Runtime)(nil)

// New returns a runtime for the shim whose first bundle is dir.
func New(places Places, dir string) *Runtime {
	// Short, since folders in there have sockets, and the same for whoever looks
	// for it.
	sum := sha256.Sum256([]byte(dir))
	return &Runtime{places: places, root: filepath.Join(places.Run, hex.EncodeToString(sum[:8]))}
}

// Close removes what the shim's containers had in common.
func (r *Runtime) Close() error {
	root, err := lockRoot(r.root, syscall.LOCK_EX)
	if root == nil {
		return err
	}
	defer root.Close()
	return os.RemoveAll(r.root)
}

// lockRoot locks a folder with records for whoever uses it, LOCK_SH, or removes it,
// LOCK_EX: of the containers of a pod whose shim was killed, each is removed by a process
// of its own, all at once. It returns nil if it is gone. The lock ends with the file.
func lockRoot(path string, how int) (*os.File, error) {
	for {
		root, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var locked, there fs.FileInfo
		if err = syscall.Flock(int(root.Fd()), how); err == nil {
			locked, err = root.Stat()
		}
		if err == nil {
			there, err = os.Stat(path)
		}
		if err == nil && os.SameFile(locked, there) {
			return root, nil
		}
		root.Close()
		// Another one may have removed it meanwhile, or was interrupted.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EINTR) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// runner returns what makes containers, with a task's options.
func runner(places Places, root string, o options.Options) (*container.Runner, error) {
	r := &container.Runner{
		Warn:  func(format string, args ...any) { log.L.Warnf(format, args...) },
		Debug: func(format string, args ...any) { log.L.Debugf(format, args...) },
	}
	var err error
	if r.State, err = state.Open(root); err != nil {
		return nil, err
	}
	r.Volumes = volumes.New(filepath.Join(places.Data, "volumes"), volumes.Options{})
	if o.Debug {
		r.LogLevel = "debug"
	}
	return r, nil
}

// Create makes a container.
func (r *Runtime) Create(ctx context.Context, o task.CreateOptions) (task.Container, error) {
	choices, err := options.Parse(o.OptionsType, o.Options)
	if err != nil {
		return nil, err
	}
	b, err := bundle.Load(o.Bundle)
	if err != nil {
		return nil, err
	}
	if choices.Network == options.NetworkNone {
		withoutNetwork(b.Spec)
	}
	c, err := r.prepare(o.ID, b, choices)
	if err != nil {
		return nil, err
	}
	t := container.TaskOptions{
		ID: o.ID, Bundle: b, Systemd: systemdPath(b.Spec), HostNetwork: choices.HostNetwork, Stdin: o.Streams.Stdin, Stdout: o.Streams.Stdout, Stderr: o.Streams.Stderr,
		Note: func(format string, args ...any) { log.L.WithField("id", o.ID).Infof(format, args...) },
	}
	if o.Sandbox != nil {
		sandbox := o.Sandbox.(*made)
		t.Sandbox = sandbox.task
		if sandbox.files != nil {
			sandbox.files.AddTo(b.Spec)
		}
	}
	root, err := openRoot(ctx, o, choices)
	if err != nil {
		c.logs.close()
		return nil, err
	}
	if root != nil {
		defer root.Close()
		t.Rootfs = taskRootfs(root, choices)
	}
	if c.task, err = c.runner.CreateTask(ctx, t); err != nil {
		c.logs.close()
		return nil, err
	}
	return c, nil
}

// prepare makes what a container needs before its task.
func (r *Runtime) prepare(id string, b *bundle.Bundle, choices options.Options) (*made, error) {
	if err := os.Symlink(r.root, filepath.Join(b.Dir, rootLink)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("note where the container's record is: %w", err)
	}
	c := &made{id: id, spec: b.Spec}
	var err error
	if c.runner, err = runner(r.places, r.root, choices); err != nil {
		return nil, err
	}
	c.logs = logFile(choices, id)
	if c.runner.Log, err = c.logs.open(); err != nil {
		return nil, err
	}
	return c, nil
}

// openRoot opens the root file system that containerd's mounts describe; nil leaves
// it to the bundle.
func openRoot(ctx context.Context, o task.CreateOptions, choices options.Options) (*rootfs.Root, error) {
	if len(o.Mounts) == 0 {
		return nil, nil
	}
	var mounts []rootfs.Mount
	for _, m := range o.Mounts {
		mounts = append(mounts, rootfs.Mount{Type: m.Type, Source: m.Source, Options: m.Options})
	}
	plan, err := rootfs.Parse(mounts)
	if err != nil {
		return nil, err
	}
	scratch := filepath.Join(o.Bundle, "rootfs")
	if err := os.MkdirAll(scratch, 0o711); err != nil {
		return nil, err
	}
	return rootfs.Open(ctx, plan, rootfs.Options{Scratch: scratch, HostOverlay: choices.Overlay == options.OverlayHost})
}

func taskRootfs(r *rootfs.Root, choices options.Options) *container.TaskRootfs {
	t := &container.TaskRootfs{
		Layers: r.Layers, Upper: r.Upper, UpperDirectory: r.UpperDirectory, KeepUpper: r.Upper != nil,
		Durability: api.Durability(choices.Durability), Directory: r.Directory, ReadOnly: r.ReadOnly,
	}
	for _, f := range r.Layers {
		t.LayerNames = append(t.LayerNames, f.Name())
	}
	return t
}

// withoutNetwork has a sandbox make a network namespace of its own, in which is
// nothing, in place of the one that was set up for it.
func withoutNetwork(s *specs.Spec) {
	if s.Linux == nil {
		return
	}
	for i := range s.Linux.Namespaces {
		if n := &s.Linux.Namespaces[i]; n.Type == specs.NetworkNamespace {
			n.Path = ""
		}
	}
}

// systemdPath says that a container's cgroup is named as systemd has it: kubelet's
// cgroup driver then is systemd.
func systemdPath(s *specs.Spec) bool {
	if s.Linux == nil {
		return false
	}
	slice, _, ok := strings.Cut(s.Linux.CgroupsPath, ":")
	return ok && strings.HasSuffix(slice, ".slice")
}

// Remove frees what a container of a shim that is gone has left.
func Remove(ctx context.Context, places Places, bundle, id string) error {
	root, err := os.Readlink(filepath.Join(bundle, rootLink))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // It never came that far.
	}
	if err != nil {
		return err
	}
	if gone, err := removeContainer(ctx, places, root, id); gone || err != nil {
		return err
	}
	locked, err := lockRoot(root, syscall.LOCK_EX)
	if locked == nil {
		return err // Gone, with the last of them.
	}
	defer locked.Close()
	r, err := runner(places, root, options.Default())
	if err != nil {
		return err
	}
	left, err := r.State.List()
	if err == nil && len(left) == 0 {
		err = os.RemoveAll(root)
	}
	return err
}

// removeContainer is Remove without what containers have in common. It says whether that
// is gone.
func removeContainer(ctx context.Context, places Places, root, id string) (gone bool, err error) {
	locked, err := lockRoot(root, syscall.LOCK_SH)
	if locked == nil {
		return true, err
	}
	defer locked.Close()
	r, err := runner(places, root, options.Default())
	if err != nil {
		return false, err
	}
	if err := r.DeleteTask(ctx, id, true); err != nil && api.KindOf(err) != api.KindNotFound {
		return false, err
	}
	return false, nil
}

// made is a container that was made.
type made struct {
	id     string
	spec   *specs.Spec
	runner *container.Runner
	task   *container.Task
	logs   *logs
	// files are those that containers get which join it; nil if it is no pod of the
	// shim's own making.
	files *pod.Files
}

func (c *made) Start(ctx context.Context) error { return c.task.Start(ctx) }

func (c *made) Wait(ctx context.Context) (api.ExitStatus, error) { return c.task.Wait(ctx) }

// SignalForeground implements task.Container.
func (c *made) SignalForeground(ctx context.Context, signal int) error {
	return delivered(c.task.Signal(ctx, signal, control.TargetForeground))
}

func (c *made) Signal(ctx context.Context, signal int, all bool) error {
	target := control.TargetInit
	if all {
		target = control.TargetAll
	}
	return delivered(c.task.Signal(ctx, signal, target))
}

// delivered is how a signal was sent: one that ends the sandbox may end the answer
// to itself.
func delivered(err error) error {
	if errors.Is(err, control.ErrClosed) {
		return nil
	}
	return err
}

func (c *made) Resize(ctx context.Context, rows, columns uint16) error {
	return c.task.Resize(ctx, rows, columns)
}

func (c *made) Pause(ctx context.Context) error { return c.task.Pause(ctx) }

func (c *made) Resume(ctx context.Context) error { return c.task.Resume(ctx) }

func (c *made) Update(ctx context.Context, r *specs.LinuxResources) error {
	return c.task.Update(ctx, r)
}

func (c *made) Stats(ctx context.Context) (task.Stats, error) {
	s, err := c.task.Stats(ctx)
	if err != nil {
		return task.Stats{}, err
	}
	return task.Stats{
		MemoryBytes: s.MemoryBytes, MemoryLimitBytes: s.MemoryLimitBytes, MemoryPeakBytes: s.MemoryPeakBytes,
		CPUUser: s.CPUUser, CPUSystem: s.CPUSystem, CPUThrottled: s.CPUThrottled,
		Pids: s.Pids, PidsLimit: s.PidsLimit, OOMKills: s.OOMKills,
	}, nil
}

func (c *made) Processes(ctx context.Context) ([]int, error) {
	list, err := c.task.Processes(ctx)
	var pids []int
	for i := range list {
		pids = append(pids, list[i].PID)
	}
	return pids, err
}

func (c *made) Exec(ctx context.Context, o task.ExecOptions) (task.Process, error) {
	p, notes, err := convert.OCIProcess(o.Process, c.spec)
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		log.L.WithField("id", c.id).Infof("process %s: %s", o.ID, n)
	}
	x, err := c.task.Exec(ctx, p, o.Streams.Stdin, o.Streams.Stdout, o.Streams.Stderr)
	if err != nil {
		return nil, err
	}
	return process{x}, nil
}

// Delete ends what still runs, and frees everything.
func (c *made) Delete(ctx context.Context) error {
	err := c.task.Signal(ctx, int(syscall.SIGKILL), control.TargetAll)
	if k := api.KindOf(err); err != nil && k != api.KindState && k != api.KindNotFound {
		log.L.WithError(err).WithField("id", c.id).Debug("kill what still runs")
	}
	// An error of Wait is how the sandbox ended; whether it has, the context says.
	if _, _ = c.task.Wait(ctx); ctx.Err() != nil {
		return ctx.Err()
	}
	if err := c.task.Delete(ctx); err != nil {
		return err
	}
	c.logs.close()
	return nil
}

func (c *made) PID() int { return c.task.PID() }

// process is an additional process.
type process struct {
	*container.TaskProcess
}

// SignalForeground implements task.Process.
func (p process) SignalForeground(ctx context.Context, signal int) error {
	return delivered(p.TaskProcess.Signal(ctx, signal, control.TargetForeground))
}

func (p process) Signal(ctx context.Context, signal int) error {
	return delivered(p.TaskProcess.Signal(ctx, signal, control.TargetInit))
}
