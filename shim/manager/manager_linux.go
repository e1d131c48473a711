// SPDX-License-Identifier: Apache-2.0

// Package manager is the part of the shim that containerd runs as commands: "start",
// which brings up the process that serves the containers of one pod, or finds it;
// "delete", which cleans up after one that is gone; and "-info".
//
// It owns the shim's socket until the server has it. It serves no task, and keeps
// nothing in memory from one command to the next: what a server leaves for a later
// "delete" is in the container's bundle.
package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/shim/options"
	"z.gfire.dev/gvx/shim/task"
)

// protocolVersion is that of the shim's API: with 3, containerd keeps one
// connection for all containers of a pod.
const protocolVersion = 3

// maxOptionsBytes bounds what "-info" reads.
const maxOptionsBytes = 1 << 20

// Options are what a manager needs to know.
type Options struct {
	// Name is the runtime's for containerd: "io.containerd.gvx.v2".
	Name string
	// Version and Revision are told by "-info".
	Version, Revision string
	// Features are the OCI runtime's.
	Features func() *features.Features
	// Remove frees what a container of a shim that is gone has left. There may be
	// nothing.
	Remove func(ctx context.Context, bundle, id string) error
}

// Manager is a shim.Shim.
type Manager struct {
	o Options
}

var _ shim.Shim = (*Manager)(nil)

// New returns a manager.
func New(o Options) *Manager { return &Manager{o: o} }

// Name is the runtime's.
func (m *Manager) Name() string { return m.o.Name }

// capabilities are the mounts that the shim does itself: containerd then hands on
// what snapshotters say, and mounts nothing.
func capabilities() *types.MountCapabilities {
	return &types.MountCapabilities{Types: []string{"erofs"}, Transforms: []string{"format", "mkdir", "mkfs"}}
}

// allowedMounts is the same in the words of containerd 2.2 and 2.3.
const allowedMounts = "erofs,format/*,mkdir/*,mkfs/*"

// allowedMountsAnnotation is where they look for it.
const allowedMountsAnnotation = "containerd.io/runtime-allow-mounts"

// Start brings up the server for a container, or finds the one of its pod.
func (m *Manager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	claim, err := anypb.New(capabilities())
	if err != nil {
		return nil, err
	}
	result := &bootapi.BootstrapResult{
		Version: protocolVersion, Protocol: "ttrpc", Extensions: []*bootapi.Extension{{Value: claim}},
	}
	group, err := task.Group(".")
	if errors.Is(err, fs.ErrNotExist) {
		// A sandbox of containerd's sandbox API has a bundle without config.json.
		group, err = "", keepOptions(params)
	}
	if err != nil {
		return nil, err
	}
	if group == "" {
		group = params.GetInstanceID()
	}
	dir := params.GetSocketDir()
	if dir == "" {
		dir = filepath.Join(defaults.DefaultStateDir, "s")
	}
	socket, address, err := listen(ctx, dir, params.GetContainerdGrpcAddress(), group)
	if err != nil {
		return nil, err
	}
	result.Address = address
	if socket == nil {
		return result, nil // it runs
	}
	defer socket.Close()
	if err := serve(ctx, params, socket, address); err != nil {
		_ = shim.RemoveSocket(address)
		return nil, err
	}
	return result, nil
}

// keepOptions leaves a sandbox's runtime options where its server finds them:
// containerd sends them here alone.
func keepOptions(params *bootapi.BootstrapParams) error {
	o := &runtimeoptions.Options{}
	found, err := params.FindExtension(o)
	if err != nil {
		return fmt.Errorf("read runtime options: %w", err)
	}
	if !found {
		return nil
	}
	return options.Keep(".", o)
}

// listen makes the socket of a group's server. It returns no socket, and the
// address, when that server runs already.
func listen(ctx context.Context, dir, containerd, group string) (*net.UnixListener, string, error) {
	address, err := shim.CreateSocketAddress(ctx, dir, containerd, group, false)
	if err != nil {
		return nil, "", err
	}
	for attempt := 0; ; attempt++ {
		socket, err := shim.NewSocket(address)
		switch {
		case err == nil:
			// The server goes on serving it when this process has ended.
			socket.SetUnlinkOnClose(false)
			return socket, address, nil
		case !shim.SocketEaddrinuse(err):
			return nil, "", fmt.Errorf("make the shim's socket: %w", err)
		case shim.CanConnect(address):
			return nil, address, nil
		case attempt > 0:
			return nil, "", fmt.Errorf("make the shim's socket: %w", err)
		}
		// Somebody's who was killed.
		if err := shim.RemoveSocket(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("remove a dead shim's socket: %w", err)
		}
	}
}

// serve starts the server, which is this program in another process, and leaves it
// alone.
func serve(ctx context.Context, params *bootapi.BootstrapParams, socket *net.UnixListener, address string) error {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f, err := socket.File()
	if err != nil {
		return err
	}
	defer f.Close()
	// The server removes it when it ends.
	if err := os.WriteFile("address", []byte(address), 0o600); err != nil {
		return err
	}
	args := []string{"-namespace", namespace, "-id", params.GetInstanceID(), "-address", params.GetContainerdGrpcAddress()}
	if params.GetLogLevel() <= bootapi.LogLevel_LOG_LEVEL_DEBUG {
		args = append(args, "-debug")
	}
	cmd := exec.Command(self, args...)
	cmd.ExtraFiles = []*os.File{f}
	// Signals that containerd's process group gets are not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the shim's server: %w", err)
	}
	if err := joinCgroup(params, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	if err := shim.AdjustOOMScore(cmd.Process.Pid); err != nil {
		// The host may not let anyone: worse to run nothing.
		log.G(ctx).WithError(err).Warn("the shim's OOM score stays as it is")
	}
	return cmd.Process.Release()
}

// joinCgroup moves the server into the cgroup that a client wants it in. Sandboxes have
// theirs beside it.
func joinCgroup(params *bootapi.BootstrapParams, pid int) error {
	var client runcoptions.Options
	found, err := params.FindExtension(&client)
	if err != nil {
		return fmt.Errorf("read runtime options: %w", err)
	}
	path := client.GetShimCgroup()
	if !found || path == "" {
		return nil
	}
	if err := hostcgroup.Join(path, pid); err != nil {
		return fmt.Errorf("move the shim to cgroup %s: %w", path, err)
	}
	return nil
}

// Stop cleans up after a server that is gone, and tells how the container ended.
// containerd runs it in the bundle.
func (m *Manager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return shim.StopStatus{}, err
	}
	bundle := filepath.Join(filepath.Dir(cwd), id)
	if err := m.o.Remove(ctx, bundle, id); err != nil {
		// What is told below is still true, and containerd cannot do more.
		log.G(ctx).WithError(err).WithField("id", id).Warn("remove what is left of the container")
	}
	// A server that was killed has left its socket.
	if address, err := shim.ReadAddress(filepath.Join(bundle, "address")); err == nil && !shim.CanConnect(address) {
		_ = shim.RemoveSocket(address)
	}
	e, err := task.ReadExit(bundle)
	if err == nil {
		return shim.StopStatus{Pid: e.PID, ExitStatus: e.Status, ExitedAt: e.At}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log.G(ctx).WithError(err).WithField("id", id).Warn("how the container ended is not known")
	}
	return shim.StopStatus{ExitStatus: 128 + int(syscall.SIGKILL), ExitedAt: time.Now()}, nil
}

// Info tells what the runtime is and can do.
func (m *Manager) Info(_ context.Context, from io.Reader) (*types.RuntimeInfo, error) {
	info := &types.RuntimeInfo{
		Name: m.o.Name, Version: &types.RuntimeVersion{Version: m.o.Version, Revision: m.o.Revision},
		Annotations: map[string]string{allowedMountsAnnotation: allowedMounts},
	}
	data, err := io.ReadAll(io.LimitReader(from, maxOptionsBytes))
	if err != nil {
		return nil, fmt.Errorf("read runtime options: %w", err)
	}
	if len(data) > 0 {
		info.Options = &anypb.Any{}
		if err := proto.Unmarshal(data, info.Options); err != nil {
			return nil, fmt.Errorf("decode runtime options: %w", err)
		}
		if _, err := options.Parse(info.Options.GetTypeUrl(), info.Options.GetValue()); err != nil {
			return nil, err
		}
	}
	if info.Features, err = typeurl.MarshalAnyToProto(m.o.Features()); err != nil {
		return nil, fmt.Errorf("encode the runtime's features: %w", err)
	}
	return info, nil
}
