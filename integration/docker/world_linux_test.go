// SPDX-License-Identifier: Apache-2.0

// Package docker runs Docker engines in sandboxes, as users do: rungv is started
// by an ordinary user with the image docker:dind from a registry, and a stock
// docker command line drives the engine over a published unix socket.
//
// All of it happens in network and mount namespaces of the test's own, with one more
// address on its loopback interface, where a registry listens that stands in for
// Docker Hub: for rungv by registries.json, for the engines by daemon.json. What
// it serves is built by the test bed out of Debian packages and Go modules.
package docker

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

const (
	// hub is where the registry listens, an address of the namespace's own.
	hubIP   = "192.0.2.1"
	hubAddr = hubIP + ":5000"
	// inside is set in the process that runs in the namespace.
	inside = "GVX_TEST_DOCKER_INSIDE"
)

// TestMain starts the tests again in namespaces of their own. An
// ordinary user has none: what needs it says so.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		code := m.Run()
		os.Exit(world.remove(code))
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Should this process end, so does that one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "start the tests in a network namespace:", err)
		os.Exit(1)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

// world is what the tests share.
var world shared

type shared struct {
	once sync.Once
	err  error
	home *testbed.Home
	hub  *exec.Cmd
	log  bytes.Buffer
	// config is a docker client's folder, with the plugins; cli is the client.
	config, cli string

	mu     sync.Mutex
	pushed map[string]bool
}

// get returns the shared world, made on first use.
func get(t testing.TB) *shared {
	t.Helper()
	testbed.NeedRoot(t, "a network namespace with a registry")
	registry, engine := testbed.Need(t, "registry"), testbed.Need(t, "engine")
	world.once.Do(func() { world.err = world.make(registry, engine) })
	if world.err != nil {
		t.Fatal(world.err)
	}
	return &world
}

func (w *shared) make(registry, engine string) (err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the tests' mounts private: %w", err)
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", hubIP + "/32", "dev", "lo"}} {
		if output, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %q: %w: %s", args, err, output)
		}
	}
	if w.home, err = testbed.NewHome(); err != nil {
		return err
	}
	w.pushed = map[string]bool{}
	// A copy: the test bed's own folder may be out of the user's reach.
	w.cli = w.home.Path("bin", "docker")
	if output, err := exec.Command("cp", "--reflink=auto", filepath.Join(engine, "usr/local/bin/docker"), w.cli).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the docker client: %w: %s", err, output)
	}
	w.config = w.home.Path("client")
	if err := os.MkdirAll(w.config, 0o755); err != nil {
		return err
	}
	plugins := filepath.Join(engine, "usr/local/libexec/docker/cli-plugins")
	if err := os.Symlink(plugins, filepath.Join(w.config, "cli-plugins")); err != nil {
		return err
	}
	mirrors := fmt.Sprintf(`{"mirrors": {"docker.io": ["http://%s"]}}`, hubAddr)
	file := w.home.Path(".config", "gvx", "registries.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(mirrors), 0o644); err != nil {
		return err
	}
	return w.startHub(registry)
}

func (w *shared) startHub(program string) error {
	file := w.home.Path("hub.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}, delete: {enabled: true}}\nhttp: {addr: %q}\n", w.home.Path("hub"), hubAddr)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	w.hub = exec.Command(program, "serve", file)
	w.hub.Stdout, w.hub.Stderr = &w.log, &w.log
	w.hub.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	w.hub.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.hub.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		answer, err := http.Get("http://" + hubAddr + "/v2/")
		if err == nil {
			return answer.Body.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the registry does not answer: %w", err)
		}
	}
}

// remove ends what the world has started.
func (w *shared) remove(code int) int {
	if w.hub != nil && w.hub.Process != nil {
		w.hub.Process.Kill()
		w.hub.Wait()
		if code != 0 {
			fmt.Fprintf(os.Stderr, "registry: %s\n", w.log.String())
		}
	}
	if w.home != nil {
		if err := w.home.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, "remove the test's home:", err)
			return 1
		}
	}
	return code
}

// publish puts an image of the test bed into the registry under Docker Hub's
// names, once.
func (w *shared) publish(t testing.TB, entry string, names ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pushed[entry] {
		return
	}
	var image v1.Image
	switch entry {
	case "busybox":
		image = busybox(t)
	default:
		var err error
		if image, err = testbed.LayoutImage(filepath.Join(testbed.Need(t, entry), "oci")); err != nil {
			t.Fatal(err)
		}
	}
	if strings.HasPrefix(entry, "dind") {
		image = configured(t, image)
	}
	if entry == "demo" {
		// Debian's Python goes by another name than that of the official image.
		image = appendLayer(t, image, tarOf(t, &tar.Header{Name: "usr/local/bin/python", Typeflag: tar.TypeSymlink, Linkname: "/usr/bin/python3"}))
	}
	for _, n := range names {
		reference, err := name.ParseReference(hubAddr+"/library/"+n, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(reference, image, remote.WithContext(t.Context())); err != nil {
			t.Fatalf("push %s: %v", n, err)
		}
	}
	w.pushed[entry] = true
}

// configured is an engine's image with a daemon.json that knows the registry.
func configured(t testing.TB, image v1.Image) v1.Image {
	t.Helper()
	text := fmt.Sprintf(`{"registry-mirrors": ["http://%s"], "insecure-registries": ["%s"]}`, hubAddr, hubAddr)
	return appendLayer(t, image, tarOf(t,
		&tar.Header{Name: "etc/docker/", Typeflag: tar.TypeDir, Mode: 0o755},
		&tar.Header{Name: "etc/docker/daemon.json", Mode: 0o644}, text))
}

// busybox is the smallest image there is with a shell: Debian's static busybox.
func busybox(t testing.TB) v1.Image {
	t.Helper()
	program := testbed.NeedCommand(t, "busybox")
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	applets, err := exec.Command(program, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	parts := []any{}
	for _, dir := range []string{"bin/", "etc/", "root/", "tmp/", "var/"} {
		parts = append(parts, &tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755})
	}
	parts = append(parts,
		&tar.Header{Name: "bin/busybox", Mode: 0o755}, string(binary),
		&tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
		&tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nuser:x:1000:\n")
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			parts = append(parts, &tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"})
		}
	}
	image := appendLayer(t, testbed.NewImage(t), tarOf(t, parts...))
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Config.Cmd = []string{"sh"}
	config.Config.Env = []string{"PATH=/bin"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

// tarOf packs headers, each followed by its body where it has one.
func tarOf(t testing.TB, parts ...any) []byte {
	t.Helper()
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for i, part := range parts {
		header, ok := part.(*tar.Header)
		if !ok {
			continue
		}
		body := ""
		if i+1 < len(parts) {
			body, _ = parts[i+1].(string)
		}
		header.Size = int64(len(body))
		if header.Mode == 0 {
			header.Mode = 0o777
		}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func appendLayer(t testing.TB, image v1.Image, layer []byte) v1.Image {
	t.Helper()
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	if image, err = mutate.AppendLayers(image, made); err != nil {
		t.Fatal(err)
	}
	return image
}
