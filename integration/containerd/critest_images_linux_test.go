// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"z.gfire.dev/gvx/integration/testbed"
)

// registryAddress is where all of critest's registries are, in the tests' own
// network namespace.
const registryAddress = "127.0.0.1:5000"

// startRegistry starts an empty registry, for the test's duration; http is that table of
// its configuration.
func startRegistry(t *testing.T, http string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: %s\n", dir, http)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testbed.Need(t, "registry"), "serve", config)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// serveRegistry starts a registry, and has a containerd take it for all others.
func serveRegistry(t *testing.T, c *testbed.Containerd) {
	t.Helper()
	startRegistry(t, fmt.Sprintf("{addr: %q}", registryAddress))
	await(t, "the registry", func() bool {
		_, err := fetchFrom("http://" + registryAddress + "/v2/")
		return err == nil
	})
	hosts := filepath.Join(c.Dir, "certs.d", "_default")
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("server = \"http://%s\"\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", registryAddress, registryAddress)
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// layerOf packs files, by path: a body, a link's target after "-> ", or a directory
// for a path that ends in a slash.
func layerOf(t *testing.T, entries ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e[0], Mode: 0o755, ModTime: time.Unix(1700000000, 0), Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: int64(len(e[1]))}
		body := e[1]
		switch {
		case strings.HasSuffix(e[0], "/"):
			h.Typeflag, h.Size, body = tar.TypeDir, 0, ""
			if e[0] == "tmp/" {
				h.Mode = 0o1777
			}
		case strings.HasPrefix(e[1], "-> "):
			// Hard links: the suite masks one of them and not the others.
			h.Typeflag, h.Linkname, h.Size, body = tar.TypeLink, e[1][3:], 0, ""
		case e[0] == "nnp", e[0] == "usr/bin/passwd":
			h.Mode = 0o4755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// hostFile is the content of a file of the host's, "" if there is none.
func hostFile(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nwww-data:x:33:33:www-data:/var/www:/bin/false\n" +
		"default-user:x:1000:1000::/home/default-user:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n"
	group = "root:x:0:\ndaemon:x:1:\nwheel:x:10:root\nwww-data:x:33:\nusers:x:100:\ndefault-user:x:1000:\n" +
		"group-defined-in-image:x:50000:default-user\nnogroup:x:65534:\n"
)

// busyboxLayer is what the suite's images stand on.
func busyboxLayer(t *testing.T) []byte {
	t.Helper()
	busybox := testbed.NeedCommand(t, "busybox")
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	entries := [][2]string{}
	for _, dir := range strings.Fields("bin/ dev/ etc/ home/ proc/ root/ sys/ usr/ usr/bin/ usr/sbin/ sbin/ tmp/ var/ var/run/ var/www/ www/ lib/ lib64/ run/") {
		entries = append(entries, [2]string{dir, ""})
	}
	entries = append(entries, [2]string{"bin/busybox", hostFile(busybox)}, [2]string{"etc/passwd", passwd}, [2]string{"etc/group", group},
		[2]string{"www/index.html", "<html>It works</html>\n"})
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" && applet != "pgrep" && applet != "ipcs" {
			entries = append(entries, [2]string{"bin/" + applet, "-> bin/busybox"})
		}
	}
	// The suite wants these from the host's processes and IPC objects.
	entries = append(entries, [2]string{"bin/pgrep", "#!/bin/sh\nps -o pid,comm | while read p c; do [ \"$c\" = \"$1\" ] && echo $p; done; true\n"})
	if ipcs := hostFile("/usr/bin/ipcs"); ipcs != "" {
		entries = append(entries, [2]string{"bin/ipcs", ipcs}, [2]string{"lib64/ld-linux-x86-64.so.2", hostFile("/lib64/ld-linux-x86-64.so.2")},
			[2]string{"lib/x86_64-linux-gnu/", ""}, [2]string{"lib/x86_64-linux-gnu/libc.so.6", hostFile("/lib/x86_64-linux-gnu/libc.so.6")})
	}
	return layerOf(t, entries...)
}

// pushImages pushes what critest pulls: images of its own names, with what it wants
// of each.
func pushImages(t *testing.T) {
	t.Helper()
	base, program := busyboxLayer(t), string(testbed.PauseProgram(t))
	shell := func(c *v1.Config) { c.Cmd = []string{"sh"} }
	// A container that ends by itself while it is removed may be "still running" for
	// containerd: between the end of its task and the note of that.
	rest := func(c *v1.Config) { c.Cmd = []string{"sleep", "1000"} }
	user := func(name string) func(*v1.Config) {
		return func(c *v1.Config) { c.Cmd, c.User = []string{"sh"}, name }
	}
	entry := func(path string) func(*v1.Config) { return func(c *v1.Config) { c.Entrypoint = []string{path} } }
	server := func(port int) func(*v1.Config) {
		command := fmt.Sprintf("trap 'exit 0' TERM; echo $$ > /var/run/nginx.pid; echo httpd; httpd -f -vv -p %d -h /www & wait; : nginx: master process", port)
		return func(c *v1.Config) { c.Cmd = []string{"sh", "-c", command} }
	}
	marked := func(mark string) []byte { return layerOf(t, [2]string{"etc/mark", mark}) }
	pause := [][]byte{layerOf(t, [2]string{"pause", program})}
	const e2e, tools = "e2e-test-images/", "k8s-staging-cri-tools/"
	for _, i := range []struct {
		name   string
		layers [][]byte
		config func(*v1.Config)
	}{
		{"pause:3.9", pause, entry("/pause")},
		{"pause:latest", pause, entry("/pause")},
		{"library/busybox:latest", [][]byte{base}, shell},
		{e2e + "busybox:1.29-2", [][]byte{base}, shell},
		{e2e + "nginx:1.14-2", [][]byte{base, marked("nginx")}, server(80)},
		{e2e + "httpd:2.4.39-4", [][]byte{base, marked("httpd")}, server(80)},
		{e2e + "nonewprivs:1.3", [][]byte{layerOf(t, [2]string{"nnp", program}, [2]string{"etc/passwd", passwd}, [2]string{"etc/group", group})}, entry("/nnp")},
		{tools + "hostnet-nginx-amd64:latest", [][]byte{base, marked("hostnet")}, server(12003)},
		{tools + "test-image-user-uid:latest", [][]byte{base}, user("1002")},
		{tools + "test-image-user-username:latest", [][]byte{base}, user("www-data")},
		{tools + "test-image-user-uid-group:latest", [][]byte{base}, user("1003:users")},
		{tools + "test-image-user-username-group:latest", [][]byte{base}, user("www-data:100")},
		{tools + "test-image-predefined-group:latest", [][]byte{base}, user("1000")},
		{tools + "test-image-latest:latest", [][]byte{base, marked("latest")}, shell},
		{tools + "test-image-1:latest", [][]byte{base, marked("1")}, shell},
		{tools + "test-image-2:latest", [][]byte{base, marked("2")}, shell},
		{tools + "test-image-3:latest", [][]byte{base, marked("3")}, shell},
		{tools + "test-image-tag:test", [][]byte{base, marked("test")}, rest},
		{tools + "test-image-tag:all", [][]byte{base, marked("all")}, shell},
		{tools + "test-image-tags:1", [][]byte{base, marked("tags")}, shell},
		{tools + "test-image-tags:2", [][]byte{base, marked("tags")}, shell},
		{tools + "test-image-tags:3", [][]byte{base, marked("tags")}, shell},
		{tools + "test-image-digest:latest", [][]byte{base, marked("digest")}, shell},
	} {
		image := testbed.WithConfig(t, testbed.NewImage(t, i.layers...), func(c *v1.Config) {
			c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
			i.config(c)
		})
		ref, err := name.ParseReference(registryAddress+"/"+i.name, name.Insecure)
		if err == nil {
			err = remote.Write(ref, image)
		}
		if err != nil {
			t.Fatalf("push %s: %v", i.name, err)
		}
	}
}
