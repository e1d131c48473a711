// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// object is a document for CRI.
type object = map[string]any

// pod is a pod of a test, by crictl.
type pod struct {
	t      *testing.T
	c      *testbed.Containerd
	id     string
	config string
	dir    string
}

// write writes a document to a file of the test's.
func write(t *testing.T, dir, name string, doc object) string {
	t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name+".json")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// runPod runs a pod with a handler.
func runPod(t *testing.T, c *testbed.Containerd, handler, name string, change func(object)) *pod {
	t.Helper()
	dir := t.TempDir()
	doc := object{
		"metadata":      object{"name": name, "namespace": "default", "uid": name + "-" + handler, "attempt": 1},
		"hostname":      name,
		"log_directory": dir,
		"linux":         object{"security_context": object{"namespace_options": object{"pid": 1}}},
	}
	if change != nil {
		change(doc)
	}
	p := &pod{t: t, c: c, dir: dir, config: write(t, dir, "pod", doc)}
	p.id = strings.TrimSpace(c.MustCrictl(t, "runp", "--runtime", handler, p.config))
	return p
}

// create makes a container in the pod.
func (p *pod) create(image, name string, change func(object), command ...string) string {
	p.t.Helper()
	doc := object{
		"metadata": object{"name": name}, "image": object{"image": image}, "command": command, "log_path": name + ".log",
		"linux": object{"security_context": object{"namespace_options": object{"pid": 1}}},
	}
	if change != nil {
		change(doc)
	}
	return strings.TrimSpace(p.c.MustCrictl(p.t, "create", p.id, write(p.t, p.dir, name, doc), p.config))
}

// run is create, and start.
func (p *pod) run(image, name string, change func(object), command ...string) string {
	p.t.Helper()
	id := p.create(image, name, change, command...)
	p.c.MustCrictl(p.t, "start", id)
	return id
}

// log is what a container has written.
func (p *pod) log(name string) string {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return ""
	}
	return string(data)
}

// remove ends the pod.
func (p *pod) remove() {
	p.t.Helper()
	p.c.MustCrictl(p.t, "stopp", p.id)
	p.c.MustCrictl(p.t, "rmp", p.id)
}

// TestPods runs the same pod with runc, which proves the test, and with gvx: two
// containers that share network, processes apart.
func TestPods(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers})
	for handler, snapshotter := range map[string]string{"runc": "overlayfs", "gvx": "erofs"} {
		t.Run(handler, func(t *testing.T) {
			c.CRIPause(t, snapshotter)
			image := c.CRIImage(t, snapshotter, "demo")
			p := runPod(t, c, handler, "pod", nil)
			server := p.run(image, "server", nil, "python3", "-u", "-c",
				// Not an HTTPServer, which asks for its own name first: nobody answers here.
				"import http.server, socketserver; socketserver.TCPServer(('', 8080), http.server.SimpleHTTPRequestHandler).serve_forever()")
			client := p.run(image, "client", nil, "sleep", "1000")
			fetch := "import time, urllib.request\nfor i in range(100):\n  try: print(urllib.request.urlopen('http://localhost:8080/etc/hostname').read().decode(), end=''); break\n  except OSError: time.sleep(0.1)"
			if out := c.MustCrictl(t, "exec", client, "python3", "-c", fetch); strings.TrimSpace(out) != "pod" {
				t.Errorf("the neighbour answered %q", out)
			}
			address := podAddress(t, c, p.id)
			if out, err := fetchFrom("http://" + address + ":8080/etc/hostname"); err != nil || strings.TrimSpace(out) != "pod" {
				t.Errorf("the pod at %s answered %q, %v", address, out, err)
			}
			if out := c.MustCrictl(t, "exec", client, "sh", "-c", "cat /proc/1/cmdline | tr '\\0' ' '; hostname"); out != "sleep 1000 pod\n" {
				t.Errorf("process 1 and host name: %q", out)
			}
			await(t, "the log", func() bool { return strings.Contains(p.log("server"), "GET /etc/hostname") })
			if out := c.MustCrictl(t, "stats", "-o", "json", server); !strings.Contains(out, `"usageCoreNanoSeconds"`) {
				t.Errorf("stats: %s", out)
			}
			c.MustCrictl(t, "stop", "--timeout", "2", client)
			if out := c.MustCrictl(t, "inspect", client); !strings.Contains(out, "CONTAINER_EXITED") {
				t.Errorf("inspect: %s", out)
			}
			// A container that ends leaves the others alone, and may come again.
			c.MustCrictl(t, "rm", client)
			ends := p.run(image, "ends", nil, "sh", "-c", "echo done; exit 3")
			await(t, "its end", func() bool { return strings.Contains(c.MustCrictl(t, "inspect", ends), `"exitCode": 3`) })
			p.remove()
			nothingLeft(t, c)
		})
	}
}

// TestPausesOneContainer: a container of a pod is paused, and the others go on.
func TestPausesOneContainer(t *testing.T) {
	c := newSandboxer(t)
	for handler, snapshotter := range map[string]string{"runc": "overlayfs", "gvx": "erofs", sandboxHandler: "erofs"} {
		t.Run(handler, func(t *testing.T) {
			c.CRIPause(t, snapshotter)
			image := c.CRIImage(t, snapshotter, "demo")
			p := runPod(t, c, handler, "pod", nil)
			// It forks all the while, and waits, and has a child that uses its processor.
			const script = "while :; do :; done & while :; do echo line; sleep 0.02; done"
			paused, other := p.run(image, "paused", nil, "sh", "-c", script), p.run(image, "other", nil, "sh", "-c", script)
			grows := func(name string) bool {
				before := len(p.log(name))
				time.Sleep(500 * time.Millisecond)
				return len(p.log(name)) > before
			}
			task := func(verb string, args ...string) testbed.Result {
				return c.Ctr(t, append([]string{"--namespace", "k8s.io", "tasks", verb}, args...)...)
			}
			await(t, "both write", func() bool { return p.log("paused") != "" && p.log("other") != "" })
			for range 3 {
				if r := task("pause", paused); r.Code != 0 {
					t.Fatal(r)
				}
				time.Sleep(100 * time.Millisecond) // What is on its way to the log.
				if grows("paused") || !grows("other") {
					t.Error("the paused one writes, or the other does not")
				}
				if r := c.Crictl(t, "exec", other, "true"); r.Code != 0 {
					t.Errorf("exec in the other: %v", r)
				}
				if r := task("resume", paused); r.Code != 0 {
					t.Fatal(r)
				}
				await(t, "it goes on", func() bool { return grows("paused") })
			}
			// Both at once, and one that ends meanwhile.
			for _, id := range []string{paused, other} {
				if r := task("pause", id); r.Code != 0 {
					t.Fatal(r)
				}
			}
			c.MustCrictl(t, "stop", "--timeout", "1", other)
			if r := task("resume", paused); r.Code != 0 {
				t.Fatal(r)
			}
			await(t, "it goes on alone", func() bool { return grows("paused") })
			p.remove()
			nothingLeft(t, c)
		})
	}
}

// podAddress is a pod's on the network.
func podAddress(t *testing.T, c *testbed.Containerd, id string) string {
	t.Helper()
	var doc struct {
		Status struct {
			Network struct {
				IP string `json:"ip"`
			} `json:"network"`
		} `json:"status"`
	}
	if err := json.Unmarshal([]byte(c.MustCrictl(t, "inspectp", id)), &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Status.Network.IP
}

// TestPodLimits: a container above its limit is killed, and CRI says why; the pod
// and its others live.
func TestPodLimits(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers})
	c.CRIPause(t, "erofs")
	image := c.CRIImage(t, "erofs", "demo")
	p := runPod(t, c, "gvx", "pod", nil)
	other := p.run(image, "other", nil, "sleep", "1000")
	big := p.run(image, "big", func(doc object) {
		doc["linux"].(object)["resources"] = object{"memory_limit_in_bytes": 64 << 20}
	}, "python3", "-c", "x = bytearray(300 << 20); print(len(x))")
	await(t, "its end", func() bool { return strings.Contains(c.MustCrictl(t, "inspect", big), "CONTAINER_EXITED") })
	if out := c.MustCrictl(t, "inspect", big); !strings.Contains(out, "OOMKilled") {
		t.Errorf("inspect: %s\nlog: %s", out, p.log("big"))
	}
	if out := c.MustCrictl(t, "exec", other, "echo", "lives"); out != "lives\n" {
		t.Errorf("the other container: %q", out)
	}
	// A limit that comes later holds, too.
	c.MustCrictl(t, "update", "--memory", "67108864", other)
	if r := c.Crictl(t, "exec", other, "python3", "-c", "x = bytearray(300 << 20)"); r.Code == 0 {
		t.Errorf("a process above a limit that was added: %v", r)
	}
	if out := c.MustCrictl(t, "exec", other, "echo", "lives"); out != "lives\n" {
		t.Errorf("the other container: %q", out)
	}
	p.remove()
	nothingLeft(t, c)
}

// TestPodMounts: directories and files of the host, as kubelet mounts volumes.
func TestPodMounts(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers})
	c.CRIPause(t, "erofs")
	image := c.CRIImage(t, "erofs", "demo")
	dir := t.TempDir()
	for name, text := range map[string]string{"shared/from-host": "host", "config/key": "value", "file": "one file"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := runPod(t, c, "gvx", "pod", nil)
	mounts := func(doc object) {
		doc["mounts"] = []object{
			{"host_path": filepath.Join(dir, "shared"), "container_path": "/shared"},
			{"host_path": filepath.Join(dir, "config"), "container_path": "/config", "readonly": true},
			{"host_path": filepath.Join(dir, "file"), "container_path": "/etc/file"},
		}
	}
	one := p.run(image, "one", mounts, "sleep", "1000")
	two := p.run(image, "two", mounts, "sleep", "1000")
	if out := c.MustCrictl(t, "exec", one, "sh", "-c", "cat /shared/from-host /config/key /etc/file; echo guest > /shared/from-guest; touch /config/x || echo refused"); out != "hostvalueone filerefused\n" {
		t.Errorf("it saw %q", out)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "shared", "from-guest")); err != nil || string(data) != "guest\n" {
		t.Errorf("the host sees %q, %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "key"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := c.MustCrictl(t, "exec", two, "cat", "/config/key", "/shared/from-guest"); out != "changedguest\n" {
		t.Errorf("its neighbour saw %q", out)
	}
	p.remove()
	nothingLeft(t, c)
}
