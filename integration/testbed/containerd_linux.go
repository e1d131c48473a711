// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"
)

// Containerd is a containerd of the tests' own: root, state, sockets, shim
// sockets, CNI configuration below one folder. It has to run in namespaces that
// [MainAlone] made, which end everything it started.
type Containerd struct {
	// Dir holds all its files.
	Dir string
	// Root and State are containerd's own.
	Root, State string
	// Socket is where its gRPC API is.
	Socket string
	// Namespace is containerd's of everything that tests make by ctr. It is a part
	// of cgroup paths, too, hence no other test's.
	Namespace string

	bin      string // its programs
	cmd      *exec.Cmd
	log      *os.File
	path     string
	imported map[string]bool
}

// ContainerdOptions are what a test can choose.
type ContainerdOptions struct {
	// ErofsSize is the size of the erofs snapshotter's writable layers, which
	// then are files; "" has folders of the host for them.
	ErofsSize string
	// Programs are put first in containerd's PATH, by name: shims.
	Programs map[string]string
	// Runtimes is TOML that is appended to the configuration: whole tables of CRI's
	// runtimes.
	Runtimes string
}

// NewContainerd starts a containerd. The caller ends it by Close.
func NewContainerd(t testing.TB, o ContainerdOptions) *Containerd {
	t.Helper()
	NeedRoot(t, "containerd")
	if os.Getenv(aloneVariable) != aloneTests {
		t.Fatal("a containerd needs namespaces: see testbed.MainAlone")
	}
	bin, runc, cni := Need(t, "containerd"), Need(t, "runc"), Need(t, "cni")
	dir, err := os.MkdirTemp("/var/tmp", "gvx-ctd-")
	if err != nil {
		t.Fatal(err)
	}
	c := &Containerd{
		Dir: dir, Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "c.sock"),
		Namespace: filepath.Base(dir),
		bin:       bin, imported: map[string]bool{},
	}
	own := filepath.Join(dir, "bin")
	c.path = strings.Join([]string{own, bin, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, ":")
	fill := func() error {
		for _, name := range []string{"bin", "cni", "nri"} {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o711); err != nil {
				return err
			}
		}
		if err := c.config(o, cni); err != nil {
			return err
		}
		for name, path := range o.Programs {
			if err := os.Symlink(path, filepath.Join(own, name)); err != nil {
				return err
			}
		}
		// runc is known by that name to its shim and to containerd.
		if err := os.Symlink(runc, filepath.Join(own, "runc")); err != nil {
			return err
		}
		build := exec.Command("go", "build", "-o", filepath.Join(own, "mkfs.erofs"), "./integration/testbed/mkfserofs")
		build.Dir = Tree()
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build mkfs.erofs: %w\n%s", err, output)
		}
		if c.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
			return err
		}
		return nil
	}
	if err := fill(); err != nil {
		os.RemoveAll(dir)
		t.Fatal(err)
	}
	c.Start(t)
	return c
}

// configText is containerd's configuration. What it names by default outside of
// its own folder, several containerds would share.
const configText = `version = 3
root = '{{.Root}}'
state = '{{.State}}'
[grpc]
  address = '{{.Socket}}'
[ttrpc]
  address = '{{.Socket}}.ttrpc'
[debug]
  level = 'debug'
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = '{{.Dir}}/s'
  env = ['GVX_ROOT={{.Dir}}/gvx']
[plugins.'io.containerd.snapshotter.v1.erofs']
  default_size = '{{.ErofsSize}}'
[plugins.'io.containerd.service.v1.diff-service']
  default = ['erofs', 'walking']
[plugins.'io.containerd.nri.v1.nri']
  socket_path = '{{.Dir}}/nri/nri.sock'
  plugin_path = '{{.Dir}}/nri/plugins'
  plugin_config_path = '{{.Dir}}/nri/conf.d'
[plugins.'io.containerd.transfer.v1.local']
  [[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
    platform = 'linux/{{.Architecture}}'
    snapshotter = 'overlayfs'
  [[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
    platform = 'linux/{{.Architecture}}'
    snapshotter = 'erofs'
    differ = 'erofs'
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = '{{.Dir}}/certs.d'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + PauseImage + `'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['{{.CNI}}']
  conf_dir = '{{.Dir}}/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
{{.Runtimes}}`

// networkText is the pods' network: a bridge in the tests' own namespace.
const networkText = `{"cniVersion": "1.0.0", "name": "gvx-test", "plugins": [
	{"type": "bridge", "bridge": "gvx-test0", "isGateway": true, "hairpinMode": true,
	 "ipam": {"type": "host-local", "dataDir": "%s", "ranges": [[{"subnet": "10.88.77.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	%s{"type": "loopback"}]}
`

// portmap publishes pods' ports on the host, where there is iptables for it.
const portmap = `{"type": "portmap", "capabilities": {"portMappings": true}}, `

func (c *Containerd) config(o ContainerdOptions, cni string) error {
	var text bytes.Buffer
	err := template.Must(template.New("").Parse(configText)).Execute(&text, map[string]string{
		"Root": c.Root, "State": c.State, "Socket": c.Socket, "Dir": c.Dir, "CNI": cni,
		"Architecture": Architecture, "ErofsSize": cmp.Or(o.ErofsSize, "0"), "Runtimes": o.Runtimes,
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "config.toml"), text.Bytes(), 0o644); err != nil {
		return err
	}
	ports := ""
	if _, err := exec.LookPath("iptables"); err == nil {
		ports = portmap
	}
	network := fmt.Sprintf(networkText, filepath.Join(c.Dir, "ipam"), ports)
	return os.WriteFile(filepath.Join(c.Dir, "cni", "10-test.conflist"), []byte(network), 0o644)
}

// Start starts the daemon, again after Stop or Kill, and waits until it serves.
func (c *Containerd) Start(t testing.TB) {
	t.Helper()
	c.cmd = exec.Command(filepath.Join(c.bin, "containerd"), "--config", filepath.Join(c.Dir, "config.toml"))
	c.cmd.Env = []string{"PATH=" + c.path, "HOME=" + c.Dir, "OTEL_TRACES_EXPORTER=none"}
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatalf("start containerd: %v", err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		result := c.Ctr(t, "version")
		if result.Code == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("containerd does not serve: %v\n%s", result, c.Log())
		}
	}
}

// PID is the daemon's.
func (c *Containerd) PID() int { return c.cmd.Process.Pid }

// Kill ends the daemon, and nothing that it has started, as a crash does.
func (c *Containerd) Kill(t testing.TB) { c.end(t, syscall.SIGKILL) }

// Stop ends the daemon as an upgrade does.
func (c *Containerd) Stop(t testing.TB) { c.end(t, syscall.SIGTERM) }

func (c *Containerd) end(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if c.cmd == nil {
		return
	}
	if err := c.cmd.Process.Signal(signal); err != nil {
		t.Errorf("end containerd: %v", err)
	}
	_ = c.cmd.Wait()
	c.cmd = nil
}

// Close ends the daemon and removes its files. Processes and mounts that are
// left fail the test: see [Containerd.Left].
func (c *Containerd) Close(t testing.TB) {
	t.Helper()
	c.Stop(t)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left := c.Left(t)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("containerd has ended, and there is left: %q", left)
			c.endAll(t)
			break
		}
	}
	for _, top := range c.topCgroups(t) {
		_ = os.Remove(top)
	}
	c.log.Close()
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Errorf("remove containerd's files: %v", err)
	}
}

// Log is the end of what the daemon and its shims have logged.
func (c *Containerd) Log() string {
	data, err := os.ReadFile(c.log.Name())
	if err != nil {
		return err.Error()
	}
	return clip(string(data))
}

// CtrCommand makes a command of containerd's own client.
func (c *Containerd) CtrCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "ctr"),
		append([]string{"--address", c.Socket, "--namespace", c.Namespace}, args...)...)
	cmd.Env = []string{"PATH=" + c.path, "HOME=" + c.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	return cmd
}

// Ctr runs a command of ctr to its end.
func (c *Containerd) Ctr(t testing.TB, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	return Run(t, c.CtrCommand(ctx, args...), nil)
}

// MustCtr is Ctr for a command that has to succeed; it returns its output.
func (c *Containerd) MustCtr(t testing.TB, args ...string) string {
	t.Helper()
	result := c.Ctr(t, args...)
	if result.Code != 0 {
		t.Fatalf("ctr %q: %v\ncontainerd: %s", args, result, c.Log())
	}
	return result.Stdout
}

// Image imports an image of the test bed, once, unpacks it for a snapshotter and
// returns its name.
func (c *Containerd) Image(t testing.TB, snapshotter, name string) string {
	t.Helper()
	return c.ImportAs(t, snapshotter, filepath.Join(Need(t, name), "oci"), "test.invalid/"+name, c.Namespace)
}

// ImportAs imports an OCI layout whose image has the tag "latest" into one of
// containerd's namespaces, unpacks it, and returns its whole name.
func (c *Containerd) ImportAs(t testing.TB, snapshotter, layout, base, namespace string) string {
	t.Helper()
	whole := base + ":latest"
	key := snapshotter + " " + namespace + " " + whole
	if c.imported[key] {
		return whole
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	pack := exec.CommandContext(ctx, "tar", "-C", layout, "-cf", "-", ".")
	stream, err := pack.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pack.Start(); err != nil {
		t.Fatalf("pack image %s: %v", layout, err)
	}
	result := Run(t, c.CtrCommand(ctx, "--namespace", namespace, "images", "import", "--local", "--base-name", base, "--snapshotter", snapshotter, "-"), stream)
	if err := pack.Wait(); err != nil {
		t.Fatalf("pack image %s: %v", layout, err)
	}
	if result.Code != 0 {
		t.Fatalf("import image %s for %s: %v\ncontainerd: %s", base, snapshotter, result, c.Log())
	}
	c.imported[key] = true
	return whole
}
