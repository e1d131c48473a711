// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"z.gfire.dev/gvx/integration/testbed"
)

// startRegistry starts a real registry on the loopback and returns its address.
func startRegistry(t *testing.T) string {
	t.Helper()
	program := testbed.Need(t, "registry")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close() // for the registry to take
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", filepath.Join(dir, "data"), address)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", config)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("registry: %s", log.String())
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		answer, err := http.Get("http://" + address + "/v2/")
		if err == nil {
			answer.Body.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatalf("the registry does not answer: %v", err)
		}
	}
}

// TestRegistry pulls from a real registry: by tag and by digest, several at
// once, interrupted, and runs what came.
func TestRegistry(t *testing.T) {
	h := getHome(t)
	address := startRegistry(t)
	base, err := testbed.LayoutImage(h.Layout(t, image))
	if err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(address+"/debian/demo:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(reference, base, remote.WithContext(t.Context())); err != nil {
		t.Fatalf("push to the registry: %v", err)
	}
	digest, err := base.Digest()
	if err != nil {
		t.Fatal(err)
	}
	root := func(name string) []string { return []string{"--root", h.Path("tmp", "registry-"+name)} }
	t.Cleanup(func() {
		for _, name := range []string{"killed", "many"} {
			os.RemoveAll(h.Path("tmp", "registry-"+name))
		}
	})

	t.Run("run pulls", func(t *testing.T) {
		result := h.Rungv(t, nil, "run", "--rm", "--network", "none", reference.Name(), "echo", "from the registry")
		if result.Code != 0 || result.Stdout != "from the registry\n" {
			t.Error(result)
		}
	})
	t.Run("by digest", func(t *testing.T) {
		h.MustRungv(t, "image", "pull", "-q", address+"/debian/demo@"+digest.String())
	})
	t.Run("unknown", func(t *testing.T) {
		refusal{args: []string{"image", "pull", address + "/debian/demo:nosuch"}, code: 1, say: []string{"nosuch"}}.check(t, h)
		refusal{args: []string{"image", "pull", address + "/debian/demo@sha256:" + strings.Repeat("0", 64)}, code: 1, say: []string{"sha256:0000"}}.check(t, h)
	})
	t.Run("killed", func(t *testing.T) { pullKilled(t, h, root("killed"), reference.Name()) })
	t.Run("many at once", func(t *testing.T) {
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				args := append(root("many"), "image", "pull", "--progress", "none", reference.Name())
				if output, err := h.Command(ctx, args...).CombinedOutput(); err != nil {
					t.Errorf("one of four pulls: %v: %s", err, output)
				}
			})
		}
		group.Wait()
	})
}

// pullKilled kills a pull at several moments: the store never shows a half image
// and a later pull succeeds.
func pullKilled(t *testing.T, h *testbed.Home, root []string, reference string) {
	for _, after := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond, 1200 * time.Millisecond} {
		cmd := h.Command(t.Context(), append(root, "image", "pull", "--progress", "none", reference)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		cmd.Process.Kill()
		finished := cmd.Wait() == nil
		list := h.MustRungv(t, append(root, "image", "ls", "-q")...)
		if strings.TrimSpace(list) == "" {
			continue
		}
		// What is listed must be whole.
		result := h.Rungv(t, nil, append(root, "run", "--rm", "--network", "none", "--pull", "never", reference, "python3", "-c", "print('whole')")...)
		if result.Stdout != "whole\n" {
			t.Errorf("killed after %v (finished: %v), the store lists an image that does not run: %v", after, finished, result)
		}
		h.MustRungv(t, append(root, "image", "rm", reference)...)
	}
	h.MustRungv(t, append(root, "image", "pull", "-q", reference)...)
}
