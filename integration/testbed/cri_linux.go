// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"archive/tar"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// criNamespace is the one of containerd's in which CRI works.
const criNamespace = "k8s.io"

// PauseImage is the name under which CRI looks for the image of a pod's own
// container.
const PauseImage = "registry.invalid/pause:latest"

// Handlers is what a node's administrator adds to containerd's configuration for a
// RuntimeClass whose handler is "gvx".
const Handlers = `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvx]
  runtime_type = '` + Runtime + `'
  snapshotter = 'erofs'
  pod_annotations = ['dev.gvx.*']
  container_annotations = ['dev.gvx.*']
[plugins.'io.containerd.cri.v1.images'.runtime_platforms.gvx]
  snapshotter = 'erofs'
  platform = 'linux/` + Architecture + `'
`

// HostNetworkHandlers is the configuration of two more handlers, by which pods get the
// host's network if they ask for it: gvx-host with a pause container, gvx-host-sandbox
// without.
func HostNetworkHandlers() string {
	var text strings.Builder
	for handler, more := range map[string]string{"gvx-host": "", "gvx-host-sandbox": "  sandboxer = 'shim'\n  disable_pause_image_pull = true\n"} {
		fmt.Fprintf(&text, `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%[1]s]
  runtime_type = '%[2]s'
  snapshotter = 'erofs'
%[3]s  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%[1]s.options]
    host_network = true
[plugins.'io.containerd.cri.v1.images'.runtime_platforms.%[1]s]
  snapshotter = 'erofs'
  platform = 'linux/%[4]s'
`, handler, Runtime, more, Architecture)
	}
	return text.String()
}

// CRIImage imports an image of the test bed for CRI, and returns its name.
func (c *Containerd) CRIImage(t testing.TB, snapshotter, name string) string {
	t.Helper()
	return c.ImportAs(t, snapshotter, filepath.Join(Need(t, name), "oci"), "test.invalid/"+name, criNamespace)
}

// CRIPause makes the image of pods' own containers and imports it.
func (c *Containerd) CRIPause(t testing.TB, snapshotter string) {
	t.Helper()
	dir := filepath.Join(c.Dir, "pause")
	if _, err := os.Stat(dir); err != nil {
		image := NewImage(t, TarOf(t, "pause", PauseProgram(t)))
		WriteLayout(t, dir, WithConfig(t, image, func(config *v1.Config) { config.Entrypoint = []string{"/pause"} }))
	}
	c.ImportAs(t, snapshotter, dir, strings.TrimSuffix(PauseImage, ":latest"), criNamespace)
}

// PauseProgram builds the program of pods' own containers.
func PauseProgram(t testing.TB) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pause")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "./integration/testbed/pause")
	build.Dir = Tree()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build pause: %v\n%s", err, output)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// WithConfig returns an image with another configuration.
func WithConfig(t testing.TB, image v1.Image, change func(*v1.Config)) v1.Image {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	change(&config.Config)
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

// TarOf is a tar with one program.
func TarOf(t testing.TB, name string, data []byte) []byte {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return []byte(b.String())
}

// WriteLayout writes an image as an OCI layout, with the tag "latest".
func WriteLayout(t testing.TB, dir string, image v1.Image) {
	t.Helper()
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(image, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: Architecture}),
			layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "latest"}))
	}
	if err != nil {
		t.Fatalf("write layout %s: %v", dir, err)
	}
}

// CRI is a client of containerd's CRI service: for what crictl has no word for, and for
// measurements, in which it would have a part.
func (c *Containerd) CRI(t testing.TB) cri.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return cri.NewRuntimeServiceClient(conn)
}

// CrictlCommand makes a command of CRI's own client.
func (c *Containerd) CrictlCommand(ctx context.Context, t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	endpoint := "unix://" + c.Socket
	cmd := exec.CommandContext(ctx, filepath.Join(Need(t, "cri-tools"), "crictl"),
		append([]string{"--runtime-endpoint", endpoint, "--image-endpoint", endpoint, "--timeout", "60s"}, args...)...)
	cmd.Env = []string{"PATH=" + c.path, "HOME=" + c.Dir}
	cmd.WaitDelay = 15 * time.Second
	return cmd
}

// Crictl runs a command of crictl to its end.
func (c *Containerd) Crictl(t testing.TB, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	return Run(t, c.CrictlCommand(ctx, t, args...), nil)
}

// MustCrictl is Crictl for a command that has to succeed; it returns its output.
func (c *Containerd) MustCrictl(t testing.TB, args ...string) string {
	t.Helper()
	result := c.Crictl(t, args...)
	if result.Code != 0 {
		t.Fatalf("crictl %q: %v\ncontainerd: %s", args, result, c.Log())
	}
	return result.Stdout
}
