// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// podman is Debian's, with storage of its own and rungv as its runtime.
type podman struct {
	dir, runtime string
}

func newPodman(t *testing.T, runtime string) *podman {
	t.Helper()
	if _, err := exec.LookPath("podman"); err != nil {
		testbed.Missing(t, "podman: %v", err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "gvx-podman-")
	if err != nil {
		t.Fatal(err)
	}
	p := &podman{dir: dir, runtime: runtime}
	t.Cleanup(func() {
		// podman keeps it mounted on itself.
		_ = syscall.Unmount(filepath.Join(dir, "root/overlay"), syscall.MNT_DETACH)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for name, text := range map[string]string{
		"containers.conf": "[engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\n" +
			"[containers]\ndefault_ulimits=[\"nofile=1024:1024\"]\n[network]\nnetwork_backend=\"cni\"\n",
		"policy.json":     `{"default":[{"type":"insecureAcceptAnything"}]}`,
		"registries.conf": "unqualified-search-registries=[]\nshort-name-mode=\"disabled\"\n",
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *podman) command(ctx context.Context, args ...string) *exec.Cmd {
	at := func(name string) string { return filepath.Join(p.dir, name) }
	cmd := exec.CommandContext(ctx, "podman", append([]string{
		"--root", at("root"), "--runroot", at("run"), "--tmpdir", at("tmp"), "--runtime", p.runtime, "--storage-driver", "overlay",
	}, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+at("containers.conf"), "CONTAINERS_REGISTRIES_CONF="+at("registries.conf"))
	return cmd
}

func (p *podman) do(t *testing.T, args ...string) testbed.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return testbed.Run(t, p.command(ctx, args...), nil)
}

func (p *podman) must(t *testing.T, args ...string) string {
	t.Helper()
	r := p.do(t, args...)
	if r.Code != 0 {
		t.Fatalf("podman %q: %v", args, r)
	}
	return strings.TrimSpace(r.Stdout)
}

// TestPodman: Debian's podman, with its conmon.
func TestPodman(t *testing.T) {
	home := newHome(t)
	p := newPodman(t, home.Path("bin", "rungv"))
	p.must(t, "load", "-q", "--signature-policy", filepath.Join(p.dir, "policy.json"), "-i", demoArchive(t, p.dir))
	image := p.must(t, "images", "-q")

	for _, c := range []struct {
		args []string
		code int
		out  string
	}{
		{[]string{"--rm", "--network", "none", image, "sh", "-c", "echo hello; id -u; cat /proc/version"}, 0, "hello\n0\nLinux version 4.19.0-gvisor"},
		{[]string{"--rm", "--network", "none", image, "sh", "-c", "exit 42"}, 42, ""},
		{[]string{"--rm", "--network", "none", image, "nosuch"}, 127, ""},
		{[]string{"--rm", "--network", "none", "-u", "1000:1000", "-w", "/tmp", "-e", "K=V", image, "sh", "-c", "id -u; pwd; echo $K"}, 0, "1000\n/tmp\nV\n"},
	} {
		if r := p.do(t, append([]string{"run"}, c.args...)...); r.Code != c.code || !strings.HasPrefix(r.Stdout, c.out) {
			t.Errorf("%q: want code %d and %q: %v", c.args, c.code, c.out, r)
		}
	}

	box := p.must(t, "run", "-d", "--network", "none", "--name", "box", image, "sh", "-c", "echo up; trap 'exit 5' TERM; while :; do sleep 0.1; done")
	eventually(t, "it has printed", func() bool { return p.must(t, "logs", box) == "up" })
	if got := p.must(t, "exec", "-e", "A=b", box, "sh", "-c", "echo $A; exit 0"); got != "b" {
		t.Errorf("exec: %q", got)
	}
	if r := p.do(t, "exec", box, "sh", "-c", "exit 9"); r.Code != 9 {
		t.Errorf("%v", r)
	}
	p.must(t, "pause", box)
	p.must(t, "unpause", box)
	file := filepath.Join(p.dir, "file")
	if err := os.WriteFile(file, []byte("in"), 0o644); err != nil {
		t.Fatal(err)
	}
	// podman enters the mount namespace of the container's process for this.
	target := filepath.Join("/tmp", filepath.Base(p.dir))
	p.must(t, "cp", file, box+":"+target)
	if got := p.must(t, "exec", box, "cat", target); got != "in" {
		t.Errorf("copied: %q", got)
	}
	if _, err := os.Stat(target); err == nil {
		t.Errorf("the copy went to the host: %s", target)
	}
	p.must(t, "exec", box, "sh", "-c", "echo out > /tmp/out")
	p.must(t, "cp", box+":/tmp/out", file)
	if text, _ := os.ReadFile(file); string(text) != "out\n" {
		t.Errorf("copied back: %q", text)
	}
	p.must(t, "stop", box)
	if got := p.must(t, "inspect", "-f", "{{.State.ExitCode}}", box); got != "5" {
		t.Errorf("code %s", got)
	}
	p.must(t, "rm", box)

	cmd := p.command(t.Context(), "run", "--rm", "-it", "--network", "none", image, "sh")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	term := testbed.StartTerminal(t, cmd, 33, 111)
	term.Type(t, "stty size\n")
	term.Expect(t, "33 111")
	term.Type(t, "exit 6\n")
	if code := term.Wait(t); code != 6 {
		t.Errorf("terminal: code %d", code)
	}
}
