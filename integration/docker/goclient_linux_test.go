// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"z.gfire.dev/gvx/pkg/gvx"
)

// goClient is docker's own client for Go against the engine of an episode that the
// SDK has made.
type goClient struct {
	*client.Client
	sb *gvx.Sandbox
}

// newGoClient starts an episode with the SDK, and connects to where DockerHost says.
func newGoClient(t *testing.T, w *shared) *goClient {
	t.Helper()
	w.publishAll(t)
	t.Setenv("HOME", w.home.Dir) // Where the registry's mirror is named.
	var log lockedBuffer
	sb, err := gvx.New(t.Context(), gvx.Config{
		RuntimePath: w.home.Binary, Root: w.home.Path("sdk-root"), OCIImage: "docker:dind", Cmd: []string{"--tls=false"},
		Envv: []string{"DOCKER_TLS_CERTDIR="}, NetRaw: true, AllowPacketSocketWrite: true, AllowSUID: true, Docker: true,
		Mounts: []gvx.Mount{{Kind: gvx.MountVolume, ImagePath: w.home.Path("data", t.Name()+".ext4"), GuestPath: "/var/lib/docker", SizeBytes: 8 << 30}},
		Stdout: &log, Stderr: &log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Close() })
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	host, err := sb.DockerHost(ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(log.String()))
	}
	c, err := client.New(client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &goClient{Client: c, sb: sb}
}

// pull fetches an image into the engine.
func (c *goClient) pull(t *testing.T, name string) {
	t.Helper()
	r, err := c.ImagePull(t.Context(), name, client.ImagePullOptions{})
	if err == nil {
		err = r.Wait(t.Context())
	}
	if err != nil {
		t.Fatalf("pull %s: %v", name, err)
	}
}

// create makes a container that goes with the test.
func (c *goClient) create(t *testing.T, o client.ContainerCreateOptions) string {
	t.Helper()
	made, err := c.ContainerCreate(t.Context(), o)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		if _, err := c.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	return made.ID
}

func (c *goClient) start(t *testing.T, id string) {
	t.Helper()
	if _, err := c.ContainerStart(t.Context(), id, client.ContainerStartOptions{}); err != nil {
		t.Fatalf("start: %v", err)
	}
}

// sleeper is a container that stays up.
func (c *goClient) sleeper(t *testing.T) string {
	t.Helper()
	id := c.create(t, client.ContainerCreateOptions{Config: &container.Config{Image: "busybox", Cmd: []string{"sleep", "1000"}}})
	c.start(t, id)
	return id
}

// wait waits for a container's end, and returns its code.
func (c *goClient) wait(t *testing.T, id string) int64 {
	t.Helper()
	w := c.ContainerWait(t.Context(), id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case end := <-w.Result:
		return end.StatusCode
	case err := <-w.Error:
		t.Fatalf("wait: %v", err)
	case <-time.After(startTimeout):
		t.Fatal("a container does not end")
	}
	return -1
}

// logs are a container's two streams.
func (c *goClient) logs(t *testing.T, id string) (string, string) {
	t.Helper()
	r, err := c.ContainerLogs(t.Context(), id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		t.Fatalf("logs: %v", err)
	}
	defer r.Close()
	return split(t, r)
}

func split(t *testing.T, r io.Reader) (string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &errs, r); err != nil {
		t.Errorf("read streams: %v", err)
	}
	return out.String(), errs.String()
}

// exec runs a command in a container, as the SDKs of docker do.
func (c *goClient) exec(t *testing.T, id, stdin string, args ...string) (out string, code int) {
	t.Helper()
	made, err := c.ExecCreate(t.Context(), id, client.ExecCreateOptions{
		AttachStdin: true, AttachStdout: true, AttachStderr: true, Env: []string{"A=b"}, WorkingDir: "/tmp", Cmd: args,
	})
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	attached, err := c.ExecAttach(t.Context(), made.ID, client.ExecAttachOptions{})
	if err != nil {
		t.Fatalf("attach to exec: %v", err)
	}
	defer attached.Close()
	if _, err := io.WriteString(attached.Conn, stdin); err != nil {
		t.Error(err)
	}
	if err := attached.CloseWrite(); err != nil {
		t.Error(err)
	}
	out, _ = split(t, attached.Reader)
	for end := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		state, err := c.ExecInspect(t.Context(), made.ID, client.ExecInspectOptions{})
		if err != nil || time.Now().After(end) {
			t.Fatalf("inspect exec: %+v, %v", state, err)
		}
		if !state.Running {
			return out, state.ExitCode
		}
	}
}

// TestGoClient drives the engine of an episode by docker's client for Go.
func TestGoClient(t *testing.T) {
	c := newGoClient(t, get(t))
	c.pull(t, "busybox")
	for name, test := range map[string]func(*testing.T, *goClient){
		"life": goLife, "attach": goAttach, "exec": goExec, "copy": goCopy, "build": goBuild, "network": goNetwork, "volume": goVolume, "events": goEvents,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
	list, err := c.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("containers are left: %+v, %v", list.Items, err)
	}
}

func goLife(t *testing.T, c *goClient) {
	id := c.create(t, client.ContainerCreateOptions{
		Config: &container.Config{Image: "busybox", Cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, Labels: map[string]string{"k": "v"}}, Name: "lived"})
	c.start(t, id)
	if code := c.wait(t, id); code != 7 {
		t.Errorf("code %d", code)
	}
	if out, errs := c.logs(t, id); out != "out\n" || errs != "err\n" {
		t.Errorf("logs %q, %q", out, errs)
	}
	seen, err := c.ContainerInspect(t.Context(), "lived", client.ContainerInspectOptions{})
	if err != nil || seen.Container.ID != id || seen.Container.State.ExitCode != 7 || seen.Container.Config.Labels["k"] != "v" {
		t.Errorf("%+v, %v", seen.Container, err)
	}
}

func goAttach(t *testing.T, c *goClient) {
	id := c.create(t, client.ContainerCreateOptions{Config: &container.Config{
		Image: "busybox", Cmd: []string{"sh", "-c", `read x; echo "<$x>"; cat`}, OpenStdin: true, StdinOnce: true, AttachStdin: true, AttachStdout: true}})
	attached, err := c.ContainerAttach(t.Context(), id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	c.start(t, id)
	if _, err := io.WriteString(attached.Conn, "word\nrest"); err != nil {
		t.Error(err)
	}
	if err := attached.CloseWrite(); err != nil {
		t.Error(err)
	}
	if out, _ := split(t, attached.Reader); out != "<word>\nrest" {
		t.Errorf("%q", out)
	}
	if code := c.wait(t, id); code != 0 {
		t.Errorf("code %d", code)
	}
}

func goExec(t *testing.T, c *goClient) {
	id := c.sleeper(t)
	if out, code := c.exec(t, id, "in", "sh", "-c", `echo "$A $(pwd)"; cat; exit 5`); out != "b /tmp\nin" || code != 5 {
		t.Errorf("%q, code %d", out, code)
	}
}

func goCopy(t *testing.T, c *goClient) {
	id := c.sleeper(t)
	in := tarOf(t, &tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, &tar.Header{Name: "d/f", Mode: 0o640, Uid: 1000}, "from outside")
	if _, err := c.CopyToContainer(t.Context(), id, client.CopyToContainerOptions{DestinationPath: "/tmp", Content: bytes.NewReader(in)}); err != nil {
		t.Fatalf("copy in: %v", err)
	}
	if out, _ := c.exec(t, id, "", "sh", "-c", "cat d/f; echo more >> d/f; stat -c ' %a' d/f"); out != "from outside 640\n" {
		t.Errorf("inside: %q", out)
	}
	copied, err := c.CopyFromContainer(t.Context(), id, client.CopyFromContainerOptions{SourcePath: "/tmp/d/f"})
	if err != nil {
		t.Fatalf("copy out: %v", err)
	}
	defer copied.Content.Close()
	archive := tar.NewReader(copied.Content)
	header, err := archive.Next()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(archive)
	if err != nil || header.Name != "f" || string(text) != "from outsidemore\n" || copied.Stat.Name != "f" {
		t.Errorf("%s: %q, %v", header.Name, text, err)
	}
}

func goBuild(t *testing.T, c *goClient) {
	files := tarOf(t, &tar.Header{Name: "Dockerfile", Mode: 0o644}, "FROM busybox\nARG who\nCOPY page /page\nRUN echo \"$who\" >> /page\nCMD cat /page\n",
		&tar.Header{Name: "page", Mode: 0o644}, "page\n")
	who := "built"
	answer, err := c.ImageBuild(t.Context(), bytes.NewReader(files), client.ImageBuildOptions{Tags: []string{"made:1"}, Remove: true, BuildArgs: map[string]*string{"who": &who}})
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil || !bytes.Contains(said, []byte("Successfully tagged made:1")) {
		t.Fatalf("build: %v: %s", err, said)
	}
	id := c.create(t, client.ContainerCreateOptions{Image: "made:1"})
	c.start(t, id)
	c.wait(t, id)
	if out, _ := c.logs(t, id); out != "page\nbuilt\n" {
		t.Errorf("%q", out)
	}
}

func goNetwork(t *testing.T, c *goClient) {
	made, err := c.NetworkCreate(t.Context(), "net", client.NetworkCreateOptions{Driver: "bridge"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.NetworkRemove(context.Background(), made.ID, client.NetworkRemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	on := &container.HostConfig{NetworkMode: "net"}
	server := c.create(t, client.ContainerCreateOptions{Name: "server", HostConfig: on,
		Config: &container.Config{Image: "busybox", Cmd: []string{"sh", "-c", "mkdir /www; echo served > /www/index.html; exec httpd -f -h /www"}}})
	c.start(t, server)
	asker := c.create(t, client.ContainerCreateOptions{HostConfig: on,
		Config: &container.Config{Image: "busybox", Cmd: []string{"sh", "-c", "for i in $(seq 200); do wget -q -O - http://server/ 2>/dev/null && exit; sleep 0.1; done; exit 1"}}})
	c.start(t, asker)
	if code := c.wait(t, asker); code != 0 {
		t.Errorf("code %d", code)
	}
	if out, _ := c.logs(t, asker); out != "served\n" {
		t.Errorf("%q", out)
	}
	seen, err := c.NetworkInspect(t.Context(), "net", client.NetworkInspectOptions{})
	if err != nil || seen.Network.Driver != "bridge" || len(seen.Network.Containers) != 1 {
		t.Errorf("%+v, %v", seen.Network, err)
	}
}

func goVolume(t *testing.T, c *goClient) {
	if _, err := c.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "vol", Labels: map[string]string{"k": "v"}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.VolumeRemove(context.Background(), "vol", client.VolumeRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	on := &container.HostConfig{AutoRemove: false, Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: "vol", Target: "/data"}}}
	for i, script := range []string{"echo kept > /data/file", "cat /data/file"} {
		id, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{HostConfig: on, Config: &container.Config{Image: "busybox", Cmd: []string{"sh", "-c", script}}})
		if err != nil {
			t.Fatal(err)
		}
		c.start(t, id.ID)
		code := c.wait(t, id.ID)
		out, _ := c.logs(t, id.ID)
		if want := strings.Repeat("kept\n", i); code != 0 || out != want {
			t.Errorf("%s: code %d, %q", script, code, out)
		}
		if _, err := c.ContainerRemove(t.Context(), id.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}
	if seen, err := c.VolumeInspect(t.Context(), "vol", client.VolumeInspectOptions{}); err != nil || seen.Volume.Labels["k"] != "v" {
		t.Errorf("%+v, %v", seen, err)
	}
}

func goEvents(t *testing.T, c *goClient) {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	stream := c.Events(ctx, client.EventsListOptions{Filters: make(client.Filters).Add("type", "container").Add("label", "watched=yes")})
	id := c.create(t, client.ContainerCreateOptions{Config: &container.Config{Image: "busybox", Cmd: []string{"true"}, Labels: map[string]string{"watched": "yes"}}})
	// What happened before the engine took the request is not told: it is started
	// again until it is.
	var seen []string
	for len(seen) < 2 {
		c.start(t, id)
		c.wait(t, id)
	next:
		for {
			select {
			case m := <-stream.Messages:
				if a := fmt.Sprint(m.Action); m.Actor.ID == id && (a == "start" && len(seen) == 0 || a == "die" && len(seen) == 1) {
					seen = append(seen, a)
				}
			case err := <-stream.Err:
				t.Fatalf("events: %v after %q", err, seen)
			case <-time.After(time.Second):
				break next
			}
		}
	}
}
