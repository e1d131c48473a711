// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// dockerd is an engine of the host's, with rungv among its runtimes.
type dockerd struct {
	dir, socket string
	// client is its docker program, run with env.
	client string
	env    []string
	// runtime is the name of the one that containers get.
	runtime string
	// subnet is that of the network "net".
	subnet string
	cmd    *exec.Cmd
	log    *os.File
}

// engineFiles is where the programs of an engine are.
type engineFiles struct {
	daemon, client string
	path           []string
	plugins        string
	// old ones know neither features nor IPv6 tables.
	old bool
}

// newestEngine is the newest engine, with compose and buildx.
func newestEngine(t *testing.T) engineFiles {
	local := filepath.Join(testbed.Need(t, "engine"), "usr/local")
	bin := filepath.Join(local, "bin")
	return engineFiles{
		daemon: filepath.Join(bin, "dockerd"), client: filepath.Join(bin, "docker"), path: []string{bin},
		plugins: filepath.Join(local, "libexec/docker/cli-plugins"),
	}
}

// debianEngine is Debian's docker.io, out of an image with it: its programs run on the
// host as they are.
func debianEngine(t *testing.T) engineFiles {
	usr := filepath.Join(testbed.Need(t, "dind-debian"), "rootfs/usr")
	bin, sbin := filepath.Join(usr, "bin"), filepath.Join(usr, "sbin")
	// Not all that is there: what else it runs is the host's.
	own := t.TempDir()
	for _, program := range []string{"bin/containerd", "bin/containerd-shim-runc-v2", "bin/docker-init", "sbin/docker-proxy", "sbin/runc"} {
		if _, err := os.Stat(filepath.Join(usr, program)); err != nil {
			continue
		}
		if err := os.Symlink(filepath.Join(usr, program), filepath.Join(own, filepath.Base(program))); err != nil {
			t.Fatal(err)
		}
	}
	return engineFiles{daemon: filepath.Join(sbin, "dockerd"), client: filepath.Join(bin, "docker"), path: []string{own}, old: true}
}

// newDockerd starts an engine. runtimes are those of its configuration, beside what
// `rungv install` adds.
func newDockerd(t *testing.T, rungv string, e engineFiles, runtimes map[string]any) *dockerd {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "gvx-dockerd-")
	if err != nil {
		t.Fatal(err)
	}
	d := &dockerd{dir: dir, socket: filepath.Join(dir, "docker.sock"), client: e.client, runtime: "gvx", subnet: "10.88.78.0/24"}
	if err := os.Mkdir(filepath.Join(dir, "client"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "client", "config.json"), fmt.Appendf(nil, `{"cliPluginsExtraDirs": [%q]}`, e.plugins), 0o600); err != nil {
		t.Fatal(err)
	}
	d.env = append(os.Environ(), "DOCKER_CONFIG="+filepath.Join(dir, "client"))
	program := shim.Get(t)
	settings := map[string]any{
		"runtimes": runtimes,
		"hosts":    []string{"unix://" + d.socket}, "data-root": filepath.Join(dir, "data"), "exec-root": filepath.Join(dir, "exec"),
		"pidfile": filepath.Join(dir, "pid"), "iptables": false, "ip6tables": false, "ip-forward": false, "features": map[string]bool{"cdi": false},
	}
	if e.old {
		delete(settings, "features")
		delete(settings, "ip6tables")
	}
	config, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := testbed.Run(t, exec.Command(rungv, "install", "--docker", "--docker-config", filepath.Join(dir, "daemon.json")), nil); r.Code != 0 {
		t.Fatal(r)
	}
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	d.cmd = exec.Command(e.daemon, "--config-file", filepath.Join(dir, "daemon.json"))
	d.cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(e.path, filepath.Dir(program), os.Getenv("PATH")), ":"), "GVX_ROOT="+filepath.Join(dir, "gvx"))
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.close(t) })
	eventually(t, "the engine answers", func() bool { return d.docker(t, "version").Code == 0 })
	return d
}

// close ends the engine with all that it started.
func (d *dockerd) close(t *testing.T) {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- d.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the engine does not end")
		_ = d.cmd.Process.Kill()
		<-ended
	}
	if t.Failed() {
		text, _ := os.ReadFile(d.log.Name())
		t.Logf("dockerd: %s", text[max(0, len(text)-8000):])
	}
	d.log.Close()
	// An engine leaves the host's network namespace mounted, for containers that use it.
	if err := syscall.Unmount(filepath.Join(d.dir, "exec", "netns", "default"), syscall.MNT_DETACH); err != nil && err != syscall.ENOENT && err != syscall.EINVAL {
		t.Error(err)
	}
	if err := os.RemoveAll(d.dir); err != nil {
		t.Error(err)
	}
}

func (d *dockerd) docker(t *testing.T, args ...string) testbed.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.client, append([]string{"-H", "unix://" + d.socket}, args...)...)
	cmd.Env = d.env
	return testbed.Run(t, cmd, nil)
}

func (d *dockerd) must(t *testing.T, args ...string) string {
	t.Helper()
	r := d.docker(t, args...)
	if r.Code != 0 {
		t.Fatalf("docker %q: %v", args, r)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// TestDockerd: `docker run --runtime`, with a runtime that `rungv install` has added to
// the engine's configuration, and with the shim.
func TestDockerd(t *testing.T) {
	home := newHome(t)
	options := filepath.Join(t.TempDir(), "options.toml")
	if err := os.WriteFile(options, []byte("host_network = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDockerd(t, home.Path("bin", "rungv"), newestEngine(t), map[string]any{
		"shim":      map[string]string{"runtimeType": testbed.Runtime},
		"open":      map[string]any{"path": home.Path("bin", "rungv"), "runtimeArgs": []string{"--allow-host-network"}},
		"open-shim": map[string]any{"runtimeType": testbed.Runtime, "options": map[string]any{"ConfigPath": options}},
	})
	d.runAll(t, []string{"gvx", "shim"}, map[string]func(*testing.T, *dockerd){
		"run": dockerRun, "exec": dockerExec, "files": dockerFiles, "volumes": dockerVolumes, "limits": dockerLimits,
		"life": dockerLife, "network": dockerNetwork, "terminal": dockerTerminal, "build": dockerBuild, "compose": dockerCompose,
	})
	t.Run("host network", func(t *testing.T) { dockerHostNetwork(t, d) })
}

// dockerHostNetwork: --network host is refused, unless the runtime's configuration has
// it.
func dockerHostNetwork(t *testing.T, d *dockerd) {
	port := fmt.Sprint(testbed.SayOnLoopback(t))
	ask := []string{"--rm", "--network", "host", "demo", "python3", "-c", "import socket, sys; print(socket.create_connection(('127.0.0.1', sys.argv[1]), 10).makefile().read(), end='')", port}
	for _, d.runtime = range []string{"gvx", "shim"} {
		if r := d.run(t, ask...); r.Code == 0 || !strings.Contains(r.Stderr, "does not get the host's network") {
			t.Errorf("%s: %v", d.runtime, r)
		}
	}
	for _, d.runtime = range []string{"runc", "open", "open-shim"} {
		if r := d.run(t, ask...); r.Code != 0 || r.Stdout != testbed.HostSays {
			t.Errorf("%s: %v", d.runtime, r)
		}
	}
}

// TestDebiansDockerd is the same with Debian's docker.io, which knows no shims but its
// own.
func TestDebiansDockerd(t *testing.T) {
	home := newHome(t)
	d := newDockerd(t, home.Path("bin", "rungv"), debianEngine(t), nil)
	d.subnet = "10.88.79.0/24" // engines leave their bridges
	d.runAll(t, []string{"gvx"}, map[string]func(*testing.T, *dockerd){
		"run": dockerRun, "exec": dockerExec, "files": dockerFiles, "volumes": dockerVolumes, "limits": dockerLimits,
		"life": dockerLife, "network": dockerNetwork, "build": dockerBuild,
	})
}

// runAll runs tests with each of several runtimes.
func (d *dockerd) runAll(t *testing.T, runtimes []string, tests map[string]func(*testing.T, *dockerd)) {
	loadDemo(t, d)
	d.must(t, "network", "create", "--subnet", d.subnet, "net")
	for _, d.runtime = range runtimes {
		t.Run(d.runtime, func(t *testing.T) {
			for name, test := range tests {
				t.Run(name, func(t *testing.T) { test(t, d) })
			}
		})
	}
	if left := d.must(t, "ps", "-aq"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}

// run is `docker run` with our runtime.
func (d *dockerd) run(t *testing.T, args ...string) testbed.Result {
	t.Helper()
	return d.docker(t, append([]string{"run", "--runtime", d.runtime}, args...)...)
}

// start runs a container in the background, for the test's duration.
func (d *dockerd) start(t *testing.T, args ...string) string {
	t.Helper()
	id := d.must(t, append([]string{"run", "--runtime", d.runtime, "-d"}, args...)...)
	t.Cleanup(func() { d.must(t, "rm", "-f", "-v", id) })
	return id
}

func dockerRun(t *testing.T, d *dockerd) {
	for _, c := range []struct {
		args []string
		code int
		out  string
	}{
		{[]string{"--rm", "demo", "sh", "-c", "echo hello; id -u; cat /proc/version"}, 0, "hello\n0\nLinux version 4.19.0-gvisor"},
		{[]string{"--rm", "demo", "sh", "-c", "exit 42"}, 42, ""},
		{[]string{"--rm", "demo", "sh", "-c", "kill -9 $$"}, 137, ""},
		{[]string{"--rm", "demo", "nosuch"}, 127, ""},
		{[]string{"--rm", "demo", "/etc/passwd"}, 126, ""},
		{[]string{"--rm", "-u", "1000:1000", "-w", "/tmp", "-e", "K=V", "demo", "sh", "-c", "id -u; pwd; echo $K"}, 0, "1000\n/tmp\nV\n"},
		{[]string{"--rm", "--read-only", "--tmpfs", "/scratch", "demo", "sh", "-c", "touch /x 2>/dev/null || touch /scratch/x && echo fine"}, 0, "fine\n"},
		{[]string{"--rm", "--hostname", "named", "demo", "hostname"}, 0, "named\n"},
		{[]string{"--rm", "--cap-drop", "ALL", "demo", "grep", "CapEff", "/proc/self/status"}, 0, "CapEff:\t0000000000000000\n"},
		{[]string{"--rm", "--network", "none", "demo", "sh", "-c", "cat /proc/net/dev | grep -c :"}, 0, "1\n"},
		{[]string{"--rm", "--sysctl", "net.ipv4.ip_forward=1", "demo", "cat", "/proc/sys/net/ipv4/ip_forward"}, 0, "1\n"},
		{[]string{"--rm", "demo", "python3", "-u", "-c", "print('x' * 200000)"}, 0, strings.Repeat("x", 200000) + "\n"},
		{[]string{"--rm", "--ulimit", "nofile=77:88", "demo", "sh", "-c", "ulimit -n"}, 0, "77\n"},
	} {
		r := d.run(t, c.args...)
		if r.Code != c.code || !strings.HasPrefix(r.Stdout, c.out) {
			t.Errorf("%q: want code %d and %q: %v", c.args, c.code, c.out, r)
		}
	}
}

func dockerExec(t *testing.T, d *dockerd) {
	box := d.start(t, "demo", "sleep", "1000")
	if got := d.must(t, "exec", "-e", "A=b", "-w", "/etc", box, "sh", "-c", "echo $A; pwd"); got != "b\n/etc" {
		t.Errorf("printed %q", got)
	}
	// Engines of different ages make different codes of what a runtime says.
	peer := d.must(t, "run", "-d", "demo", "sleep", "1000")
	for _, command := range []string{"false", "nosuch", "/etc/passwd"} {
		want := d.docker(t, "exec", peer, command)
		if r := d.docker(t, "exec", box, command); r.Code != want.Code || r.Code == 0 {
			t.Errorf("exec %s: %v; with runc: %v", command, r, want)
		}
	}
	d.must(t, "rm", "-f", peer)
	d.must(t, "exec", "-d", box, "sh", "-c", "echo later > /later; sleep 100")
	eventually(t, "the detached process writes", func() bool { return d.docker(t, "exec", box, "cat", "/later").Stdout == "later\n" })
	if got := d.must(t, "top", box); strings.Count(got, "\n") < 1 {
		t.Errorf("top: %s", got)
	}
}

func dockerFiles(t *testing.T, d *dockerd) {
	box := d.start(t, "demo", "sleep", "1000")
	file := filepath.Join(d.dir, "file")
	if err := os.WriteFile(file, []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.must(t, "cp", file, box+":/tmp/in")
	if got := d.must(t, "exec", box, "cat", "/tmp/in"); got != "from the host" {
		t.Errorf("inside: %q", got)
	}
	d.must(t, "exec", box, "sh", "-c", "echo from the guest > /tmp/out; rm /etc/hostname.nosuch 2>/dev/null; echo new > /new")
	d.must(t, "cp", box+":/tmp/out", file)
	if text, _ := os.ReadFile(file); string(text) != "from the guest\n" {
		t.Errorf("outside: %q", text)
	}
	if got := d.must(t, "diff", box); !strings.Contains(got, "A /new") {
		t.Errorf("diff: %s", got)
	}
	d.must(t, "commit", box, "committed")
	if r := d.run(t, "--rm", "committed", "cat", "/new"); r.Stdout != "new\n" {
		t.Errorf("committed: %v", r)
	}
	d.must(t, "rmi", "-f", "committed")
}

func dockerVolumes(t *testing.T, d *dockerd) {
	dir := filepath.Join(d.dir, "bound-"+d.runtime)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if r := d.run(t, "--rm", "-v", dir+":/bound", "-v", dir+":/ro:ro", "-v", "named:/named", "demo",
		"sh", "-c", "echo a > /bound/a; cat /ro/a; touch /ro/b 2>/dev/null && echo writable; echo kept > /named/file"); r.Code != 0 || r.Stdout != "a\n" {
		t.Errorf("%v", r)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "a")); string(text) != "a\n" {
		t.Errorf("on the host: %q", text)
	}
	if r := d.run(t, "--rm", "-v", "named:/named", "demo", "cat", "/named/file"); r.Stdout != "kept\n" {
		t.Errorf("%v", r)
	}
	d.must(t, "volume", "rm", "named")
}

func dockerLimits(t *testing.T, d *dockerd) {
	box := d.start(t, "-m", "64m", "demo", "python3", "-c", "b = []\nwhile True: b.append(bytearray(1 << 20))")
	if got := d.must(t, "wait", box); got != "137" {
		t.Errorf("code %s", got)
	}
	if got := d.must(t, "inspect", "-f", "{{.State.OOMKilled}}", box); got != "true" {
		t.Errorf("OOMKilled: %s", got)
	}
	dockerKilledGofer(t, d)
	other := d.start(t, "-m", "128m", "--pids-limit", "20", "--cpus", "1", "demo", "sleep", "1000")
	if got := d.must(t, "exec", other, "nproc"); got != "1" {
		t.Errorf("%s processors", got)
	}
	if r := d.docker(t, "exec", other, "sh", "-c", "for i in $(seq 40); do sleep 5 & done; wait"); !strings.Contains(r.Stderr, "fork") {
		t.Errorf("forty processes: %v", r)
	}
	if got := d.must(t, "stats", "--no-stream", "--format", "{{.MemUsage}}", other); !strings.HasSuffix(got, "/ 128MiB") {
		t.Errorf("stats: %s", got)
	}
	d.must(t, "update", "-m", "256m", "--memory-swap", "-1", other)
}

// dockerKilledGofer: whichever process of a container the host takes for the memory that
// is missing, the container was killed for it.
func dockerKilledGofer(t *testing.T, d *dockerd) {
	box := d.start(t, "-m", "64m", "demo", "python3", "-c", `
import os, time
while not os.path.exists("/go"): time.sleep(0.05)
b = []
while True: b.append(bytearray(1 << 20))`)
	gofer := ""
	for _, parent := range []string{"/sys/fs/cgroup/memory/docker/", "/sys/fs/cgroup/docker/"} { // Versions 1 and 2.
		members, _ := os.ReadFile(parent + box + "/cgroup.procs")
		for _, pid := range strings.Fields(string(members)) {
			if line, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); strings.HasPrefix(string(line), "gvx-gofer") {
				gofer = pid
			}
		}
	}
	if gofer == "" {
		t.Fatal("no gofer in the container's cgroup")
	}
	if err := os.WriteFile(filepath.Join("/proc", gofer, "oom_score_adj"), []byte("1000"), 0); err != nil {
		t.Fatal(err)
	}
	d.must(t, "exec", box, "touch", "/go")
	if got := d.must(t, "wait", box); got != "137" {
		t.Errorf("code %s", got)
	}
	if got := d.must(t, "inspect", "-f", "{{.State.OOMKilled}}", box); got != "true" {
		t.Errorf("its gofer was killed: OOMKilled: %s", got)
	}
}

func dockerLife(t *testing.T, d *dockerd) {
	box := d.start(t, "--name", "life", "demo", "sh", "-c", "echo line; trap 'exit 5' TERM; while :; do sleep 0.1; done")
	eventually(t, "it has printed", func() bool { return d.must(t, "logs", box) == "line" })
	d.must(t, "pause", box)
	d.must(t, "unpause", box)
	d.must(t, "stop", box)
	if got := d.must(t, "inspect", "-f", "{{.State.ExitCode}}", box); got != "5" {
		t.Errorf("code %s", got)
	}
	d.must(t, "start", box)
	d.must(t, "restart", "-t", "1", box)
	d.must(t, "kill", box)
	if got := d.must(t, "inspect", "-f", "{{.State.ExitCode}}", box); got != "137" {
		t.Errorf("code %s", got)
	}
	again := d.start(t, "--restart", "on-failure:2", "demo", "sh", "-c", "exit 3")
	eventually(t, "it was restarted twice", func() bool {
		return d.must(t, "inspect", "-f", "{{.RestartCount}} {{.State.Status}}", again) == "2 exited"
	})
}

func dockerNetwork(t *testing.T, d *dockerd) {
	server := d.start(t, "--network", "net", "--name", "server", "-p", "127.0.0.1:18080:8000", "demo", "python3", "-m", "http.server", "-d", "/etc", "8000")
	address := d.must(t, "inspect", "-f", "{{.NetworkSettings.Networks.net.IPAddress}}", server)
	get := func(url string) testbed.Result {
		return testbed.Run(t, exec.Command("curl", "-sS", "-m", "5", url), nil)
	}
	eventually(t, "the host reaches the container", func() bool { return strings.Contains(get("http://"+address+":8000/passwd").Stdout, "root:") })
	if r := get("http://127.0.0.1:18080/passwd"); !strings.Contains(r.Stdout, "root:") {
		t.Errorf("the published port: %v", r)
	}
	client := []string{"--rm", "--network", "net", "demo", "python3", "-c", "import urllib.request as u; print(len(u.urlopen('http://server:8000/passwd', timeout=9).read()) > 0)"}
	if r := d.run(t, client...); r.Stdout != "True\n" {
		t.Errorf("another container, by name: %v", r)
	}
	if r := d.docker(t, append([]string{"run"}, client...)...); r.Stdout != "True\n" {
		t.Errorf("a container of runc's, by name: %v", r)
	}
}

func dockerTerminal(t *testing.T, d *dockerd) {
	cmd := exec.Command(d.client, "-H", "unix://"+d.socket, "run", "--rm", "-it", "--runtime", d.runtime, "demo", "sh")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	term := testbed.StartTerminal(t, cmd, 33, 111)
	term.Type(t, "stty size\n")
	term.Expect(t, "33 111")
	term.Resize(t, 44, 99)
	// By way of the client, the engine and its shim.
	term.Type(t, "while [ \"$(stty size)\" != '44 99' ]; do sleep 0.1; done; stty size\n")
	term.Expect(t, "44 99\r")
	term.Type(t, "echo $((6*7)); sleep 1000\n")
	term.Expect(t, "42")
	time.Sleep(300 * time.Millisecond)
	term.Type(t, "\x03")
	time.Sleep(300 * time.Millisecond)
	term.Type(t, "echo code $?\n")
	term.Expect(t, "code 130")
	term.Type(t, "exit 6\n")
	if code := term.Wait(t); code != 6 {
		t.Errorf("code %d", code)
	}
}

// dockerBuild: images are built beside, by runc, and run by us.
func dockerBuild(t *testing.T, d *dockerd) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM demo\nCOPY Dockerfile /copied\nRUN wc -l < /copied > /built\nCMD [\"cat\", \"/built\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.must(t, "build", "-q", "-t", "built", dir)
	if r := d.run(t, "--rm", "built"); r.Code != 0 || r.Stdout != "4\n" {
		t.Errorf("%v", r)
	}
	d.must(t, "rmi", "-f", "built")
}

// composeFile is a server that gets well, and a client that waits for it and finds it
// by name.
const composeFile = `services:
  server:
    image: demo
    runtime: RUNTIME
    command: ["python3", "-m", "http.server", "-d", "/srv/www", "8000"]
    volumes: ["www:/srv/www"]
    healthcheck: {test: ["CMD", "python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000')"], interval: 1s, retries: 60}
  client:
    image: demo
    runtime: RUNTIME
    depends_on: {server: {condition: service_healthy}}
    volumes: ["www:/www"]
    command: ["python3", "-c", "open('/www/f', 'w').write('by compose'); import urllib.request as u; print(u.urlopen('http://server:8000/f').read().decode()); print(open('/proc/version').read())"]
volumes: {www: {}}
`

// dockerCompose: a project whose services say "runtime:".
func dockerCompose(t *testing.T, d *dockerd) {
	file := filepath.Join(t.TempDir(), "compose.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(composeFile, "RUNTIME", d.runtime)), 0o644); err != nil {
		t.Fatal(err)
	}
	project := []string{"compose", "-f", file, "-p", "gvx-" + d.runtime}
	defer d.must(t, append(project, "down", "-v", "-t", "1")...)
	r := d.docker(t, append(project, "up", "--quiet-pull", "--exit-code-from", "client")...)
	if r.Code != 0 || !strings.Contains(r.Stdout, "by compose") || !strings.Contains(r.Stdout, "gvisor") {
		t.Errorf("%v", r)
	}
	if got := d.must(t, append(project, "ps", "-a", "--format", "{{.Service}} {{.State}}")...); !strings.Contains(got, "client exited") {
		t.Errorf("ps: %s", got)
	}
}

// loadDemo gives the engine the test bed's image.
func loadDemo(t *testing.T, d *dockerd) {
	t.Helper()
	d.must(t, "load", "-q", "-i", demoArchive(t, d.dir))
}

// demoArchive is the test bed's image as an archive that engines load.
func demoArchive(t *testing.T, dir string) string {
	t.Helper()
	archive := filepath.Join(dir, "demo.tar")
	cmd := exec.Command("skopeo", "copy", "-q", "oci:"+filepath.Join(testbed.Need(t, "demo"), "oci:latest"), "docker-archive:"+archive+":demo:latest")
	if r := testbed.Run(t, cmd, nil); r.Code != 0 {
		t.Fatal(r)
	}
	return archive
}
