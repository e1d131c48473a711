// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"fmt"
	"strings"

	"z.gfire.dev/gvx/integration/testbed"
)

// kubectl is a cluster.
type kubectl = *testbed.Kubernetes

// rights: what a pod says about its own.
func rights(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  RUNTIME
  shareProcessNamespace: true
  securityContext: {runAsNonRoot: true, runAsUser: 1234, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: one
    image: IMAGE
    command: [sleep, "1000"]
    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
  - {name: two, image: IMAGE, command: [sleep, "1001"], securityContext: {runAsUser: 0, runAsNonRoot: false, capabilities: {drop: [ALL], add: [CHOWN, NET_BIND_SERVICE]}}}
`)
	s.ready("bare")
	got := s.sh("bare", "one", `id -u; grep -E '^(NoNewPrivs|CapEff|Seccomp):' /proc/self/status; touch /x 2>/dev/null || echo read-only; tr '\0' ' ' < /proc/self/mounts | grep -c ' / .*ro'`)
	want := "1234\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nread-only\n1\n"
	if got != want {
		s.Errorf("the bare container has\n%s\nwant\n%s", got, want)
	}
	got = s.sh("bare", "two", `grep CapEff /proc/self/status; touch /x; chown 5 /x && stat -c %u /x; cat /proc/*/cmdline 2>/dev/null | tr '\0' '\n' | grep -x '100[01]' | sort`)
	if want := "CapEff:\t0000000000000401\n5\n1000\n1001\n"; got != want {
		s.Errorf("its neighbour has\n%s\nwant\n%s", got, want)
	}
}

// sysctls: the ones that a node allows.
func sysctls(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: tuned}
spec:
  RUNTIME
  securityContext: {sysctls: [{name: net.ipv4.ip_local_port_range, value: "20000 30000"}]}
  containers: [{name: one, image: IMAGE, command: [sleep, "1000"]}]
`)
	s.ready("tuned")
	if got := s.sh("tuned", "one", "cat /proc/sys/net/ipv4/ip_local_port_range"); strings.Join(strings.Fields(got), " ") != "20000 30000" {
		s.Errorf("its settings are %q", got)
	}
}

// shares: containers of one pod have limits of processor time of their own.
func shares(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: unequal}
spec:
  RUNTIME
  containers:
  - {name: little, image: IMAGE, command: [python3, -c, "while True: pass"], resources: {limits: {cpu: 100m}}}
  - {name: much, image: IMAGE, command: [python3, -c, "while True: pass"], resources: {limits: {cpu: 800m}}}
`)
	s.ready("unequal")
	used := func(container string) (micros int) {
		if _, err := fmt.Sscan(s.sh("unequal", container, "sed -n 's/^usage_usec //p' /sys/fs/cgroup/cpu.stat"), &micros); err != nil {
			s.Fatal(err)
		}
		return micros
	}
	little, much := used("little"), used("much")
	// Until it is clear: the machine may be busy.
	const clear = 2_000_000
	s.await("use of the processor", func() bool { return used("much")-much > clear })
	if got := used("little") - little; got > clear/2 {
		s.Errorf("with an eighth of its neighbour's limit it had %d us of processor time, its neighbour %d", got, used("much")-much)
	}
	if got := s.sh("unequal", "little", "sed -n 's/^nr_throttled //p' /sys/fs/cgroup/cpu.stat"); strings.TrimSpace(got) == "0" {
		s.Errorf("it was never throttled, its cpu.stat says")
	}
}

// limits: what kubelet measures of a pod, which is what `kubectl top` shows.
func limits(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  RUNTIME
  containers: [{name: one, image: IMAGE, command: [python3, -c, "x = bytearray(b'x') * (50 << 20)\nwhile True: pass"], resources: {limits: {memory: 200Mi, cpu: 500m}, requests: {memory: 100Mi, cpu: 100m}}}]
`)
	s.ready("busy")
	if got := s.get("pod/busy", ".status.qosClass"); got != "Burstable" {
		s.Errorf("its class is %q", got)
	}
	s.await("the pod's figures", func() bool {
		var summary struct {
			Pods []struct {
				PodRef     struct{ Name, Namespace string }
				CPU        struct{ UsageNanoCores int64 }
				Memory     struct{ WorkingSetBytes int64 }
				Containers []struct {
					CPU    struct{ UsageNanoCores, UsageCoreNanoSeconds int64 }
					Memory struct{ WorkingSetBytes int64 }
				}
			}
		}
		if err := json.Unmarshal([]byte(s.must("get", "--raw", "/api/v1/nodes/"+s.k.Node+"/proxy/stats/summary")), &summary); err != nil {
			s.Fatal(err)
		}
		for _, pod := range summary.Pods {
			if pod.PodRef.Name == "busy" && pod.PodRef.Namespace == s.namespace && len(pod.Containers) == 1 {
				one := pod.Containers[0]
				return one.Memory.WorkingSetBytes > 50<<20 && one.Memory.WorkingSetBytes < 200<<20 && one.CPU.UsageCoreNanoSeconds > 0 &&
					pod.Memory.WorkingSetBytes > 50<<20 && pod.CPU.UsageNanoCores > 0
			}
		}
		return false
	})
}

// controllers: what makes pods for others.
func controllers(s *scene) {
	s.apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  completions: 3
  parallelism: 2
  template:
    spec:
      CLASS
      restartPolicy: Never
      containers: [{name: one, image: IMAGE, command: [sh, -c, "echo done"]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: servers}
spec:
  replicas: 3
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      CLASS
      containers: [{name: one, image: IMAGE, command: [python3, -m, http.server, "8080"], readinessProbe: {httpGet: {port: 8080, path: /etc/hostname}, periodSeconds: 1}}]
`)
	s.expect("job/job", ".status.succeeded", "3")
	s.expect("deployment/servers", ".status.availableReplicas", "3")
	// One pod reaches another's address.
	pods := strings.Fields(s.must("get", "pods", "-l", "app=server", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {end}`))
	fetch := "import urllib.request; print(urllib.request.urlopen('http://" + pods[3] + ":8080/etc/hostname').read().decode(), end='')"
	if got := s.must("exec", pods[0], "--", "python3", "-c", fetch); got != pods[2]+"\n" {
		s.Errorf("pod %s at %s answers %q", pods[2], pods[3], got)
	}
	s.must("scale", "deployment/servers", "--replicas=1")
	s.expect("deployment/servers", ".status.replicas", "1")
}

// classOf: the class' overhead and its choice of nodes come into its pods.
func classOf(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: classed}
spec:
  RUNTIME
  containers: [{name: one, image: IMAGE, command: [sleep, "1000"]}]
`)
	s.ready("classed")
	if got := s.get("pod/classed", ".spec.overhead.memory"); got == "" {
		s.Error("the pod has no overhead")
	}
	if got := s.get("pod/classed", `.spec.nodeSelector`); !strings.Contains(got, "dev.gvx/runtime") {
		s.Errorf("the pod's nodes are %q", got)
	}
	if got := s.sh("classed", "one", "dmesg | head -n 1"); !strings.Contains(got, "gVisor") {
		s.Errorf("its kernel says %q", got)
	}
}

// hostNetwork is refused, with a reason that says so.
func hostNetwork(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: open}
spec:
  RUNTIME
  hostNetwork: true
  containers: [{name: one, image: IMAGE, command: [sleep, "1000"]}]
`)
	s.await("the refusal", func() bool {
		return strings.Contains(s.must("get", "events", "-o", "jsonpath={.items[*].message}"), "does not get the host's network")
	})
}
