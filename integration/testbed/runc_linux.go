// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Bundle is an OCI bundle for a peer runtime, over a test bed image: the same
// tree that rungv runs, with a writable overlay of its own.
type Bundle struct {
	Dir  string
	Spec *specs.Spec
	// Runtime is the peer's binary, Args what goes before its verb.
	Runtime string
	Args    []string
}

// bundles counts the bundles of this process, for container names.
var bundles atomic.Int64

// NewBundle makes a bundle of the named image for runc or runsc. It needs root;
// all of it is unmounted and removed when the test ends.
func NewBundle(t testing.TB, runtime, image string) *Bundle {
	t.Helper()
	NeedRoot(t, "containers of "+runtime)
	b := &Bundle{Runtime: Need(t, runtime), Dir: tempDir(t)}
	b.Args = []string{"--root", filepath.Join(b.Dir, "state")}
	tree := filepath.Join(Need(t, image), "rootfs")
	rootfs := filepath.Join(b.Dir, "rootfs")
	for _, name := range []string{"rootfs", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(b.Dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", tree, filepath.Join(b.Dir, "upper"), filepath.Join(b.Dir, "work"))
	if err := syscall.Mount("overlay", rootfs, "overlay", 0, options); err != nil {
		Missing(t, "overlay mounts on this host: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(rootfs, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", rootfs, err)
		}
	})
	b.Spec = b.defaultSpec(t)
	return b
}

// tempDir is t.TempDir on a real file system: overlay takes no overlay, and
// /tmp may be one or a tmpfs.
func tempDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/var/tmp", "gvx-bundle-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// runsc keeps a mount of an empty network namespace in its state.
		err := syscall.Unmount(filepath.Join(dir, "state", "null-netns"), syscall.MNT_DETACH)
		if err != nil && err != syscall.ENOENT && err != syscall.EINVAL {
			t.Errorf("unmount runsc's namespace: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}

// defaultSpec is what "runc spec" writes, made non-interactive.
func (b *Bundle) defaultSpec(t testing.TB) *specs.Spec {
	dir := tempDir(t)
	if output, err := exec.Command(Need(t, "runc"), "spec", "--bundle", dir).CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v: %s", err, output)
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	spec := new(specs.Spec)
	if err := json.Unmarshal(data, spec); err != nil {
		t.Fatal(err)
	}
	spec.Process.Terminal = false
	spec.Process.Rlimits = nil
	spec.Root.Readonly = false
	spec.Hostname = "guest"
	return spec
}

// Command writes the bundle's config and makes the command that runs it in the
// foreground under a name of its own.
func (b *Bundle) Command(ctx context.Context, t testing.TB) *exec.Cmd {
	t.Helper()
	data, err := json.MarshalIndent(b.Spec, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "config.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("gvx-peer-%d-%d", os.Getpid(), bundles.Add(1))
	t.Cleanup(func() { b.delete(t, name) })
	cmd := exec.CommandContext(ctx, b.Runtime, append(b.Args[:len(b.Args):len(b.Args)], "run", "--bundle", b.Dir, name)...)
	// SIGTERM is forwarded to the container; a shell as process 1 ignores it.
	cmd.Cancel = func() error { return errors.Join(b.kill(name), cmd.Process.Signal(syscall.SIGTERM)) }
	cmd.WaitDelay = runTimeout
	return cmd
}

func (b *Bundle) kill(name string) error {
	return exec.Command(b.Runtime, append(b.Args[:len(b.Args):len(b.Args)], "kill", name, "KILL")...).Run()
}

// delete removes what a failed run has left; a run that ended removed itself.
func (b *Bundle) delete(t testing.TB, name string) {
	state := append(b.Args[:len(b.Args):len(b.Args)], "state", name)
	if exec.Command(b.Runtime, state...).Run() != nil {
		return
	}
	remove := append(b.Args[:len(b.Args):len(b.Args)], "delete", "--force", name)
	if output, err := exec.Command(b.Runtime, remove...).CombinedOutput(); err != nil {
		t.Errorf("delete container %s: %v: %s", name, err, output)
	}
}
