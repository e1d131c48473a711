// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
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
	dir, socket, bin string
	// runtime is the name of the one that containers get.
	runtime string
	cmd     *exec.Cmd
	log     *os.File
}

func newDockerd(t *testing.T, rungv string) *dockerd {
	t.Helper()
	engine := filepath.Join(testbed.Need(t, "engine"), "usr/local/bin")
	dir, err := os.MkdirTemp("/var/tmp", "gvx-dockerd-")
	if err != nil {
		t.Fatal(err)
	}
	d := &dockerd{dir: dir, socket: filepath.Join(dir, "docker.sock"), bin: engine, runtime: "gvx"}
	program := shim.Get(t)
	config, err := json.Marshal(map[string]any{
		"runtimes": map[string]any{"shim": map[string]string{"runtimeType": "io.containerd.gvx.v2"}},
		"hosts":    []string{"unix://" + d.socket}, "data-root": filepath.Join(dir, "data"), "exec-root": filepath.Join(dir, "exec"),
		"pidfile": filepath.Join(dir, "pid"), "iptables": false, "ip6tables": false, "ip-forward": false, "features": map[string]bool{"cdi": false},
	})
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
	d.cmd = exec.Command(filepath.Join(engine, "dockerd"), "--config-file", filepath.Join(dir, "daemon.json"))
	d.cmd.Env = append(os.Environ(), "PATH="+engine+":"+filepath.Dir(program)+":"+os.Getenv("PATH"), "GVX_ROOT="+filepath.Join(dir, "gvx"))
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
	if err := os.RemoveAll(d.dir); err != nil {
		t.Error(err)
	}
}

func (d *dockerd) docker(t *testing.T, args ...string) testbed.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "docker"), append([]string{"-H", "unix://" + d.socket}, args...)...)
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
	d := newDockerd(t, home.Path("bin", "rungv"))
	loadDemo(t, d)
	d.must(t, "network", "create", "--subnet", "10.88.78.0/24", "net")
	for _, d.runtime = range []string{"gvx", "shim"} {
		t.Run(d.runtime, func(t *testing.T) {
			for name, test := range map[string]func(*testing.T, *dockerd){
				"run": dockerRun, "exec": dockerExec, "files": dockerFiles, "volumes": dockerVolumes, "limits": dockerLimits,
				"life": dockerLife, "network": dockerNetwork, "terminal": dockerTerminal,
			} {
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
	for command, code := range map[string]int{"false": 1, "nosuch": 127, "/etc/passwd": 126} {
		if r := d.docker(t, "exec", box, command); r.Code != code {
			t.Errorf("exec %s: want %d: %v", command, code, r)
		}
	}
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
	cmd := exec.Command(filepath.Join(d.bin, "docker"), "-H", "unix://"+d.socket, "run", "--rm", "-it", "--runtime", d.runtime, "demo", "sh")
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
