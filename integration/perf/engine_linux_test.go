// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/integration/testbed"
)

// engineImage is the Docker engine that all contenders run.
const engineImage = "dind"

// engineTimeout bounds the start of an engine, on a busy machine.
const engineTimeout = 3 * time.Minute

// engineClient is a docker command line with its plugins.
type engineClient struct{ program, config string }

// newEngineClient makes a client's folder.
func newEngineClient(t *testing.T) *engineClient {
	t.Helper()
	engine := testbed.Need(t, "engine")
	c := &engineClient{program: filepath.Join(engine, "usr/local/bin/docker"), config: t.TempDir()}
	if err := os.Symlink(filepath.Join(engine, "usr/local/libexec/docker/cli-plugins"), filepath.Join(c.config, "cli-plugins")); err != nil {
		t.Fatal(err)
	}
	return c
}

// liveEngine is an engine that was started, and how to end it.
type liveEngine struct {
	socket string
	cmd    *exec.Cmd
	// output is where the engine's own words go, for messages.
	output string
	// ended is closed when the command has.
	ended chan struct{}
}

// engineContender is a way to run an engine, and what was measured of it.
type engineContender struct {
	name  string
	start func(t *testing.T) *liveEngine
	took  map[string][]time.Duration
}

// begin starts the contender's command, which was not to be waited for.
func begin(t *testing.T, cmd *exec.Cmd, socket string) *liveEngine {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "engine.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	e := &liveEngine{socket: socket, cmd: cmd, output: log.Name(), ended: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		cmd.Wait()
		close(e.ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-e.ended
	})
	return e
}

// ready asks the engine what `docker info` asks until it answers.
func (e *liveEngine) ready(t *testing.T) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", e.socket)
	}}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	for deadline := time.Now().Add(engineTimeout); ; {
		answer, err := client.Get("http://engine/info")
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
			err = fmt.Errorf("status %s", answer.Status)
		}
		select {
		case <-e.ended:
			deadline = time.Time{}
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(e.output)
			t.Fatalf("the engine does not answer: %v\n%s", err, text[max(0, len(text)-4000):])
		}
	}
}

// script runs a script with the client in its PATH, which has to succeed.
func (e *liveEngine) script(t *testing.T, c *engineClient, dir, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+e.socket, "DOCKER_CONFIG="+c.config, "PATH="+filepath.Dir(c.program)+":"+os.Getenv("PATH"), "COMPOSE_PROGRESS=quiet")
	output, err := cmd.CombinedOutput()
	if err != nil {
		said, _ := os.ReadFile(e.output)
		t.Fatalf("%s: %v\n%s\nengine:\n%s", text, err, output, said[max(0, len(said)-4000):])
	}
	return string(output)
}

// ourEngine is the engine in a sandbox, as an ordinary user, on a volume.
func ourEngine(t *testing.T) *engineContender {
	h := getHome(t)
	h.Image(t, engineImage)
	n := 0
	return &engineContender{name: "rungv", start: func(t *testing.T) *liveEngine {
		n++
		volume := h.Path("data", fmt.Sprintf("engine-%d.ext4", n))
		t.Cleanup(func() { os.Remove(volume) })
		return beginOurs(t, h, "engine", "src="+volume+",size=16g")
	}}
}

// beginOurs starts an engine in a sandbox, under a name, with a volume.
func beginOurs(t *testing.T, h *testbed.Home, name, volume string, flags ...string) *liveEngine {
	t.Helper()
	socket := h.Path("run", name+".sock")
	os.Remove(socket)
	args := append([]string{"run", "--rm", "-e", "DOCKER_TLS_CERTDIR=", "-p", "unix:" + socket + ":2375",
		"--mount", "type=volume,dst=/var/lib/docker," + volume}, flags...)
	return begin(t, h.Command(context.Background(), append(args, engineImage, "--tls=false")...), socket)
}

// peerEngine is the same image's tree, privileged, by runc or runsc as root. Its
// socket is in a directory of the host.
func peerEngine(t *testing.T, name, runtime string, args ...string) *engineContender {
	return &engineContender{name: name, start: func(t *testing.T) *liveEngine {
		bundle := testbed.NewBundle(t, runtime, engineImage)
		bundle.Args = append(bundle.Args, args...)
		sockets, data := filepath.Join(bundle.Dir, "sockets"), filepath.Join(bundle.Dir, "data")
		for _, dir := range []string{sockets, data} {
			if err := os.Mkdir(dir, 0o711); err != nil {
				t.Fatal(err)
			}
		}
		privileged(t, bundle.Spec)
		bundle.Spec.Process.Args = []string{"dockerd-entrypoint.sh", "--tls=false", "--host=unix:///sockets/docker.sock"}
		bundle.Spec.Process.Env = append(bundle.Spec.Process.Env, "DOCKER_TLS_CERTDIR=")
		bundle.Spec.Mounts = append(bundle.Spec.Mounts, specs.Mount{Destination: "/sockets", Type: "bind", Source: sockets, Options: []string{"bind", "rw"}})
		if runtime == "runsc" {
			bundle.Spec.Mounts = append(bundle.Spec.Mounts, specs.Mount{Destination: "/var/lib/docker", Type: "tmpfs", Source: "tmpfs"})
		} else {
			bundle.Spec.Mounts = append(bundle.Spec.Mounts, specs.Mount{Destination: "/var/lib/docker", Type: "bind", Source: data, Options: []string{"bind", "rw"}})
		}
		return begin(t, bundle.Command(context.Background(), t), filepath.Join(sockets, "docker.sock"))
	}}
}

// privileged makes a bundle what `docker run --privileged` would: all rights, no
// path guarded, in namespaces of its own.
func privileged(t *testing.T, spec *specs.Spec) {
	t.Helper()
	var all []string
	have := ownCapabilities(t)
	for number, name := range capabilityNames {
		if have>>number&1 != 0 {
			all = append(all, name)
		}
	}
	spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	spec.Process.NoNewPrivileges = false
	spec.Process.Cwd = "/"
	spec.Linux.MaskedPaths, spec.Linux.ReadonlyPaths, spec.Linux.Seccomp = nil, nil, nil
	if spec.Linux.Resources == nil {
		spec.Linux.Resources = &specs.LinuxResources{}
	}
	spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	for i, m := range spec.Mounts {
		var options []string
		for _, option := range m.Options {
			if option != "ro" {
				options = append(options, option)
			}
		}
		spec.Mounts[i].Options = options
	}
}

// capabilityNames are Linux's, by number.
var capabilityNames = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_SETPCAP
	CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO
	CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD
	CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ
	CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`)

// ownCapabilities are those that root has here, and can give: not always all.
func ownCapabilities(t *testing.T) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return bits
		}
	}
	t.Fatal("no capabilities in /proc/self/status")
	return 0
}

// engineSteps are what is measured of an engine that answers, in this order. The
// image is the one that the first step loads.
var engineSteps = []struct{ name, script string }{
	{"load", `docker load -q -i "$ARCHIVE"`},
	{"first run", `docker run --rm demo true`},
	{"run", `docker run --rm demo true`},
	{"build", `docker build -q -t built build`},
	{"compose up", `docker compose -p app -f compose.yaml up -d --wait`},
	{"compose down", `docker compose -p app -f compose.yaml down -t 0`},
}

// TestEngines measures an engine's life in a sandbox beside the same engine by
// runsc on tmpfs and by runc, privileged, on the host's disk: from the start
// until it answers `docker info`, and then commands of a stock client.
func TestEngines(t *testing.T) {
	needBench(t)
	testbed.NeedRoot(t, "privileged containers")
	client, dir := newEngineClient(t), t.TempDir()
	contenders := []*engineContender{
		ourEngine(t),
		peerEngine(t, "runsc, tmpfs", "runsc", "--ignore-cgroups", "--network=sandbox", "--net-raw", "--allow-packet-socket-write",
			"--TESTONLY-nftables", "--in-sandbox-cgroup=v2", "--host-uds=create"),
		peerEngine(t, "runc, privileged", "runc"),
	}
	archive := engineMaterial(t, dir)
	n := testbed.Rounds(5)
	for round := range n {
		for _, c := range contenders {
			// A subtest: what a contender leaves goes before the next begins.
			t.Run(fmt.Sprintf("%s/%d", c.name, round), func(t *testing.T) { measureEngine(t, c, client, dir, archive) })
		}
	}
	rows := [][]string{{"", contenders[0].name}}
	for _, c := range contenders[1:] {
		rows[0] = append(rows[0], c.name, "rungv is")
	}
	names := []string{"to docker info"}
	for _, step := range engineSteps {
		names = append(names, step.name)
	}
	for _, name := range names {
		if len(contenders[0].took[name]) == 0 {
			continue // It has failed, and says so.
		}
		ours := testbed.Median(contenders[0].took[name])
		row := []string{name, testbed.Milliseconds(ours)}
		for _, c := range contenders[1:] {
			if len(c.took[name]) == 0 {
				row = append(row, "failed", "")
				continue
			}
			theirs := testbed.Median(c.took[name])
			row = append(row, testbed.Milliseconds(theirs), fmt.Sprintf("%.2f of it", float64(ours)/float64(theirs)))
		}
		rows = append(rows, row)
	}
	testbed.Report(t, fmt.Sprintf("a Docker engine, medians of %d lives in turn (goals: to docker info 2.0 of runc's, 1.0 of runsc's)", n), rows...)
}

// measureEngine takes one life of a contender's engine.
func measureEngine(t *testing.T, c *engineContender, client *engineClient, dir, archive string) {
	if c.took == nil {
		c.took = map[string][]time.Duration{}
	}
	began := time.Now()
	e := c.start(t)
	e.ready(t)
	c.took["to docker info"] = append(c.took["to docker info"], time.Since(began))
	for _, step := range engineSteps {
		began := time.Now()
		e.script(t, client, dir, "ARCHIVE="+archive+"\n"+step.script)
		c.took[step.name] = append(c.took[step.name], time.Since(began))
	}
}

// engineMaterial writes what the steps need, and returns the image's archive.
func engineMaterial(t *testing.T, dir string) string {
	t.Helper()
	h := getHome(t)
	archive := h.Path("tmp", "demo.tar")
	os.Remove(archive)
	h.MustRungv(t, "image", "save", "-o", archive, image)
	files := map[string]string{
		"build/Dockerfile": "FROM demo\nCOPY page /page\nRUN mkdir -p /a && cp /page /a/1\nRUN cp /page /a/2\nRUN cp /page /a/3\n",
		"build/page":       "page\n",
		"compose.yaml": "services:\n" +
			"  one: {image: demo, command: sleep infinity, healthcheck: {test: 'true', interval: 200ms}}\n" +
			"  two: {image: demo, command: sleep infinity, depends_on: {one: {condition: service_healthy}}}\n",
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return archive
}
