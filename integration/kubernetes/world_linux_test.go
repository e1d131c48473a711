// SPDX-License-Identifier: Apache-2.0

// Package kubernetes runs pods on a real node, whose kubelet, API server,
// controllers and scheduler are Kubernetes' own: each scenario by runc, which
// proves it, and by gvx, for the same result.
package kubernetes

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
	"z.gfire.dev/gvx/runtime/nodeconfig"
)

var shim testbed.SharedShim

func TestMain(m *testing.M) { os.Exit(testbed.MainAlone(m, shim.Remove)) }

const (
	// patience is how long a pod may take to get where it should.
	patience = 2 * time.Minute
	// image is what most containers have.
	image = "test.invalid/demo:latest"
)

// newNode starts a cluster for a test, and its containerd.
func newNode(t *testing.T) (*testbed.Kubernetes, *testbed.Containerd) {
	t.Helper()
	testbed.NeedRoot(t, "a Kubernetes node")
	c := testbed.NewContainerd(t, testbed.ContainerdOptions{
		ErofsSize: "1GiB", Runtimes: testbed.Handlers + testbed.HostNetworkHandlers(), Programs: map[string]string{testbed.ShimName: shim.Get(t)},
	})
	t.Cleanup(func() { c.Close(t) })
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		c.CRIPause(t, snapshotter)
		c.CRIImage(t, snapshotter, "demo")
	}
	k := testbed.NewKubernetes(t, c)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("cluster: %s\ncontainerd: %s", k.Logs(), c.Log())
		}
		k.Close(t)
	})
	for _, class := range []string{"gvx", "gvx-host"} {
		k.MustKubectl(t, string(nodeconfig.RuntimeClass(class)), "apply", "-f", "-")
	}
	k.MustKubectl(t, "", "label", "node", k.Node, nodeconfig.NodeLabel+"=true")
	return k, c
}

// scene is a namespace of Kubernetes in which one scenario runs with one class of
// runtime.
type scene struct {
	*testing.T
	k         *testbed.Kubernetes
	class     string // "" is the node's own runtime, runc
	namespace string
	dir       string // a folder of the host
}

// apply makes what a manifest says; in it RUNTIME stands for the pod's class and a
// short end, CLASS for the same in a template of pods, IMAGE for the image, and HOST
// for a folder of the host.
func (s *scene) apply(manifest string) {
	s.Helper()
	class := ""
	if s.class != "" {
		class = "runtimeClassName: " + s.class
	}
	text := strings.NewReplacer("CLASS", class+"\n      terminationGracePeriodSeconds: 2", "RUNTIME", class+"\n  terminationGracePeriodSeconds: 2", "IMAGE\n", image+"\n    imagePullPolicy: Never\n", "IMAGE", image+", imagePullPolicy: Never", "HOST", s.dir).Replace(manifest)
	s.k.MustKubectl(s, text, "--namespace", s.namespace, "apply", "-f", "-")
}

// kubectl runs a command in the scene's namespace.
func (s *scene) kubectl(args ...string) testbed.Result {
	s.Helper()
	return s.k.Kubectl(s, "", append([]string{"--namespace", s.namespace}, args...)...)
}

// must is kubectl for a command that has to succeed; it returns its output.
func (s *scene) must(args ...string) string {
	s.Helper()
	result := s.kubectl(args...)
	if result.Code != 0 {
		s.Fatalf("kubectl %q: %v\n%s", args, result, s.story())
	}
	return result.Stdout
}

// sh runs a script in a pod's container.
func (s *scene) sh(pod, container, script string) string {
	s.Helper()
	return s.must("exec", pod, "-c", container, "--", "sh", "-c", script)
}

// get is a field of an object.
func (s *scene) get(object, path string) string {
	s.Helper()
	return s.kubectl("get", object, "-o", "jsonpath={"+path+"}").Stdout
}

// expect waits until a field of an object is as wanted.
func (s *scene) expect(object, path, want string) {
	s.Helper()
	s.await(object+" "+path+" to be "+want, func() bool { return s.get(object, path) == want })
}

// ready waits until a pod is.
func (s *scene) ready(pod string) {
	s.Helper()
	s.expect("pod/"+pod, `.status.conditions[?(@.type=="Ready")].status`, "True")
}

// await waits for something to be so.
func (s *scene) await(what string, so func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited %v in vain for %s\n%s", patience, what, s.story())
		}
	}
}

// story is what Kubernetes tells of the scene.
func (s *scene) story() string {
	return s.kubectl("get", "pods", "-o", "wide").Stdout + s.kubectl("get", "events", "-o", `jsonpath={range .items[*]}{.involvedObject.name}: {.reason}: {.message}{"\n"}{end}`).Stdout
}

// command starts a command of kubectl that runs beside the test until it is ended.
func (s *scene) command(ctx context.Context, args ...string) *commandRun {
	s.Helper()
	cmd := s.k.KubectlCommand(ctx, append([]string{"--namespace", s.namespace}, args...)...)
	run := &commandRun{}
	var err error
	if run.in, err = cmd.StdinPipe(); err == nil {
		run.out, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.Fatal(err)
	}
	run.wait = cmd.Wait
	return run
}
