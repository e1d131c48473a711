// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
)

// Kubernetes is a cluster of one node, whose containers a containerd of the tests
// runs: etcd, API server, controllers, scheduler and kubelet, each a process of
// the tests' own in namespaces that [MainAlone] made.
type Kubernetes struct {
	// Dir holds all its files; Node is the name of its node.
	Dir, Node string

	containerd *Containerd
	bin        string
	running    []*exec.Cmd // in the order in which they were started
}

const (
	// nodeAddress is the node's: kubelet takes none of the loopback interface.
	nodeAddress = "10.88.78.1"
	// apiAddress and etcdAddress are in the tests' own network namespace.
	apiAddress  = "127.0.0.1:16443"
	etcdAddress = "127.0.0.1:12379"
	// nodePatience is how long a part of the cluster may take to come up.
	nodePatience = 3 * time.Minute
)

const kubeconfigText = `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://{{.API}}", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: test}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`

// kubeletText has short periods, for the tests wait for what they bring; its
// cgroups are below those of the tests' containerd.
const kubeletText = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /{{.CgroupRoot}}
containerRuntimeEndpoint: unix://{{.Socket}}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
address: 0.0.0.0
port: 20250
healthzPort: 20248
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
resolvConf: {{.Dir}}/resolv.conf
podLogsDir: {{.Dir}}/logs
syncFrequency: 2s
`

// NewKubernetes starts a cluster. The caller ends it by Close, before containerd.
func NewKubernetes(t testing.TB, c *Containerd) *Kubernetes {
	t.Helper()
	k := &Kubernetes{Dir: filepath.Join(c.Dir, "kubernetes"), Node: "node", containerd: c, bin: Need(t, "kubernetes")}
	if err := k.files(); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("sh", "-ec", "ip link add gvx-node0 type bridge; ip addr add "+nodeAddress+"/24 dev gvx-node0; ip link set gvx-node0 up").CombinedOutput(); err != nil {
		t.Fatalf("make the node's interface: %v: %s", err, output)
	}
	for _, top := range k.cgroupTops(t) {
		if err := os.Mkdir(filepath.Join(top, c.Namespace), 0o755); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	k.start(t)
	return k
}

// files writes configuration and keys.
func (k *Kubernetes) files() error {
	for _, name := range []string{"certs", "etcd", "kubelet", "logs"} {
		if err := os.MkdirAll(filepath.Join(k.Dir, name), 0o755); err != nil {
			return err
		}
	}
	values := map[string]string{"API": apiAddress, "Dir": k.Dir, "Socket": k.containerd.Socket, "CgroupRoot": k.containerd.Namespace}
	for name, text := range map[string]string{
		"kubeconfig": kubeconfigText, "kubelet.yaml": kubeletText,
		"tokens.csv": "test,admin,1,\"system:masters\"\n", "resolv.conf": "nameserver 127.0.0.1\n",
	} {
		var out bytes.Buffer
		if err := template.Must(template.New("").Parse(text)).Execute(&out, values); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(k.Dir, name), out.Bytes(), 0o600); err != nil {
			return err
		}
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := k.frontProxy(); err != nil {
		return err
	}
	return k.writePEM(map[string]*pem.Block{
		"sa.key": {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
		"sa.pub": {Type: "PUBLIC KEY", Bytes: public},
	})
}

// start starts the parts, each when those it needs are there.
func (k *Kubernetes) start(t testing.TB) {
	t.Helper()
	config := "--kubeconfig=" + k.path("kubeconfig")
	k.run(t, "etcd", "--data-dir", k.path("etcd"), "--listen-client-urls", "http://"+etcdAddress, "--advertise-client-urls", "http://"+etcdAddress,
		"--listen-peer-urls", "http://127.0.0.1:12380", "--unsafe-no-fsync")
	k.run(t, "kube-apiserver", "--etcd-servers=http://"+etcdAddress, "--service-cluster-ip-range=10.97.0.0/24", "--secure-port=16443",
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--cert-dir="+k.path("certs"),
		"--service-account-issuer=https://test.invalid", "--service-account-key-file="+k.path("sa.pub"), "--service-account-signing-key-file="+k.path("sa.key"),
		"--token-auth-file="+k.path("tokens.csv"), "--authorization-mode=RBAC", "--allow-privileged", "--kubelet-preferred-address-types=InternalIP",
		"--enable-aggregator-routing", "--proxy-client-cert-file="+k.path("front.crt"), "--proxy-client-key-file="+k.path("front.key"),
		"--requestheader-client-ca-file="+k.path("front-ca.crt"), "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-")
	k.await(t, "the API server", func() bool { return k.Kubectl(t, "", "get", "--raw", "/readyz").Code == 0 })
	k.run(t, "kube-controller-manager", config, "--service-account-private-key-file="+k.path("sa.key"), "--root-ca-file="+k.path("certs/apiserver.crt"),
		"--use-service-account-credentials", "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=20257", "--cert-dir="+k.path("certs"))
	k.run(t, "kube-scheduler", config, "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=20259", "--cert-dir="+k.path("certs"))
	k.run(t, "kubelet", config, "--config="+k.path("kubelet.yaml"), "--root-dir="+k.path("kubelet"), "--cert-dir="+k.path("certs"),
		"--hostname-override="+k.Node, "--node-ip="+nodeAddress, "-v=2")
	k.await(t, "the node", func() bool {
		return k.Kubectl(t, "", "get", "node", k.Node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`).Stdout == "True"
	})
	k.await(t, "the default service account", func() bool { return k.Kubectl(t, "", "get", "serviceaccount", "default").Code == 0 })
}

func (k *Kubernetes) path(name string) string { return filepath.Join(k.Dir, name) }

// run starts a part of Kubernetes itself.
func (k *Kubernetes) run(t testing.TB, name string, args ...string) {
	t.Helper()
	k.runProgram(t, filepath.Join(k.bin, name), name, args...)
}

// runProgram starts a part; what it says goes to a file of its name.
func (k *Kubernetes) runProgram(t testing.TB, program, name string, args ...string) {
	t.Helper()
	log, err := os.Create(k.path(name + ".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Args[0] = name
	cmd.Env = []string{"PATH=" + k.containerd.path, "HOME=" + k.Dir}
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, k.Dir
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	k.running = append(k.running, cmd)
}

func (k *Kubernetes) await(t testing.TB, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(nodePatience); !there(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s is not there after %v: %s", what, nodePatience, k.Logs())
		}
	}
}

// Logs are the ends of what the parts have said.
func (k *Kubernetes) Logs() string {
	var b strings.Builder
	for _, cmd := range k.running {
		name := cmd.Args[0]
		data, err := os.ReadFile(k.path(name + ".log"))
		fmt.Fprintf(&b, "\n%s: %v %s\n", name, err, clip(string(data)))
	}
	return b.String()
}

// KubectlCommand makes a command of Kubernetes' own client.
func (k *Kubernetes) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(k.bin, "kubectl"), append([]string{"--kubeconfig", k.path("kubeconfig"), "--cache-dir", k.path("cache")}, args...)...)
	cmd.Env = []string{"PATH=" + k.containerd.path, "HOME=" + k.Dir}
	cmd.WaitDelay = 15 * time.Second
	return cmd
}

// Kubectl runs a command of kubectl to its end, with what it reads.
func (k *Kubernetes) Kubectl(t testing.TB, input string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	return Run(t, k.KubectlCommand(ctx, args...), strings.NewReader(input))
}

// MustKubectl is Kubectl for a command that has to succeed; it returns its output.
func (k *Kubernetes) MustKubectl(t testing.TB, input string, args ...string) string {
	t.Helper()
	result := k.Kubectl(t, input, args...)
	if result.Code != 0 {
		t.Fatalf("kubectl %q: %v", args, result)
	}
	return result.Stdout
}

// Close ends all parts; pods have to be gone.
func (k *Kubernetes) Close(t testing.TB) {
	t.Helper()
	for _, cmd := range slices.Backward(k.running) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("end %s: %v", cmd.Args[0], err)
		}
		// The API server waits for clients that have gone already.
		stop := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		stop.Stop()
	}
	if output, err := exec.Command("ip", "link", "del", "gvx-node0").CombinedOutput(); err != nil {
		t.Errorf("remove the node's interface: %v: %s", err, output)
	}
	// kubelet leaves a mount of its folder, and the cgroups of its classes of pods.
	if err := unix.Unmount(k.path("kubelet"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		t.Errorf("unmount kubelet's folder: %v", err)
	}
	groups := k.containerd.cgroups(t)
	for _, group := range slices.Backward(groups) {
		if strings.Contains(group, "/kubepods") {
			_ = os.Remove(strings.TrimPrefix(group, "cgroup "))
		}
	}
}

// cgroupTops are the roots of the machine's cgroup hierarchies.
func (k *Kubernetes) cgroupTops(t testing.TB) []string {
	t.Helper()
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil {
		return []string{root} // Version 2: what is below are groups.
	}
	tops, err := filepath.Glob(filepath.Join(root, "*", "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	for i, top := range tops {
		tops[i] = filepath.Dir(top)
	}
	return tops
}
