// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"z.gfire.dev/gvx/integration/perf/engineclient"
	"z.gfire.dev/gvx/integration/testbed"
)

// TestPrograms measures programs that use the SDK, as an ordinary user, beside programs
// that use docker's client for Go with an engine of the host's, as root: a sandbox that
// does nothing, and an episode, from a golden state over an engine's start and a container
// in it to the end of it all. The host's engine keeps the golden state as a directory that
// each episode copies, sharing blocks where the file system can, and removes.
func TestPrograms(t *testing.T) {
	needBench(t)
	testbed.NeedRoot(t, "an engine of the host's")
	h := getHome(t)
	native := newNativeEngine(t, h)
	golden := goldenEngine(t, newEngineClient(t))
	sdk := startSDKClient(t, h, golden)
	rows := [][]string{{"", "SDK", "docker's client", "SDK is"}}
	for _, job := range []struct {
		name, title string
		rounds      int
		peer        func(t *testing.T) time.Duration
	}{
		{"true", "New, Run, Close of true", 31, native.life},
		{"episode", "clone, engine, run in it, close", 9, native.episode},
	} {
		var ours, theirs []time.Duration
		for round := range testbed.Rounds(job.rounds) + 1 {
			a, b := sdk.time(t, job.name), job.peer(t)
			if round > 0 { // The first warms caches.
				ours, theirs = append(ours, a), append(theirs, b)
			}
		}
		rows = append(rows, []string{job.title, testbed.Milliseconds(testbed.Median(ours)), testbed.Milliseconds(testbed.Median(theirs)), fmt.Sprintf("%.2f of it", float64(testbed.Median(ours))/float64(testbed.Median(theirs)))})
	}
	testbed.Report(t, "Go programs, medians of rounds in turn", rows...)
}

// sdkClient is package sdkclient's program.
type sdkClient struct {
	in  io.Writer
	out *bufio.Scanner
}

func startSDKClient(t *testing.T, h *testbed.Home, golden string) *sdkClient {
	t.Helper()
	program := h.Path("bin", "sdkclient")
	if out, err := exec.Command("go", "build", "-o", program, "./sdkclient").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	cmd := h.CommandAs(context.Background(), program, "-rungv", h.Binary, "-image", image, "-engine", engineImage, "-golden", golden)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the program: %v", err)
		}
	})
	return &sdkClient{in: in, out: bufio.NewScanner(out)}
}

// time has the program do a job, and returns how long that took.
func (c *sdkClient) time(t *testing.T, job string) time.Duration {
	t.Helper()
	fmt.Fprintln(c.in, job)
	if !c.out.Scan() {
		t.Fatalf("the program did not do %q", job)
	}
	n, err := strconv.ParseInt(c.out.Text(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

// nativeEngine is an engine of the host's, in namespaces of its own, with the package's
// images.
type nativeEngine struct {
	*liveEngine
	dir, golden string
	episodes    int
}

func newNativeEngine(t *testing.T, h *testbed.Home) *nativeEngine {
	t.Helper()
	c := newEngineClient(t)
	bin := filepath.Dir(c.program)
	dir, err := os.MkdirTemp("/var/tmp", "gvx-native-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	e := &nativeEngine{dir: dir, golden: filepath.Join(dir, "golden")}
	socket := filepath.Join(dir, "docker.sock")
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", filepath.Join(bin, "dockerd"),
		"--host=unix://"+socket, "--data-root="+filepath.Join(dir, "data"), "--exec-root="+filepath.Join(dir, "exec"), "--pidfile="+filepath.Join(dir, "pid"))
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	e.liveEngine = begin(t, cmd, socket)
	e.ready(t)
	h.Image(t, engineImage)
	for _, name := range []string{image, engineImage} {
		archive := h.Path("tmp", name+".tar")
		h.MustRungv(t, "image", "save", "-o", archive, name)
		e.script(t, c, dir, "docker load -q -i "+archive)
		if err := os.Remove(archive); err != nil {
			t.Fatal(err)
		}
	}
	e.inside(t, e.golden, func(host string) error {
		inner := &liveEngine{socket: strings.TrimPrefix(host, "unix://"), ended: e.ended, output: e.output}
		archive := engineMaterial(t, t.TempDir())
		inner.script(t, c, dir, "docker load -q -i "+archive+"; docker run --rm demo true")
		e.script(t, c, dir, "docker stop $(docker ps -q)")
		return nil
	})
	return e
}

// life is a container that does nothing.
func (e *nativeEngine) life(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	if err := engineclient.Run(t.Context(), "unix://"+e.socket, engineclient.True(image)); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// inside runs an engine in a privileged container, with its state in a directory, until
// do has returned.
func (e *nativeEngine) inside(t *testing.T, state string, do func(host string) error) {
	t.Helper()
	sockets := filepath.Join(e.dir, "sockets")
	if err := os.RemoveAll(sockets); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(sockets, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(state, 0o711); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockets, "docker.sock")
	options := client.ContainerCreateOptions{
		Config:     &container.Config{Image: engineImage, Cmd: []string{"--tls=false", "--host=unix:///sockets/docker.sock"}, Env: []string{"DOCKER_TLS_CERTDIR="}},
		HostConfig: &container.HostConfig{Privileged: true, Binds: []string{state + ":/var/lib/docker", sockets + ":/sockets"}},
	}
	err := engineclient.During(t.Context(), "unix://"+e.socket, options, func() error {
		inner := &liveEngine{socket: socket, ended: e.ended, output: e.output}
		inner.ready(t)
		return do("unix://" + socket)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// episode is an engine on a copy of the golden state that runs a container.
func (e *nativeEngine) episode(t *testing.T) time.Duration {
	t.Helper()
	e.episodes++
	state := filepath.Join(e.dir, fmt.Sprintf("episode-%d", e.episodes))
	began := time.Now()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", "--reflink=auto", e.golden, state).CombinedOutput(); err != nil {
		t.Fatalf("copy the golden state: %v: %s", err, out)
	}
	e.inside(t, state, func(host string) error {
		return engineclient.Run(t.Context(), host, engineclient.True(image))
	})
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}
