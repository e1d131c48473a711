// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"crypto/sha256"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

const episodeManifest = `
apiVersion: v1
kind: Pod
metadata:
  name: episode
  annotations:
    dev.gvx.guest-privileged: "true"
    dev.gvx.volume.docker: "src=GOLDEN,dst=/var/lib/docker,clone=ephemeral,container=engine"
spec:
  RUNTIME
  containers:
  - name: engine
    image: test.invalid/dind:latest
    imagePullPolicy: Never
    args: ["--tls=false"]
    env: [{name: DOCKER_TLS_CERTDIR, value: ""}]
    resources: {limits: {memory: 2Gi}}
    readinessProbe: {exec: {command: [docker, info]}, periodSeconds: 2, timeoutSeconds: 60}
`

const composeText = `services:
  web:
    image: box
    command: ["busybox", "httpd", "-f", "-p", "8080", "-h", "/bin"]
    healthcheck: {test: ["CMD", "busybox", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/busybox"], interval: 1s, timeout: 20s, retries: 30}
  test:
    image: box
    depends_on: {web: {condition: service_healthy}}
    command: ["busybox", "sh", "-c", "busybox wget -q -O - http://web:8080/busybox | busybox wc -c"]
`

// episode is a pod with a Docker engine on a clone of a golden volume, that says
// nothing of being privileged and is not: what its engine may do is its own
// kernel's affair.
func episode(t *testing.T, k *testbed.Kubernetes, c *testbed.Containerd) {
	c.CRIImage(t, "erofs", "dind")
	golden := filepath.Join(c.Dir, "golden.ext4")
	testbed.EmptyVolume(t, golden, 4<<30)
	before := fileSum(t, golden)
	s := newScene(t, k, "gvx", "episode")
	s.apply(strings.ReplaceAll(episodeManifest, "GOLDEN", golden))
	s.ready("episode")
	if got := s.get("pod/episode", ".spec.containers[0].securityContext"); got != "" {
		t.Errorf("the pod asks for %s", got)
	}
	busybox := testbed.NeedCommand(t, "busybox")
	tree := t.TempDir()
	if err := os.Mkdir(filepath.Join(tree, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	tar, err := exec.Command("sh", "-ec", `cp "$0" "$1/bin/busybox"; tar -C "$1" -c bin`, busybox, tree).Output()
	if err != nil {
		t.Fatal(err)
	}
	in := func(input string, args ...string) string {
		t.Helper()
		result := k.Kubectl(t, input, append([]string{"--namespace", s.namespace, "exec", "-i", "episode", "--"}, args...)...)
		if result.Code != 0 {
			t.Fatalf("%q in the episode: %v\n%s", args, result, s.kubectl("logs", "episode").Stdout)
		}
		return result.Stdout
	}
	in(string(tar), "docker", "import", "-", "box")
	in(composeText, "sh", "-c", "mkdir /app && cat > /app/compose.yaml")
	in("", "docker", "compose", "--project-directory", "/app", "up", "--detach", "--wait", "web")
	info, err := os.Stat(busybox)
	if err != nil {
		t.Fatal(err)
	}
	got := in("", "docker", "compose", "--project-directory", "/app", "run", "--rm", "test")
	if strings.TrimSpace(got) != strconv.FormatInt(info.Size(), 10) {
		t.Errorf("the test saw %q bytes, of %d", got, info.Size())
	}
	in("", "docker", "compose", "--project-directory", "/app", "down")
	s.must("delete", "pod", "episode", "--timeout=60s")
	if fileSum(t, golden) != before {
		t.Error("the golden volume has changed")
	}
}

// fileSum is a file's hash.
func fileSum(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
