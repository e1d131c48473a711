// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"z.gfire.dev/gvx/integration/testbed"
	"z.gfire.dev/gvx/runtime/nodeconfig"
)

// TestDaemonSet: a node that knows nothing of gvx gets it by the manifest of
// install/kubernetes, and runs a pod of the class when containerd has been
// restarted.
func TestDaemonSet(t *testing.T) {
	testbed.NeedRoot(t, "a Kubernetes node")
	c := testbed.NewContainerd(t, testbed.ContainerdOptions{})
	t.Cleanup(func() { c.Close(t) })
	programs := filepath.Join(c.Dir, "programs")
	layout := filepath.Join(c.Dir, "gvx-node")
	if output, err := exec.Command(filepath.Join(testbed.Tree(), "install/kubernetes/image.sh"), layout).CombinedOutput(); err != nil {
		t.Fatalf("make the node's image: %v: %s", err, output)
	}
	const namespace = "k8s.io"
	c.CRIPause(t, "overlayfs")
	c.CRIImage(t, "overlayfs", "demo")
	c.ImportAs(t, "overlayfs", layout, "test.invalid/gvx-node", namespace)
	c.ImportAs(t, "overlayfs", kubectlImage(t), "test.invalid/kubectl", namespace)
	k := testbed.NewKubernetes(t, c)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("cluster: %s\ncontainerd: %s", k.Logs(), c.Log())
		}
		k.Close(t)
	})
	manifest, err := os.ReadFile(filepath.Join(testbed.Tree(), "install/kubernetes/daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// The images are the tests', and so are the node's folders and, where nothing
	// serves addresses of services, the way to the API server.
	text := strings.NewReplacer("gvx-node:latest", "test.invalid/gvx-node:latest", "registry.k8s.io/kubectl:v1.37.2", "test.invalid/kubectl:latest",
		"registry.k8s.io/pause:3.10.1", testbed.PauseImage, "/opt/gvx", programs, "/etc/containerd", c.Dir,
		"- name: NODE\n", "- {name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}\n        - {name: KUBERNETES_SERVICE_PORT, value: \"16443\"}\n        - name: NODE\n").Replace(string(manifest))
	k.MustKubectl(t, text, "apply", "-f", "-")
	k.MustKubectl(t, string(nodeconfig.RuntimeClass("gvx")), "apply", "-f", "-")
	s := &scene{T: t, k: k, class: "gvx", namespace: "gvx-system", dir: t.TempDir()}
	t.Cleanup(s.end)
	s.expect("daemonset/gvx-node", ".status.numberReady", "1")
	if got := k.MustKubectl(t, "", "get", "node", k.Node, "-o", `jsonpath={.metadata.labels}`); !strings.Contains(got, `"`+nodeconfig.NodeLabel+`":"true"`) {
		t.Errorf("the node's labels are %s", got)
	}
	c.Stop(t)
	c.Start(t)
	s = newScene(t, k, "gvx", "tried")
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: first}
spec:
  RUNTIME
  containers: [{name: one, image: IMAGE, command: [sleep, "1000"]}]
`)
	s.ready("first")
	if got := s.sh("first", "one", "dmesg | head -n 1"); !strings.Contains(got, "gVisor") {
		t.Errorf("its kernel says %q", got)
	}
}

// kubectlImage is one with kubectl in it, as registry.k8s.io has it.
func kubectlImage(t *testing.T) string {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(testbed.Need(t, "kubernetes"), "kubectl"))
	if err != nil {
		t.Fatal(err)
	}
	image := testbed.WithConfig(t, testbed.NewImage(t, testbed.TarOf(t, "kubectl", program)), func(config *v1.Config) {
		config.Env = []string{"PATH=/"}
	})
	dir := filepath.Join(t.TempDir(), "kubectl")
	testbed.WriteLayout(t, dir, image)
	return dir
}
