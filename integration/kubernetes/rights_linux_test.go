// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"fmt"
	"strconv"
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
		var user, system int
		if _, err := fmt.Sscan(s.sh("unequal", container, "cut -d ' ' -f 14,15 /proc/1/stat"), &user, &system); err != nil {
			s.Fatal(err)
		}
		const tick = 10_000
		return (user + system) * tick
	}
	little, much := used("little"), used("much")
	var littleMore, muchMore int
	// Until it is clear: the machine may be busy.
	s.await("use of the processor", func() bool {
		littleMore, muchMore = used("little")-little, used("much")-much
		return muchMore > 3_000_000
	})
	if littleMore*3 > muchMore {
		s.Errorf("with an eighth of its neighbour's limit it had %d us of processor time, its neighbour %d", littleMore, muchMore)
	}
	// A cgroup of version 1 has it elsewhere.
	if got := s.sh("unequal", "little", "cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpu/cpu.stat 2>&1 | sed -n 's/^nr_throttled //p'"); strings.TrimLeft(strings.TrimSpace(got), "0") == "" {
		s.Errorf("it was throttled %q times, its cpu.stat says", got)
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
	s.await("kubectl top", func() bool {
		var pod, container, cpu, memory string
		if _, err := fmt.Sscan(s.kubectl("top", "pod", "busy", "--containers", "--no-headers").Stdout, &pod, &container, &cpu, &memory); err != nil {
			return false // Not measured yet.
		}
		millis, err := strconv.Atoi(strings.TrimSuffix(cpu, "m"))
		megabytes, err2 := strconv.Atoi(strings.TrimSuffix(memory, "Mi"))
		return err == nil && err2 == nil && pod == "busy" && container == "one" && millis > 0 && megabytes > 50 && megabytes < 200
	})
}

// agentSandbox: a Sandbox of kubernetes-sigs/agent-sandbox, which is a pod with a
// service's name, suspended and resumed.
func agentSandbox(s *scene) {
	s.apply(`
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: agent}
spec:
  podTemplate:
    spec:
      CLASS
      containers: [{name: one, image: IMAGE, command: [sleep, "1000"]}]
`)
	const ready = `.status.conditions[?(@.type=="Ready")].status`
	s.ready("agent")
	s.expect("sandbox/agent", ready, "True")
	if got := s.get("pod/agent", ".spec.runtimeClassName"); got != s.class {
		s.Errorf("its pod's class is %q", got)
	}
	if got, want := strings.Contains(s.sh("agent", "one", "uname -r"), "gvisor"), s.class != ""; got != want {
		s.Errorf("its kernel is gVisor: %t", got)
	}
	if got := s.get("sandbox/agent", ".status.serviceFQDN"); !strings.HasPrefix(got, "agent."+s.namespace+".svc.") {
		s.Errorf("its name is %q", got)
	}
	s.must("scale", "sandbox", "agent", "--replicas=0")
	s.await("the suspended sandbox to have no pod", func() bool { return s.get("pod/agent", ".metadata.name") == "" })
	s.must("scale", "sandbox", "agent", "--replicas=1")
	s.ready("agent")
	s.must("delete", "sandbox", "agent", "--timeout=60s")
	s.await("the pod to go with its sandbox", func() bool { return s.get("pod/agent", ".metadata.name") == "" })
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

// hostNetworkRefused: without the runtime's option there is none, with a reason that
// says so.
func hostNetworkRefused(s *scene) {
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

// hostNetwork: a pod has the node's address, its probe reaches it there, and it reaches
// what listens on the node's loopback.
func hostNetwork(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: open}
spec:
  RUNTIME
  hostNetwork: true
  containers:
  - name: server
    image: IMAGE
    command: [python3, -m, http.server, "28765"]
    ports: [{containerPort: 28765}]
    readinessProbe: {httpGet: {path: /etc/hostname, port: 28765}, periodSeconds: 1}
  - {name: client, image: IMAGE, command: [sleep, "1000"]}
`)
	s.ready("open")
	if pod, host := s.get("pod/open", ".status.podIP"), s.get("pod/open", ".status.hostIP"); pod != host || pod == "" {
		s.Errorf("the pod's address is %q, the node's %q", pod, host)
	}
	if got := s.sh("open", "client", "ls /sys/class/net | sort"); got != testbed.Interfaces(s) {
		s.Errorf("it sees %q, the node has %q", got, testbed.Interfaces(s))
	}
	ask := fmt.Sprintf(`python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", %d), 10).makefile().read(), end="")'`, testbed.SayOnLoopback(s))
	if got := s.sh("open", "client", ask); got != testbed.HostSays {
		s.Errorf("the node's server said %q", got)
	}
	fetch := `python3 -c 'import urllib.request; print(len(urllib.request.urlopen("http://localhost:28765/etc/hostname").read()) > 0)'`
	if got := s.sh("open", "client", fetch); got != "True\n" {
		s.Errorf("its neighbour answered %q", got)
	}
}
