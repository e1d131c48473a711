// SPDX-License-Identifier: Apache-2.0

// Package suite tests the SDK against the real rungv and real guests, as
// whoever runs it: root by itself, an ordinary user by package sdk.
package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
	"z.gfire.dev/gvx/pkg/gvx"
)

// image is Debian with Python, under this name in the store.
const image = "demo"

// Environment by which package sdk, or a test, passes what it has prepared.
const (
	envBinary = "GVX_SDK_BINARY"
	envLayout = "GVX_SDK_LAYOUT"
	envRoot   = "GVX_SDK_ROOT"
	// envReflinks is a directory whose files can share blocks.
	envReflinks = "GVX_SDK_REFLINKS"
	// envRole makes the test binary a caller that is to be killed.
	envRole = "GVX_SDK_ROLE"
)

// world is what all tests share.
type world struct{ binary, root string }

var (
	shared     world
	sharedOnce sync.Once
	cleanups   []func()
)

func TestMain(m *testing.M) {
	if os.Getenv(envRole) != "" {
		callerRole()
		return
	}
	code := m.Run()
	for _, c := range cleanups {
		c()
	}
	os.Exit(code)
}

// setup returns the world, made by the first test that wants it.
func setup(t *testing.T) world {
	t.Helper()
	sharedOnce.Do(func() { shared = newWorld(t) })
	if shared.binary == "" {
		t.Skip("the set-up failed: see the first test")
	}
	return shared
}

func newWorld(t *testing.T) world {
	w := world{binary: os.Getenv(envBinary), root: os.Getenv(envRoot)}
	layout := os.Getenv(envLayout)
	if w.binary == "" {
		h, err := testbed.NewHome()
		if err != nil {
			t.Fatal(err)
		}
		cleanups = append(cleanups, func() { h.Remove() })
		w.binary, w.root, layout = h.Binary, h.Path("root"), h.Layout(t, image)
	}
	// A place of its own, so that what is left there is ours.
	temp := filepath.Join(w.root, "tmp")
	if err := errors.Join(os.MkdirAll(temp, 0o700), os.Setenv("TMPDIR", temp)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(w.binary, "--root", w.root, "image", "import", "--progress", "none", "oci:"+layout+":latest", image).CombinedOutput()
	if err != nil {
		t.Fatalf("import the image: %v\n%s", err, out)
	}
	return w
}

// config is a sandbox without a network that runs a shell script.
func (w world) config(script string) gvx.Config {
	return gvx.Config{
		RuntimePath: w.binary, Root: w.root, OCIImage: image, Pull: gvx.PullNever, NetworkMode: gvx.NetModeNone,
		Cmd: []string{"sh", "-c", script},
	}
}

// newSandbox makes a sandbox that the test's end closes.
func newSandbox(t *testing.T, c gvx.Config) *gvx.Sandbox {
	t.Helper()
	sb, err := gvx.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	return sb
}

// startSandbox is newSandbox for one whose guest runs, after it has printed
// "ready".
func startSandbox(t *testing.T, c gvx.Config) *gvx.Sandbox {
	t.Helper()
	out := &watched{}
	c.Stdout = out
	sb := newSandbox(t, c)
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready")
	return sb
}

// watched collects output.
type watched struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// await waits for a word in the output.
func (w *watched) await(t *testing.T, word string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(w.String(), word); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q did not come: %q", word, w)
		}
	}
}

// traces lists what sandboxes leave: processes of the binary, files of state,
// writable layers and sockets.
func (w world) traces(t *testing.T) []string {
	t.Helper()
	var found []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe")); err == nil && strings.HasPrefix(exe, w.binary) {
			found = append(found, "process "+e.Name())
		}
	}
	for _, dir := range []string{filepath.Join(w.root, "state"), filepath.Join(w.root, "tmp")} {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			// The lock of the directory itself stays for ever.
			if err == nil && (!e.IsDir() || strings.HasPrefix(e.Name(), "gvx-")) && e.Name() != "lock" {
				found = append(found, path)
			}
			return nil
		})
	}
	return found
}

// leavesNothing returns a check that nothing is there that is not there now.
func (w world) leavesNothing(t *testing.T) func() {
	t.Helper()
	before := w.traces(t)
	return func() {
		t.Helper()
		var left []string
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			left = slices.DeleteFunc(w.traces(t), func(s string) bool { return slices.Contains(before, s) })
			if len(left) == 0 {
				return
			}
		}
		t.Errorf("left behind: %q", left)
	}
}

// callerRole is a program that starts a sandbox and waits to be killed.
func callerRole() {
	w := world{binary: os.Getenv(envBinary), root: os.Getenv(envRoot)}
	c := w.config("echo ready; sleep 1000")
	c.Docker, c.NetworkMode = true, gvx.NetModeNAT
	c.Stdout = os.Stdout
	sb, err := gvx.New(context.Background(), c)
	if err == nil {
		_, err = sb.Run(context.Background())
	}
	fmt.Println(err)
}
