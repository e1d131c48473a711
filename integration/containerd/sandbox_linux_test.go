// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"z.gfire.dev/gvx/integration/testbed"
)

// sandboxHandler is the handler whose pods have no pause container: the shim makes
// their sandboxes itself.
const sandboxHandler = "gvx-sandbox"

// sandboxHandlers are its part of containerd's configuration, behind handlers.
const sandboxHandlers = `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvx-sandbox]
  runtime_type = 'io.containerd.gvx.v2'
  snapshotter = 'erofs'
  sandboxer = 'shim'
  disable_pause_image_pull = true
  pod_annotations = ['dev.gvx.*']
  container_annotations = ['dev.gvx.*']
[plugins.'io.containerd.cri.v1.images'.runtime_platforms.gvx-sandbox]
  snapshotter = 'erofs'
  platform = 'linux/amd64'
`

// newSandboxer starts a containerd with that handler. It has no pause image.
func newSandboxer(t *testing.T) *testbed.Containerd {
	t.Helper()
	return newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers + sandboxHandlers + testbed.HostNetworkHandlers()})
}

// podState is what CRI says of a pod, "" if it says nothing: when a shim has just been
// killed, containerd's question to it is not answered.
func podState(t *testing.T, c *testbed.Containerd, id string) string {
	t.Helper()
	r := c.Crictl(t, "inspectp", id)
	if r.Code != 0 {
		t.Logf("inspectp: %v", r)
		return ""
	}
	var doc struct {
		Status struct {
			State string `json:"state"`
		} `json:"status"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Status.State
}

// TestSandboxAPI is what pods without a pause container do, in one containerd.
func TestSandboxAPI(t *testing.T) {
	c := newSandboxer(t)
	image := c.CRIImage(t, "erofs", "demo")
	for _, test := range []struct {
		name string
		run  func(*testing.T, *testbed.Containerd, string)
	}{
		{"pod", sandboxPod}, {"shared processes", sandboxSharedProcesses}, {"port-forward", sandboxForward}, {"kills", sandboxKilled},
		{"limits", sandboxLimits}, {"refusals", sandboxRefuses}, {"rounds", sandboxRounds}, {"containerd is started again", sandboxRestart},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c, image) })
	}
}

// sandboxPod: a pod with no pause container, in which containers find what one
// with a pause container has.
func sandboxPod(t *testing.T, c *testbed.Containerd, image string) {
	p := runPod(t, c, sandboxHandler, "pod", func(doc object) {
		doc["dns_config"] = object{"servers": []string{"192.0.2.53"}, "searches": []string{"a.test", "b.test"}, "options": []string{"ndots:5"}}
		doc["linux"].(object)["sysctls"] = object{"kernel.shm_rmid_forced": "1"}
	})
	if s := podState(t, c, p.id); s != "SANDBOX_READY" {
		t.Errorf("the pod is %s", s)
	}
	one := p.run(image, "one", nil, "sleep", "1234")
	two := p.run(image, "two", nil, "sh", "-c", "echo began; echo failed >&2; sleep 1000")
	in := func(id string, command ...string) string {
		t.Helper()
		return c.MustCrictl(t, append([]string{"exec", id}, command...)...)
	}
	if got := in(one, "sh", "-c", "hostname; cat /etc/hostname /etc/resolv.conf; grep -c localhost /etc/hosts >/dev/null && echo hosts; cat /proc/sys/kernel/shm_rmid_forced"); got !=
		"pod\npod\nsearch a.test b.test\nnameserver 192.0.2.53\noptions ndots:5\nhosts\n1\n" {
		t.Errorf("it found %q", got)
	}
	in(one, "sh", "-c", "echo shared > /dev/shm/file; echo 192.0.2.9 other.test >> /etc/hosts")
	if got := in(two, "sh", "-c", "cat /dev/shm/file; tail -n 1 /etc/hosts; cat /proc/1/cmdline | tr '\\0' ' '"); !strings.HasPrefix(got, "shared\n192.0.2.9 other.test\nsh -c echo began") {
		t.Errorf("its neighbour found %q", got)
	}
	// As `kubectl debug --target`; there are other containers.
	debug := p.run(image, "debug", func(doc object) {
		doc["linux"].(object)["security_context"] = object{"namespace_options": object{"pid": 3, "target_id": one}}
	}, "sleep", "1000")
	if got := in(debug, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); !strings.Contains(got, "sleep 1234") {
		t.Errorf("who looks for the first container's processes sees %q", got)
	}
	await(t, "the log", func() bool { l := p.log("two"); return strings.Contains(l, "began") && strings.Contains(l, "failed") })
	if out := c.MustCrictl(t, "logs", two); out != "began\n" {
		t.Errorf("logs: %q", out)
	}
	if out := c.MustCrictl(t, "statsp", "-o", "json", "--id", p.id); !strings.Contains(out, `"usageCoreNanoSeconds"`) || !strings.Contains(out, `"workingSetBytes"`) {
		t.Errorf("the pod's figures: %s", out)
	}
	// A container that ends leaves its pod and the others alone.
	ends := p.run(image, "ends", nil, "sh", "-c", "exit 3")
	await(t, "its end", func() bool { return strings.Contains(c.MustCrictl(t, "inspect", ends), `"exitCode": 3`) })
	c.MustCrictl(t, "rm", ends)
	c.MustCrictl(t, "stop", "--timeout", "1", two)
	c.MustCrictl(t, "rm", two)
	if got := in(one, "echo", "lives"); got != "lives\n" || podState(t, c, p.id) != "SANDBOX_READY" {
		t.Errorf("the other container: %q", got)
	}
	c.MustCrictl(t, "stopp", p.id)
	if s := podState(t, c, p.id); s != "SANDBOX_NOTREADY" {
		t.Errorf("the pod that was stopped is %s", s)
	}
	c.MustCrictl(t, "rmp", p.id)
	nothingLeft(t, c)
}

// sandboxSharedProcesses: process 1 of such a pod reaps what its containers
// leave, and is none of theirs: any of them may end.
func sandboxSharedProcesses(t *testing.T, c *testbed.Containerd, image string) {
	share := func(doc object) {
		doc["linux"].(object)["security_context"] = object{"namespace_options": object{"pid": 0}}
	}
	p := runPod(t, c, sandboxHandler, "pod", share)
	first := p.run(image, "first", share, "sh", "-c", "sh -c '(sleep 3; true) & true'; sleep 1000")
	second := p.run(image, "second", share, "sleep", "2000")
	in := func(script string) string {
		t.Helper()
		return c.MustCrictl(t, "exec", second, "sh", "-c", script)
	}
	if got := in("tr '\\0' ' ' < /proc/1/cmdline"); strings.TrimSpace(got) != "gvx-init" {
		t.Errorf("process 1 is %q", got)
	}
	// Names and states: the orphan's shell, both sleeps and the first's shell.
	list := func() string {
		return in("for p in /proc/[0-9]*; do read -r n name state rest < $p/stat && echo $name$state; done 2>/dev/null")
	}
	await(t, "the orphan's end", func() bool {
		got := list()
		return strings.Count(got, "(sleep)") == 2 && !strings.Contains(got, ")Z")
	})
	c.MustCrictl(t, "stop", "--timeout", "1", first)
	if got := list(); strings.Count(got, "(sleep)") != 1 {
		t.Errorf("when the first has ended, the second sees %q", got)
	}
	p.remove()
	nothingLeft(t, c)
}

// sandboxForward: `kubectl port-forward`, and the pod's address on the network.
func sandboxForward(t *testing.T, c *testbed.Containerd, image string) {
	forwardTo(t, c, sandboxHandler, image)
}

// sandboxProcess is the process of a pod's sandbox, as CRI tells it.
func sandboxProcess(t *testing.T, c *testbed.Containerd, id string) int {
	t.Helper()
	var doc struct {
		Info struct {
			PID int `json:"pid"`
		} `json:"info"`
	}
	if err := json.Unmarshal([]byte(c.MustCrictl(t, "inspectp", id)), &doc); err != nil || doc.Info.PID == 0 {
		t.Fatalf("the sandbox of pod %s is process %d, %v", id, doc.Info.PID, err)
	}
	return doc.Info.PID
}

// sandboxRestart: pods and containers are found when containerd is started again, and
// controlled; what has ended meanwhile is known to have.
func sandboxRestart(t *testing.T, c *testbed.Containerd, image string) {
	p := runPod(t, c, sandboxHandler, "pod", nil)
	old := p.run(image, "old", nil, "sleep", "1000")
	ended := runPod(t, c, sandboxHandler, "ended", nil)
	ended.run(image, "one", nil, "sleep", "1000")
	lost := runPod(t, c, sandboxHandler, "lost", nil)
	lost.run(image, "one", nil, "sleep", "1000")
	victims := []int{sandboxProcess(t, c, ended.id)}
	for pid, command := range c.Processes(t) {
		if strings.Contains(command, "-id "+lost.id) {
			victims = append(victims, pid)
		}
	}
	if len(victims) != 2 {
		t.Fatalf("a sandbox and a shim: %v", victims)
	}
	c.Kill(t)
	for _, pid := range victims {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the ends of two sandboxes", func() bool { return len(named(t, c, "gvx-sandbox")) == 1 })
	c.Start(t)
	for id, want := range map[string]string{p.id: "SANDBOX_READY", ended.id: "SANDBOX_NOTREADY", lost.id: "SANDBOX_NOTREADY"} {
		if s := podState(t, c, id); s != want {
			t.Errorf("pod %s is %s, want %s", id, s, want)
		}
	}
	if out := c.MustCrictl(t, "exec", old, "echo", "still"); out != "still\n" {
		t.Errorf("exec: %q", out)
	}
	if id := p.run(image, "new", nil, "sleep", "1000"); c.MustCrictl(t, "exec", id, "echo", "new") != "new\n" {
		t.Error("a new container does not answer")
	}
	for _, p := range []*pod{p, ended, lost} {
		p.remove()
	}
	nothingLeft(t, c)
}

// sandboxKilled kills each of a pod's processes in turn.
func sandboxKilled(t *testing.T, c *testbed.Containerd, image string) {
	for _, victim := range []string{"gvx-sandbox", testbed.ShimName} {
		t.Run(victim, func(t *testing.T) {
			p := runPod(t, c, sandboxHandler, "pod", nil)
			id := p.run(image, "one", nil, "sleep", "1000")
			if err := syscall.Kill(find(t, c, victim), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			await(t, "the pod's end", func() bool { return podState(t, c, p.id) == "SANDBOX_NOTREADY" })
			await(t, "the container's end", func() bool { return strings.Contains(c.MustCrictl(t, "inspect", id), "CONTAINER_EXITED") })
			if r := c.Crictl(t, "create", p.id, filepath.Join(p.dir, "one.json"), p.config); r.Code == 0 {
				t.Errorf("a container was made in a pod that has ended: %v", r)
			}
			p.remove()
			nothingLeft(t, c)
		})
	}
}

// sandboxLimits: those of a pod hold for its containers together, and can be changed
// as kubelet changes them. crictl has no word for that.
func sandboxLimits(t *testing.T, c *testbed.Containerd, image string) {
	const small, large = 128 << 20, 1 << 30
	p := runPod(t, c, sandboxHandler, "pod", func(doc object) {
		doc["linux"].(object)["resources"] = object{"memory_limit_in_bytes": small}
	})
	id := p.run(image, "one", nil, "sleep", "1000")
	allocate := func() int {
		t.Helper()
		return c.Crictl(t, "exec", id, "python3", "-c", "x = bytearray(300 << 20); print(len(x))").Code
	}
	if allocate() == 0 {
		t.Error("more than the pod's memory was had")
	}
	if _, err := c.CRI(t).UpdatePodSandboxResources(t.Context(), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.id, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: large},
	}); err != nil {
		t.Fatal(err)
	}
	if code := allocate(); code != 0 {
		t.Errorf("less than the pod's new memory was not had: exit code %d", code)
	}
	p.remove()
	nothingLeft(t, c)
}

// sandboxRefuses what cannot be served, and leaves nothing of it.
func sandboxRefuses(t *testing.T, c *testbed.Containerd, image string) {
	for name, change := range map[string]func(object){
		"host network": func(doc object) {
			doc["linux"].(object)["security_context"] = object{"namespace_options": object{"network": 2}}
		},
		"unknown sysctl": func(doc object) { doc["linux"].(object)["sysctls"] = object{"kernel.shm_no_such": "1"} },
	} {
		doc := object{
			"metadata": object{"name": "refused", "namespace": "default", "uid": "refused", "attempt": 1}, "log_directory": t.TempDir(),
			"linux": object{},
		}
		change(doc)
		if r := c.Crictl(t, "runp", "--runtime", sandboxHandler, write(t, t.TempDir(), "refused", doc)); r.Code == 0 {
			t.Errorf("%s: %v", name, r)
		}
		nothingLeft(t, c)
	}
	// A container that cannot be made leaves its pod as it was.
	p := runPod(t, c, sandboxHandler, "pod", nil)
	id := p.create(image, "none", nil, "/no/such/program")
	if r := c.Crictl(t, "start", id); r.Code == 0 {
		t.Errorf("a program that does not exist: %v", r)
	}
	one := p.run(image, "one", nil, "sleep", "1000")
	if out := c.MustCrictl(t, "exec", one, "echo", "fine"); out != "fine\n" {
		t.Errorf("exec: %q", out)
	}
	p.remove()
	nothingLeft(t, c)
}

// sandboxRounds: pods come and go, and nothing adds up.
func sandboxRounds(t *testing.T, c *testbed.Containerd, image string) {
	rounds := 5
	if testbed.Nightly() {
		rounds = 100
	}
	for i := range rounds {
		name := fmt.Sprintf("round-%d", i)
		p := runPod(t, c, sandboxHandler, name, nil)
		p.run(image, "one", nil, "echo", name)
		await(t, "its words", func() bool { return strings.Contains(p.log("one"), name) })
		p.remove()
	}
	nothingLeft(t, c)
	if testbed.Nightly() {
		testbed.Record(t, "containerd: rounds of pods", fmt.Sprintf("%d pods without a pause container, each with a container, by crictl, one after another. "+
			"Nothing is left: no process, mount, network namespace, cgroup, folder or socket.", rounds))
	}
}

// TestSandboxAPIOptions: a handler's options reach the sandbox of a pod.
func TestSandboxAPIOptions(t *testing.T) {
	logs := t.TempDir()
	options := fmt.Sprintf("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvx-sandbox.options]\n  debug = true\n  debug_log = '%s/'\n", logs)
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers + sandboxHandlers + options})
	p := runPod(t, c, sandboxHandler, "pod", nil)
	if st, err := os.Stat(filepath.Join(logs, p.id+".log")); err != nil || st.Size() == 0 {
		t.Errorf("the sandbox's log: %v, %v", st, err)
	}
	p.remove()
	nothingLeft(t, c)
}
