// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// scenarios are what pods of any runtime do.
var scenarios = []struct {
	name string
	run  func(*scene)
}{
	{"volumes", volumes},
	{"verbs", verbs},
	{"restarts", restarts},
	{"ends", ends},
	{"rights", rights},
	{"sysctls", sysctls},
	{"limits", limits},
	{"shares", shares},
	{"controllers", controllers},
	{"agent sandbox", agentSandbox},
}

// TestPods runs them all on one node.
func TestPods(t *testing.T) {
	k, c := newNode(t)
	k.MetricsServer(t)
	k.AgentSandbox(t)
	for _, class := range []string{"", "gvx"} {
		name := class
		if name == "" {
			name = "runc"
		}
		t.Run(name, func(t *testing.T) {
			for _, scenario := range scenarios {
				t.Run(scenario.name, func(t *testing.T) {
					scenario.run(newScene(t, k, class, name+"-"+strings.ReplaceAll(scenario.name, " ", "-")))
				})
			}
		})
	}
	t.Run("class", func(t *testing.T) { classOf(newScene(t, k, "gvx", "class")) })
	t.Run("host network refused", func(t *testing.T) { hostNetworkRefused(newScene(t, k, "gvx", "hostnetwork-refused")) })
	for _, class := range []string{"", "gvx-host"} {
		t.Run("host network/"+cmp.Or(class, "runc"), func(t *testing.T) { hostNetwork(newScene(t, k, class, "hostnetwork-"+cmp.Or(class, "runc"))) })
	}
	t.Run("episode", func(t *testing.T) { episode(t, k, c) })
	nothingLeft(t, k, c)
}

// nothingLeft checks that pods are gone with all they had. kubelet keeps the
// cgroups of its classes of pods, and a mount of its folder.
func nothingLeft(t *testing.T, k *testbed.Kubernetes, c *testbed.Containerd) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		left := slices.DeleteFunc(c.Left(t), func(what string) bool {
			return strings.HasPrefix(what, "cgroup ") && !strings.Contains(what, "/pod") || what == "mount "+filepath.Join(k.Dir, "kubelet")
		})
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left after all pods: %q", left)
		}
	}
}

// newScene makes the namespace of a scenario.
func newScene(t *testing.T, k kubectl, class, namespace string) *scene {
	t.Helper()
	s := &scene{T: t, k: k, class: class, namespace: namespace, dir: t.TempDir()}
	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	k.MustKubectl(t, "", "create", "namespace", namespace)
	t.Cleanup(s.end)
	s.await("the namespace's service account", func() bool { return s.kubectl("get", "serviceaccount", "default").Code == 0 })
	s.await("the namespace's certificates", func() bool { return s.kubectl("get", "configmap", "kube-root-ca.crt").Code == 0 })
	return s
}

// end removes it with all that is in it.
func (s *scene) end() {
	s.Helper()
	if r := s.kubectl("delete", "namespace", s.namespace, "--timeout=120s"); r.Code != 0 {
		s.Errorf("remove the namespace: %v\n%s", r, s.story())
	}
}

const volumesManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data: {key: one}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {password: hush}
---
apiVersion: v1
kind: Pod
metadata: {name: volumes, labels: {app: tried}}
spec:
  RUNTIME
  hostname: chosen
  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000, supplementalGroups: [3000]}
  initContainers:
  - {name: init, image: IMAGE, command: [sh, -c, "mkdir /disk/below; echo init > /disk/below/file; id -G > /disk/groups"], volumeMounts: [{name: disk, mountPath: /disk}]}
  - {name: sidecar, restartPolicy: Always, image: IMAGE, command: [sh, -c, "echo sidecar > /memory/file; exec sleep 1000"], volumeMounts: [{name: memory, mountPath: /memory}],
     startupProbe: {exec: {command: [test, -s, /memory/file]}, periodSeconds: 1}}
  containers:
  - name: one
    image: IMAGE
    command: [sleep, "1000"]
    resources: {limits: {memory: 200Mi, cpu: 500m}}
    env:
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    - {name: KEY, valueFrom: {configMapKeyRef: {name: config, key: key}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: secret, key: password}}}
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: memory, mountPath: /memory}
    - {name: config, mountPath: /config}
    - {name: secret, mountPath: /secret, readOnly: true}
    - {name: all, mountPath: /all}
    - {name: host, mountPath: /host}
    - {name: disk, mountPath: /sub, subPath: below}
    - {name: config, mountPath: /etc/one-file, subPath: key}
  - {name: two, image: IMAGE, command: [sleep, "1000"], volumeMounts: [{name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}]}
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
  - {name: config, configMap: {name: config}}
  - {name: secret, secret: {secretName: secret, defaultMode: 0440}}
  - {name: host, hostPath: {path: HOST, type: Directory}}
  - name: all
    projected:
      sources:
      - {configMap: {name: config}}
      - {secret: {name: secret}}
      - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
      - {serviceAccountToken: {path: token, expirationSeconds: 3600}}
`

// volumes: every kind that needs no driver, several containers, those before and
// beside them, and what changes while the pod runs.
func volumes(s *scene) {
	if err := os.WriteFile(filepath.Join(s.dir, "file"), []byte("host\n"), 0o644); err != nil {
		s.Fatal(err)
	}
	s.apply(volumesManifest)
	s.ready("volumes")
	got := s.sh("volumes", "one", `hostname; cat /disk/below/file /disk/groups /memory/file /config/key /secret/password /all/key /all/password /all/labels /host/file /sub/file /etc/one-file
echo; echo $POD $LIMIT $KEY $PASSWORD; stat -c '%g %a' /disk; stat -L -c '%g %a' /secret/password; test -s /all/token && echo token; cut -d. -f2 /all/token | wc -l
echo x 2>/dev/null > /secret/password || echo refused; echo guest > /host/guest; echo one > /disk/one; echo one > /memory/one; df -k --output=size /memory | tail -n 1 | tr -d " "`)
	want := "chosen\ninit\n1000 2000 3000\nsidecar\nonehushonehushapp=\"tried\"host\ninit\none\nvolumes 209715200 one hush\n2000 2777\n2000 440\ntoken\n1\nrefused\n16384\n"
	if got != want {
		s.Errorf("the pod has\n%s\nwant\n%s", got, want)
	}
	if got := s.sh("volumes", "two", "cat /disk/one /memory/one; stat -c %g /disk/one"); got != "one\none\n2000\n" {
		s.Errorf("its other container has %q", got)
	}
	if data, err := os.ReadFile(filepath.Join(s.dir, "guest")); err != nil || string(data) != "guest\n" {
		s.Errorf("the host has %q, %v", data, err)
	}
	s.must("patch", "configmap", "config", "-p", `{"data": {"key": "two"}}`)
	s.must("label", "pod", "volumes", "--overwrite", "app=changed")
	s.await("what has changed", func() bool {
		return s.sh("volumes", "one", "cat /config/key /all/key /all/labels") == `twotwoapp="changed"`
	})
	if got := s.sh("volumes", "one", "cat /etc/one-file"); got != "one" {
		s.Errorf("a file mounted by itself has become %q", got)
	}
}

// restarts: a container that probes find dead comes again, with a new file system
// and the pod's volumes; what it said before can be read.
func restarts(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: dies}
spec:
  RUNTIME
  containers:
  - name: one
    image: IMAGE
    command: [sh, -c, "touch /kept/lives; echo life $(wc -l < /kept/lives); echo x >> /kept/lives; touch /alive /mine-$(wc -l < /kept/lives); ls /mine-*; exec python3 -m http.server 8080"]
    volumeMounts: [{name: kept, mountPath: /kept}]
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
    readinessProbe: {httpGet: {port: 8080, path: /etc/hostname}, periodSeconds: 1}
    livenessProbe: {exec: {command: [test, -e, /alive]}, periodSeconds: 1, failureThreshold: 2, timeoutSeconds: 20}
  - {name: other, image: IMAGE, command: [sh, -c, "echo started; exec sleep 1000"]}
  volumes: [{name: kept, emptyDir: {}}]
`)
	s.ready("dies")
	s.sh("dies", "one", "rm /alive")
	s.await("another life", func() bool {
		return s.get("pod/dies", `.status.containerStatuses[?(@.name=="one")].restartCount`) == "1"
	})
	s.ready("dies")
	if got := s.must("logs", "dies", "-c", "one", "--previous"); !strings.Contains(got, "life 0\n/mine-1\n") {
		s.Errorf("the first life said %q", got)
	}
	if got := s.must("logs", "dies", "-c", "one"); !strings.Contains(got, "life 1\n/mine-2\n") {
		s.Errorf("the second life said %q", got)
	}
	if got := s.get("pod/dies", `.status.containerStatuses[?(@.name=="other")].restartCount`); got != "0" {
		s.Errorf("the other container came again %s times", got)
	}
}

// ends: exit codes, messages, reasons, and the order of a pod's end.
func ends(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec:
  RUNTIME
  restartPolicy: Never
  containers:
  - {name: message, image: IMAGE, command: [sh, -c, "echo its last words > /dev/termination-log; exit 3"]}
  - {name: logs, image: IMAGE, command: [sh, -c, "echo what it said; exit 4"], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: memory, image: IMAGE, command: [python3, -c, "x = bytearray(400 << 20); print(len(x))"], resources: {limits: {memory: 128Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: slow}
spec:
  RUNTIME
  containers:
  - name: one
    image: IMAGE
    command: [sh, -c, "trap 'sleep 0.5; echo TERM >> /host/end; exit 0' TERM; echo up > /host/up; while :; do sleep 0.1; done"]
    lifecycle: {preStop: {exec: {command: [sh, -c, "echo preStop >> /host/end"]}}, postStart: {exec: {command: [sh, -c, "echo postStart >> /host/end"]}}}
    volumeMounts: [{name: host, mountPath: /host}]
  volumes: [{name: host, hostPath: {path: HOST}}]
`)
	state := func(name, field string) string {
		return `.status.containerStatuses[?(@.name=="` + name + `")].state.terminated.` + field
	}
	s.expect("pod/ends", state("message", "exitCode"), "3")
	s.expect("pod/ends", state("message", "message"), "its last words\n")
	s.expect("pod/ends", state("logs", "exitCode"), "4")
	s.expect("pod/ends", state("logs", "message"), "what it said\n")
	s.expect("pod/ends", state("memory", "reason"), "OOMKilled")
	s.expect("pod/ends", ".status.phase", "Failed")
	s.ready("slow")
	s.await("its trap", func() bool { _, err := os.Stat(filepath.Join(s.dir, "up")); return err == nil })
	s.must("delete", "pod", "slow", "--grace-period=30", "--timeout=60s")
	if data, err := os.ReadFile(filepath.Join(s.dir, "end")); err != nil || string(data) != "postStart\npreStop\nTERM\n" {
		s.Errorf("the end was %q, %v", data, err)
	}
}
