// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"z.gfire.dev/gvx/integration/testbed"
)

// runscHandlers are gVisor's own shim's part of containerd's configuration, as its
// documentation has it.
const runscHandlers = `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runsc]
  runtime_type = 'io.containerd.runsc.v1'
  snapshotter = 'overlayfs'
`

const (
	// podsAtOnce have to run on any machine at once, of each kind in turn; fewer where no
	// figures are wanted.
	podsAtOnce, podsAtOnceFew = 50, 4
	// podPatience bounds one call, with all pods at once.
	podPatience = 5 * time.Minute
)

// podKind is a kind of pod in the measurement, and what was measured of it.
type podKind struct {
	name, handler, image string

	start, second, exec, end []time.Duration
	// memory is that of one idle pod of two containers, secondMemory what the second one
	// has in it, atOnce how long as many pods took as start together, and crowdMemory what
	// each of those takes.
	memory, secondMemory, crowdMemory int64
	atOnce                            time.Duration
}

// podCalls makes pods by CRI, as kubelet does.
type podCalls struct {
	c      *testbed.Containerd
	client cri.RuntimeServiceClient
	logs   string
}

// running is a pod that runs.
type running struct {
	id         string
	config     *cri.PodSandboxConfig
	containers []string
}

func ownProcesses() *cri.NamespaceOption {
	return &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
}

// run starts a pod without containers.
func (p *podCalls) run(ctx context.Context, kind *podKind, name string) (*running, error) {
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name, Attempt: 1},
		Hostname: name, LogDirectory: p.logs,
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: ownProcesses()}},
	}
	r, err := p.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: kind.handler})
	if err != nil {
		return nil, err
	}
	return &running{id: r.PodSandboxId, config: config}, nil
}

// add starts a container in a pod.
func (p *podCalls) add(ctx context.Context, kind *podKind, pod *running) error {
	name := fmt.Sprintf("c%d", len(pod.containers))
	r, err := p.client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: pod.id, SandboxConfig: pod.config, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: kind.image}, Command: []string{"sleep", "10000"},
			LogPath: pod.config.Metadata.Name + "-" + name + ".log",
			Linux:   &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: ownProcesses()}},
		},
	})
	if err != nil {
		return err
	}
	pod.containers = append(pod.containers, r.ContainerId)
	_, err = p.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: r.ContainerId})
	return err
}

// exec runs `true` in a pod's first container.
func (p *podCalls) exec(ctx context.Context, pod *running) error {
	r, err := p.client.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: pod.containers[0], Cmd: []string{"true"}})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", r.ExitCode, r.Stderr)
	}
	return err
}

// end stops and removes a pod.
func (p *podCalls) end(ctx context.Context, pod *running) error {
	if _, err := p.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.id}); err != nil {
		return err
	}
	_, err := p.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.id})
	return err
}

// TestPodFigures measures pods of runc, of gVisor's own shim and of ours, in turn: the
// start of a pod with one container, of a second one in it, a command in it, its end;
// the memory of an idle pod of two containers; many that start at once. It demands that
// all of them run, and leave nothing.
func TestPodFigures(t *testing.T) {
	runsc := testbed.Need(t, "runsc")
	config := filepath.Join(t.TempDir(), "runsc.toml")
	if err := os.WriteFile(config, []byte("[runsc_config]\n  platform = \"systrap\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := testbed.NewContainerd(t, testbed.ContainerdOptions{
		ErofsSize: "1GiB",
		Runtimes: testbed.Handlers + sandboxHandlers + runscHandlers +
			fmt.Sprintf("  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runsc.options]\n    TypeUrl = 'io.containerd.runsc.v1.options'\n    ConfigPath = '%s'\n", config),
		Programs: map[string]string{testbed.ShimName: shim.Get(t), "runsc": runsc, "containerd-shim-runsc-v1": runscShim(t)},
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd: %s", c.Log())
		}
		c.Close(t)
	})
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		c.CRIPause(t, snapshotter)
		c.CRIImage(t, snapshotter, "demo")
	}
	image := c.CRIImage(t, "erofs", "demo")
	kinds := []*podKind{
		{name: "gvx", handler: "gvx", image: image}, {name: "gvx, no pause container", handler: sandboxHandler, image: image},
		{name: "runsc", handler: "runsc", image: image}, {name: "runc", handler: "runc", image: image},
	}
	p := &podCalls{c: c, client: c.CRI(t), logs: t.TempDir()}
	for round := range testbed.Rounds(15) + 1 {
		for n, kind := range kinds {
			if err := kind.round(t, p, fmt.Sprintf("round-%d-%d", round, n), round > 0); err != nil {
				t.Fatalf("%s: %v", kind.name, err)
			}
			nothingLeft(t, c)
		}
	}
	for n, kind := range kinds {
		if err := kind.idle(t, p, fmt.Sprintf("idle-%d", n)); err != nil {
			t.Fatalf("%s: %v", kind.name, err)
		}
		nothingLeft(t, c)
		if err := kind.crowd(t, p, fmt.Sprintf("crowd-%d", n)); err != nil {
			t.Fatalf("%s: %v", kind.name, err)
		}
		nothingLeft(t, c)
	}
	reportPods(t, kinds)
}

// runscShim is gVisor's shim. It gives itself a lower score for the host's killer for
// want of memory, and demands to be allowed to unless it is in a user namespace: where
// root may not, it is told so.
func runscShim(t *testing.T) string {
	t.Helper()
	program := testbed.Need(t, "runsc-shim")
	if score, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	} else if _, err = score.WriteString("-1"); errors.Join(err, score.Close()) == nil {
		return program
	}
	dir := t.TempDir()
	uids, wrapper := filepath.Join(dir, "uid_map"), filepath.Join(dir, "containerd-shim-runsc-v1")
	text := fmt.Sprintf("#!/bin/sh\nmount --bind %s /proc/$$/uid_map\nexec %s \"$@\"\n", uids, program)
	if err := errors.Join(os.WriteFile(uids, []byte("0 0 65536\n"), 0o644), os.WriteFile(wrapper, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	return wrapper
}

// round measures the life of one pod.
func (kind *podKind) round(t *testing.T, p *podCalls, name string, counts bool) error {
	ctx, cancel := context.WithTimeout(t.Context(), podPatience)
	defer cancel()
	begun := time.Now()
	pod, err := p.run(ctx, kind, name)
	if err != nil {
		return err
	}
	var took []time.Duration
	for _, step := range []func() error{
		func() error { return p.add(ctx, kind, pod) }, func() error { return p.add(ctx, kind, pod) },
		func() error { return p.exec(ctx, pod) }, func() error { return p.end(ctx, pod) },
	} {
		if err := step(); err != nil {
			return err
		}
		took = append(took, time.Since(begun))
		begun = time.Now()
	}
	if counts {
		kind.start, kind.second = append(kind.start, took[0]), append(kind.second, took[1])
		kind.exec, kind.end = append(kind.exec, took[2]), append(kind.end, took[3])
	}
	return nil
}

// idle measures the memory of a pod of two containers that do nothing.
func (kind *podKind) idle(t *testing.T, p *podCalls, name string) error {
	pod, err := p.run(t.Context(), kind, name)
	if err != nil {
		return err
	}
	var first int64
	for range 2 {
		first = kind.memory
		if err := p.add(t.Context(), kind, pod); err != nil {
			return err
		}
		time.Sleep(memorySettles)
		kind.memory, _ = memoryOf(t, p.c)
	}
	kind.secondMemory = kind.memory - first
	return p.end(t.Context(), pod)
}

// crowd starts many pods at once, each with a container, and runs a command in each.
func (kind *podKind) crowd(t *testing.T, p *podCalls, name string) error {
	number := podsAtOnceFew
	if testbed.Benchmarking() {
		number = podsAtOnce
	}
	ctx, cancel := context.WithTimeout(t.Context(), podPatience)
	defer cancel()
	pods, failed := make([]*running, number), make([]error, number)
	each := func(do func(i int) error) {
		var all sync.WaitGroup
		for i := range pods {
			all.Go(func() {
				if failed[i] == nil {
					failed[i] = do(i)
				}
			})
		}
		all.Wait()
	}
	begun := time.Now()
	each(func(i int) error {
		pod, err := p.run(ctx, kind, fmt.Sprintf("%s-%d", name, i))
		if err != nil {
			return err
		}
		pods[i] = pod
		return p.add(ctx, kind, pod)
	})
	kind.atOnce = time.Since(begun)
	each(func(i int) error { return p.exec(ctx, pods[i]) })
	time.Sleep(memorySettles)
	all, _ := memoryOf(t, p.c)
	kind.crowdMemory = all / int64(number)
	each(func(i int) error { return p.end(ctx, pods[i]) })
	return errors.Join(failed...)
}

// reportPods prints what was measured.
func reportPods(t *testing.T, kinds []*podKind) {
	ours := kinds[0]
	times := func(of func(*podKind) []time.Duration) func(*podKind) (string, float64) {
		return func(k *podKind) (string, float64) {
			m := testbed.Median(of(k))
			return testbed.Milliseconds(m), float64(m)
		}
	}
	sizes := func(of func(*podKind) int64) func(*podKind) (string, float64) {
		return func(k *podKind) (string, float64) { return testbed.Megabytes(of(k)), float64(of(k)) }
	}
	rows := [][]string{{""}}
	for i, kind := range kinds {
		rows[0] = append(rows[0], kind.name)
		if i > 0 {
			rows[0] = append(rows[0], "gvx is")
		}
	}
	for _, line := range []struct {
		title  string
		figure func(*podKind) (string, float64)
	}{
		{"pod with a container", times(func(k *podKind) []time.Duration { return k.start })},
		{"second container", times(func(k *podKind) []time.Duration { return k.second })},
		{"command in it", times(func(k *podKind) []time.Duration { return k.exec })},
		{"its end", times(func(k *podKind) []time.Duration { return k.end })},
		{"memory, idle, two containers", sizes(func(k *podKind) int64 { return k.memory })},
		{"of which the second (goal 5 MB)", sizes(func(k *podKind) int64 { return k.secondMemory })},
		{"many at once, until all run", times(func(k *podKind) []time.Duration { return []time.Duration{k.atOnce} })},
		{"memory of each of them", sizes(func(k *podKind) int64 { return k.crowdMemory })},
	} {
		row := []string{line.title}
		_, base := line.figure(ours)
		for i, kind := range kinds {
			text, figure := line.figure(kind)
			row = append(row, text)
			if i > 0 {
				row = append(row, fmt.Sprintf("%.2f of it", base/figure))
			}
		}
		rows = append(rows, row)
	}
	testbed.Report(t, fmt.Sprintf("pods by CRI, medians of %d rounds in turn", len(ours.start)), rows...)
}
