// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/integration/testbed"
)

// bundle is an OCI bundle whose guest runs a script on the image.
type bundle struct {
	dir, id string
	spec    *specs.Spec
}

// newBundle makes one whose network namespace is at a path, or its own if empty.
func newBundle(t *testing.T, namespace, script string) *bundle {
	t.Helper()
	capabilities := []string{"CAP_NET_RAW", "CAP_NET_ADMIN"}
	b := &bundle{dir: t.TempDir(), id: fmt.Sprintf("bundle-%d-%d", os.Getpid(), worlds.Add(1))}
	b.spec = &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: imageRoot(t), Readonly: true},
		Process: &specs.Process{
			Args: []string{"bash", "-c", script}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"}},
		Hooks:  &specs.Hooks{},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			{Type: specs.NetworkNamespace, Path: namespace},
		}},
	}
	return b
}

// verb runs an OCI verb; what the guest says goes to the bundle's file "out".
func (b *bundle) verb(t *testing.T, args ...string) testbed.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return testbed.Run(t, rungv(ctx, t, args...), nil)
}

// create writes the bundle and creates its container, whose output it redirects:
// the container keeps the streams of whoever made it.
func (b *bundle) create(t *testing.T) testbed.Result {
	t.Helper()
	doc, err := json.Marshal(b.spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(b.dir, "config.json"), doc, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := rungv(ctx, t, "create", "--bundle", b.dir, b.id)
	out, err := os.Create(filepath.Join(b.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	problems, err := os.Create(filepath.Join(b.dir, "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer problems.Close()
	cmd.Stdout, cmd.Stderr = out, problems
	_ = cmd.Run()
	t.Cleanup(func() { b.verb(t, "delete", "--force", b.id) })
	return testbed.Result{Code: cmd.ProcessState.ExitCode(), Stderr: b.text(t, "err")}
}

func (b *bundle) text(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// finish starts the container and waits for its end.
func (b *bundle) finish(t *testing.T) {
	t.Helper()
	if r := b.verb(t, "start", b.id); r.Code != 0 {
		t.Fatalf("start: %v", r)
	}
	for deadline := time.Now().Add(commandTimeout); ; time.Sleep(20 * time.Millisecond) {
		if r := b.verb(t, "state", b.id); strings.Contains(r.Stdout, `"stopped"`) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the container does not end")
		}
	}
}

// hook is a script with the state's file as $1 and the bundle as $2.
func (b *bundle) hook(script string) []specs.Hook {
	return []specs.Hook{{
		Path: "/bin/sh", Args: []string{"sh", "-c", `state=$(mktemp); cat > $state; set -- $state "$0"; ` + script, b.dir},
		Env: []string{"PATH=" + os.Getenv("PATH")},
	}}
}

// TestBundleHooks: every kind runs, in its order, with the right state, and where
// it belongs.
func TestBundleHooks(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	b := newBundle(t, path(w.pod), "cat /tmp/hook; ping -qc 1 -W 5 "+routerIP+" >/dev/null && echo reached")
	note := func(kind string) []specs.Hook {
		return b.hook(`echo "` + kind + ` $(sed 's/.*"status":"\([a-z]*\)".*/\1/' $1) $(readlink /proc/self/ns/net)" >> $2/log`)
	}
	h := b.spec.Hooks
	//lint:ignore SA1019 Deprecated by the specification; docker and podman use it.
	h.Prestart = note("prestart")
	h.CreateRuntime, h.CreateContainer = note("createRuntime"), note("createContainer")
	h.Poststart, h.Poststop = note("poststart"), note("poststop")
	h.StartContainer = []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", `grep -o created > /tmp/hook; echo $$ >> /tmp/hook`}}}
	if r := b.create(t); r.Code != 0 {
		t.Fatalf("create: %v", r)
	}
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	there := strings.TrimSpace(ip(t, "netns", "exec", w.pod, "readlink", "/proc/self/ns/net"))
	want := "prestart creating " + here + "\ncreateRuntime creating " + here + "\ncreateContainer creating " + there + "\n"
	if got := b.text(t, "log"); got != want {
		t.Errorf("create ran\n%swant\n%s", got, want)
	}
	b.finish(t)
	if r := b.verb(t, "delete", b.id); r.Code != 0 {
		t.Errorf("delete: %v", r)
	}
	want += "poststart running " + here + "\npoststop stopped " + here + "\n"
	if got := b.text(t, "log"); got != want {
		t.Errorf("all in all\n%swant\n%s", got, want)
	}
	// The hook in the guest ran before the guest's program, as its child.
	lines := strings.Split(b.text(t, "out"), "\n")
	if len(lines) != 4 || lines[0] != "created" || lines[2] != "reached" {
		t.Errorf("the guest said %q: %s", lines, b.text(t, "err"))
	}
}

// TestBundleHookConnects: a hook gives the container its network, as docker's does,
// after the sandbox is there.
func TestBundleHookConnects(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	b := newBundle(t, "", "ping -qc 1 -W 5 10.47.0.1 >/dev/null && echo reached")
	b.spec.Hooks.CreateRuntime = b.hook(`set -e
pid=$(sed 's/.*"pid":\([0-9]*\).*/\1/' $1)
ip -n ` + w.router + ` link add c0 type veth peer name eth0 netns /proc/$pid/ns/net
ip -n ` + w.router + ` addr add 10.47.0.1/24 dev c0
ip -n ` + w.router + ` link set c0 up
nsenter -t $pid -n sh -c "ip addr add 10.47.0.2/24 dev eth0; ip link set eth0 up"`)
	if r := b.create(t); r.Code != 0 {
		t.Fatalf("create: %v", r)
	}
	b.finish(t)
	if got := b.text(t, "out"); got != "reached\n" {
		t.Errorf("the guest said %q: %s", got, b.text(t, "err"))
	}
}

// TestBundleHookFails: then there is no container, and nothing of one.
func TestBundleHookFails(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	b := newBundle(t, path(w.pod), "true")
	b.spec.Hooks.CreateRuntime = b.hook("echo this is why >&2; exit 5")
	r := b.create(t)
	if r.Code == 0 || !strings.Contains(r.Stderr, "createRuntime hook #0") || !strings.Contains(r.Stderr, "exit status 5") || !strings.Contains(r.Stderr, "this is why") {
		t.Errorf("create: %v", r)
	}
	if r := b.verb(t, "state", b.id); r.Code == 0 {
		t.Errorf("state: %v", r)
	}
	answered(t, w) // Nobody holds the namespace.
}
