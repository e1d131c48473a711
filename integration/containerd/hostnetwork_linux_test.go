// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// onNode asks for the node's network, for a pod or a container, as a kubelet does:
// there is no other host name then.
func onNode(doc object) {
	delete(doc, "hostname")
	doc["linux"].(object)["security_context"].(object)["namespace_options"].(object)["network"] = 2
}

// TestHostNetworkPods: pods with hostNetwork get the node's network where the
// runtime's options say so, as by runc, and are refused elsewhere. Other pods of such
// a handler have their own.
func TestHostNetworkPods(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers + testbed.HostNetworkHandlers()})
	port := testbed.SayOnLoopback(t)
	ask := fmt.Sprintf("import socket; print(socket.create_connection(('127.0.0.1', %d), 10).makefile().read(), end='')", port)
	for handler, snapshotter := range map[string]string{"runc": "overlayfs", "gvx-host": "erofs", "gvx-host-sandbox": "erofs"} {
		t.Run(handler, func(t *testing.T) {
			c.CRIPause(t, snapshotter)
			image := c.CRIImage(t, snapshotter, "demo")
			p := runPod(t, c, handler, "node-"+handler, onNode)
			server := p.run(image, "server", onNode, "python3", "-u", "-c",
				"import socketserver, http.server; s = socketserver.TCPServer(('', 0), http.server.SimpleHTTPRequestHandler); print('port', s.server_address[1]); s.serve_forever()")
			client := p.run(image, "client", onNode, "sleep", "1000")
			if out := c.MustCrictl(t, "exec", client, "python3", "-c", ask); out != testbed.HostSays {
				t.Errorf("the node's server said %q", out)
			}
			var served int
			await(t, "the server's port", func() bool {
				_, after, ok := strings.Cut(p.log("server"), "port ")
				_, err := fmt.Sscan(after, &served)
				return ok && err == nil
			})
			if out, err := fetchFrom(fmt.Sprintf("http://127.0.0.1:%d/etc/hostname", served)); err != nil || strings.TrimSpace(out) == "" {
				t.Errorf("the pod on the node's port answered %q, %v", out, err)
			}
			fetch := fmt.Sprintf("import urllib.request; print(len(urllib.request.urlopen('http://localhost:%d/etc/hostname').read()) > 0)", served)
			if out := c.MustCrictl(t, "exec", client, "python3", "-c", fetch); out != "True\n" {
				t.Errorf("its neighbour got %q", out)
			}
			if out := c.MustCrictl(t, "exec", server, "sh", "-c", "ls /sys/class/net | sort"); out != testbed.Interfaces(t) {
				t.Errorf("it sees %q, the node has %q", out, testbed.Interfaces(t))
			}
			p.remove()
			// What does not ask for it does not get it.
			q := runPod(t, c, handler, "own-"+handler, nil)
			alone := q.run(image, "client", nil, "sleep", "1000")
			if r := c.Crictl(t, "exec", alone, "python3", "-c", ask); !strings.Contains(r.Stderr, "ConnectionRefusedError") {
				t.Errorf("a pod with a network of its own reached the node's loopback: %v", r)
			}
			q.remove()
			nothingLeft(t, c)
		})
	}
	if r := c.Crictl(t, "runp", "--runtime", "gvx", write(t, t.TempDir(), "refused", object{
		"metadata": object{"name": "refused", "namespace": "default", "uid": "refused", "attempt": 1},
		"linux":    object{"security_context": object{"namespace_options": object{"network": 2}}},
	})); r.Code == 0 || !strings.Contains(r.Stderr, "host_network") {
		t.Errorf("the node's network without its option: %v", r)
	}
	nothingLeft(t, c)
}
