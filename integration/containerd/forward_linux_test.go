// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// forwarding is how a client says where it listens.
var forwarding = regexp.MustCompile(`127\.0\.0\.1:(\d+)`)

// TestPortForward: what `kubectl port-forward` does. The node connects to localhost
// in the pod's network namespace, where a server listens that nobody else reaches.
func TestPortForward(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers})
	for handler, snapshotter := range map[string]string{"runc": "overlayfs", "gvx": "erofs"} {
		t.Run(handler, func(t *testing.T) {
			c.CRIPause(t, snapshotter)
			image := c.CRIImage(t, snapshotter, "demo")
			forwardTo(t, c, handler, image)
		})
	}
}

// forwardTo reaches a server in a pod of a handler's.
func forwardTo(t *testing.T, c *testbed.Containerd, handler, image string) {
	t.Helper()
	p := runPod(t, c, handler, "forward", nil)
	server := p.run(image, "server", nil, "python3", "-u", "-c",
		"import http.server; s = http.server.HTTPServer(('127.0.0.1', 8080), http.server.SimpleHTTPRequestHandler); print('up'); s.serve_forever()")
	await(t, "the server", func() bool { return strings.Contains(p.log("server"), "up") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := c.CrictlCommand(ctx, t, "port-forward", p.id, "0:8080")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	var port string
	for port == "" && lines.Scan() {
		if m := forwarding.FindStringSubmatch(lines.Text()); m != nil {
			port = m[1]
		}
	}
	if port == "" {
		t.Fatal("the client does not listen")
	}
	for range 3 {
		if got, err := fetchFrom("http://127.0.0.1:" + port + "/etc/hostname"); err != nil || strings.TrimSpace(got) != "forward" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	c.MustCrictl(t, "stop", "--timeout", "2", server)
	cancel()
	p.remove()
	nothingLeft(t, c)
}
