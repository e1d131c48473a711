// SPDX-License-Identifier: Apache-2.0

// containerd's sandbox API: a pod whose sandbox is made without a container, and
// which containers join.

package task

import (
	"context"
	"encoding/json"
	"runtime"
	"sync"
	"syscall"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/shim/metrics"
)

const (
	// The states of a sandbox, in CRI's words.
	sandboxReady    = "SANDBOX_READY"
	sandboxNotReady = "SANDBOX_NOTREADY"
	// stopPatience is how long a sandbox may take to end by itself when containerd
	// does not say.
	stopPatience = 10 * time.Second
	// answerGrace is how long the shim lives on behind the answer to ShutdownSandbox,
	// which somebody has yet to write: more than a busy host needs for it.
	answerGrace = time.Second
)

// pod is the sandbox that the shim was started for. Its containers are tasks.
type pod struct {
	id, bundle string
	runtime    Container
	created    time.Time
	// starting is held while it is let run.
	starting sync.Mutex
	// ended is closed once exit is set.
	ended chan struct{}

	mu      sync.Mutex
	started bool
	exit    Exit
}

// sandboxes serves the sandbox API of a service's pod.
type sandboxes struct{ s *Service }

var _ sandboxapi.TTRPCSandboxService = sandboxes{}

// podOf finds the sandbox by its id.
func (s *Service) podOf(id string) (*pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod == nil || s.pod.id != id {
		return nil, fail(errdefs.ErrNotFound, "sandbox %s: no such sandbox", id)
	}
	return s.pod, nil
}

// reservePod takes the shim for a sandbox.
func (s *Service) reservePod(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending:
		return fail(errdefs.ErrUnavailable, "create sandbox %s: the shim is ending", id)
	case s.pod != nil || s.makingPod:
		return fail(errdefs.ErrAlreadyExists, "create sandbox %s: the shim has one", id)
	case len(s.tasks)+len(s.creating) > 0:
		return fail(errdefs.ErrFailedPrecondition, "create sandbox %s: the shim has containers of their own", id)
	}
	s.makingPod = true
	return nil
}

// CreateSandbox makes the sandbox up to the point where it only has to be let run.
func (x sandboxes) CreateSandbox(ctx context.Context, r *sandboxapi.CreateSandboxRequest) (*sandboxapi.CreateSandboxResponse, error) {
	s := x.s
	if err := s.reservePod(r.GetSandboxID()); err != nil {
		return nil, err
	}
	made, err := s.runtime.CreatePod(ctx, PodOptions{
		ID: r.GetSandboxID(), Bundle: r.GetBundlePath(), Netns: r.GetNetnsPath(),
		ConfigType: r.GetOptions().GetTypeUrl(), Config: r.GetOptions().GetValue(),
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makingPod = false
	if err != nil {
		return nil, toGRPC(err)
	}
	s.pod = &pod{id: r.GetSandboxID(), bundle: r.GetBundlePath(), runtime: made, created: time.Now(), ended: make(chan struct{})}
	go s.pod.watch()
	return &sandboxapi.CreateSandboxResponse{}, nil
}

// watch waits for the sandbox's end.
func (p *pod) watch() {
	exit, err := p.runtime.Wait(context.Background())
	if err != nil {
		log.L.WithError(err).Warnf("sandbox %s has ended", p.id)
		exit = api.ExitStatus{Code: killed, At: time.Now()}
	}
	if exit.At.IsZero() {
		exit.At = time.Now()
	}
	p.mu.Lock()
	p.exit = Exit{PID: p.runtime.PID(), Status: exit.Code, At: exit.At}
	kept := p.exit
	p.mu.Unlock()
	if err := writeExit(p.bundle, kept); err != nil {
		log.L.WithError(err).Errorf("sandbox %s: keep its exit status", p.id)
	}
	close(p.ended)
}

// free ends the sandbox and frees what it has. It may be repeated.
func (p *pod) free(ctx context.Context) error {
	if err := p.runtime.Delete(ctx); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hasEnded says whether it has.
func (p *pod) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// ready says whether containers can join.
func (p *pod) ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started && !p.hasEnded()
}

// StartSandbox lets the sandbox run.
func (x sandboxes) StartSandbox(ctx context.Context, r *sandboxapi.StartSandboxRequest) (*sandboxapi.StartSandboxResponse, error) {
	p, err := x.s.podOf(r.GetSandboxID())
	if err != nil {
		return nil, err
	}
	p.starting.Lock()
	defer p.starting.Unlock()
	if p.hasEnded() || p.ready() {
		return nil, fail(errdefs.ErrFailedPrecondition, "start sandbox %s: it has been started, or has ended", p.id)
	}
	if err := p.runtime.Start(ctx); err != nil {
		return nil, toGRPC(err)
	}
	p.mu.Lock()
	p.started = true
	p.mu.Unlock()
	return &sandboxapi.StartSandboxResponse{Pid: uint32(p.runtime.PID()), CreatedAt: timestamppb.New(p.created)}, nil
}

// Platform is what containers have to be made for.
func (x sandboxes) Platform(_ context.Context, r *sandboxapi.PlatformRequest) (*sandboxapi.PlatformResponse, error) {
	if _, err := x.s.podOf(r.GetSandboxID()); err != nil {
		return nil, err
	}
	return &sandboxapi.PlatformResponse{Platform: &types.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}}, nil
}

// StopSandbox ends the sandbox, with what still runs in it. It may be repeated.
func (x sandboxes) StopSandbox(ctx context.Context, r *sandboxapi.StopSandboxRequest) (*sandboxapi.StopSandboxResponse, error) {
	p, err := x.s.podOf(r.GetSandboxID())
	if err != nil {
		return nil, err
	}
	patience := stopPatience
	if n := r.GetTimeoutSecs(); n > 0 {
		patience = time.Duration(n) * time.Second
	}
	if err := p.stop(ctx, patience); err != nil {
		return nil, toGRPC(err)
	}
	return &sandboxapi.StopSandboxResponse{}, nil
}

// stop ends the sandbox gently, and after a while by force.
func (p *pod) stop(ctx context.Context, patience time.Duration) error {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if p.hasEnded() {
			return nil
		}
		if err := p.runtime.Signal(ctx, int(sig), sig == syscall.SIGKILL); err != nil {
			log.L.WithError(err).Debugf("sandbox %s: %v", p.id, sig)
		}
		timer := time.NewTimer(patience)
		select {
		case <-p.ended:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
	if !p.hasEnded() {
		return api.Errorf(api.KindUnavailable, "sandbox %s: its process %d does not end", p.id, p.runtime.PID())
	}
	return nil
}

// WaitSandbox returns when the sandbox has ended.
func (x sandboxes) WaitSandbox(ctx context.Context, r *sandboxapi.WaitSandboxRequest) (*sandboxapi.WaitSandboxResponse, error) {
	p, err := x.s.podOf(r.GetSandboxID())
	if err != nil {
		return nil, err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return nil, toGRPC(ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &sandboxapi.WaitSandboxResponse{ExitStatus: uint32(p.exit.Status), ExitedAt: timestamppb.New(p.exit.At)}, nil
}

// SandboxStatus tells how the sandbox is.
func (x sandboxes) SandboxStatus(_ context.Context, r *sandboxapi.SandboxStatusRequest) (*sandboxapi.SandboxStatusResponse, error) {
	p, err := x.s.podOf(r.GetSandboxID())
	if err != nil {
		return nil, err
	}
	response := &sandboxapi.SandboxStatusResponse{
		SandboxID: p.id, Pid: uint32(p.runtime.PID()), State: sandboxNotReady, CreatedAt: timestamppb.New(p.created),
	}
	status := "created"
	switch {
	case p.ready():
		response.State, status = sandboxReady, "running"
	case p.hasEnded():
		status = "stopped"
		p.mu.Lock()
		response.Pid, response.ExitedAt = 0, timestamppb.New(p.exit.At)
		p.mu.Unlock()
	}
	if r.GetVerbose() {
		// What CRI's clients know from pods with a pause container.
		doc, err := json.Marshal(map[string]any{"pid": response.Pid, "processStatus": status})
		if err != nil {
			return nil, toGRPC(err)
		}
		response.Info = map[string]string{"info": string(doc)}
	}
	return response, nil
}

// PingSandbox says whether the sandbox lives.
func (x sandboxes) PingSandbox(_ context.Context, r *sandboxapi.PingRequest) (*sandboxapi.PingResponse, error) {
	p, err := x.s.podOf(r.GetSandboxID())
	if err != nil {
		return nil, err
	}
	if p.hasEnded() {
		return nil, fail(errdefs.ErrUnavailable, "sandbox %s has ended", p.id)
	}
	return &sandboxapi.PingResponse{}, nil
}

// ShutdownSandbox ends the sandbox, frees what it has, and ends the shim: also one
// whose sandbox could not be made.
func (x sandboxes) ShutdownSandbox(ctx context.Context, r *sandboxapi.ShutdownSandboxRequest) (*sandboxapi.ShutdownSandboxResponse, error) {
	s := x.s
	s.mu.Lock()
	p, tasks := s.pod, len(s.tasks)+len(s.creating)
	switch {
	case p != nil && p.id != r.GetSandboxID() || p == nil && tasks > 0:
		s.mu.Unlock()
		return nil, fail(errdefs.ErrNotFound, "sandbox %s: no such sandbox", r.GetSandboxID())
	case s.ending:
		s.mu.Unlock()
		return &sandboxapi.ShutdownSandboxResponse{}, nil
	}
	s.ending = true
	s.mu.Unlock()
	var err error
	if p != nil {
		err = p.free(ctx)
	}
	if err != nil {
		// Once more when the process ends, and by containerd's "delete" then.
		log.L.WithError(err).Warnf("sandbox %s: free it", p.id)
	}
	// Not before the answer: containerd would take a connection that closes without
	// one for a failure. The call's context ends once the answer is on its way.
	context.AfterFunc(ctx, func() { time.AfterFunc(answerGrace, s.shutdown) })
	return &sandboxapi.ShutdownSandboxResponse{}, nil
}

// SandboxMetrics tells what the sandbox uses as a whole.
func (x sandboxes) SandboxMetrics(ctx context.Context, r *sandboxapi.SandboxMetricsRequest) (*sandboxapi.SandboxMetricsResponse, error) {
	p, err := x.s.podOf(r.GetSandboxID())
	if err != nil {
		return nil, err
	}
	u, err := p.runtime.Stats(ctx)
	if err != nil {
		return nil, toGRPC(err)
	}
	data, err := typeurl.MarshalAnyToProto(metrics.Of(x.s.stats, metrics.Usage(u)))
	if err != nil {
		return nil, toGRPC(err)
	}
	return &sandboxapi.SandboxMetricsResponse{Metrics: &types.Metric{Timestamp: timestamppb.Now(), ID: p.id, Data: data}}, nil
}

// UpdateSandbox changes the limits of the sandbox as a whole. Of what containerd knows
// of a pod nothing else can change.
func (x sandboxes) UpdateSandbox(ctx context.Context, r *sandboxapi.UpdateSandboxRequest) (*sandboxapi.UpdateSandboxResponse, error) {
	p, err := x.s.podOf(r.GetSandboxID())
	if err != nil {
		return nil, err
	}
	doc := r.GetSandbox().GetExtensions()[updatedResources]
	if doc == nil {
		return &sandboxapi.UpdateSandboxResponse{}, nil
	}
	limits, err := podLimits(doc.GetTypeUrl(), doc.GetValue())
	if err != nil {
		return nil, toGRPC(err)
	}
	if !p.ready() {
		return nil, fail(errdefs.ErrFailedPrecondition, "update sandbox %s: it does not run", p.id)
	}
	if err := p.runtime.Update(ctx, limits); err != nil {
		return nil, toGRPC(err)
	}
	return &sandboxapi.UpdateSandboxResponse{}, nil
}

// updatedResources is where containerd keeps a pod's new limits.
const updatedResources = "updated-resources"

// podLimits are a pod's new limits. What is 0 was not said.
func podLimits(url string, value []byte) (*specs.LinuxResources, error) {
	var doc struct {
		Resources struct {
			Period uint64 `json:"cpu_period"`
			Quota  int64  `json:"cpu_quota"`
			Memory int64  `json:"memory_limit_in_bytes"`
		}
	}
	if err := fromAny(url, value, "UpdatedResources", &doc); err != nil {
		return nil, err
	}
	limits, r := &specs.LinuxResources{}, &doc.Resources
	if r.Memory != 0 {
		limits.Memory = &specs.LinuxMemory{Limit: &r.Memory}
	}
	if r.Quota != 0 && r.Period != 0 {
		limits.CPU = &specs.LinuxCPU{Quota: &r.Quota, Period: &r.Period}
	}
	return limits, nil
}
