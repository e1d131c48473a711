// SPDX-License-Identifier: Apache-2.0

package gvx_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/pkg/gvx"
)

// TestMain leaves the examples out where nobody says that there is a rungv, with
// their images in its store: integration/sdk runs them.
func TestMain(m *testing.M) {
	if os.Getenv("GVX_EXAMPLES") == "" {
		flag.Parse()
		skip := "^Example"
		if also := flag.Lookup("test.skip").Value.String(); also != "" {
			skip += "|" + also
		}
		if err := flag.Set("test.skip", skip); err != nil {
			log.Fatal(err)
		}
	}
	os.Exit(m.Run())
}

// A command in a sandbox of its own, with limits.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	sb, err := gvx.New(ctx, gvx.Config{
		OCIImage:  "python:3.11-slim",
		Cmd:       []string{"python3", "-c", "print(6 * 7)"},
		Resources: gvx.Resources{MemoryBytes: 1 << 30, CPUMillis: 1000},
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	code, err := sb.Run(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit code", code)
	// Output:
	// 42
	// exit code 0
}

// What a program did wrong, and what the sandbox did to it, are told apart.
func Example_limits() {
	for _, script := range []string{"print('fine')", "raise SystemExit(3)", "bytearray(1 << 30)", "while True: pass"} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		sb, err := gvx.New(ctx, gvx.Config{
			OCIImage:    "python:3.11-slim",
			Cmd:         []string{"python3", "-c", script},
			NetworkMode: gvx.NetModeNone,
			Resources:   gvx.Resources{MemoryBytes: 256 << 20, Pids: 64},
		})
		if err != nil {
			log.Fatal(err)
		}
		// A deadline of the command's own, which includes nothing of New.
		run, stop := context.WithTimeout(ctx, 5*time.Second)
		code, err := sb.Run(run)
		switch {
		case errors.Is(err, gvx.ErrOOM):
			fmt.Println("out of memory")
		case errors.Is(err, gvx.ErrTimeout):
			fmt.Println("out of time")
		case err != nil:
			fmt.Println("the sandbox failed:", err)
		default:
			fmt.Println("exit code", code)
		}
		stop()
		sb.Close()
		cancel()
	}
	// Output:
	// exit code 0
	// exit code 3
	// out of memory
	// out of time
}

// A golden volume with a Docker engine's state, and episodes on clones of it that
// change nothing in it.
func ExampleSandbox_DockerHost() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "episodes-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	engine := func(volume gvx.Mount, work func(sb *gvx.Sandbox, host string)) {
		volume.Kind, volume.ImagePath, volume.GuestPath = gvx.MountVolume, filepath.Join(dir, "golden.ext4"), "/var/lib/docker"
		sb, err := gvx.New(ctx, gvx.Config{
			OCIImage:  "docker:dind",
			Cmd:       []string{"--tls=false"},
			Envv:      []string{"DOCKER_TLS_CERTDIR="},
			NetRaw:    true,
			AllowSUID: true,
			Docker:    true,
			Mounts:    []gvx.Mount{volume},
		})
		if err != nil {
			log.Fatal(err)
		}
		defer sb.Close()
		if err := sb.Start(ctx); err != nil {
			log.Fatal(err)
		}
		host, err := sb.DockerHost(ctx)
		if err != nil {
			log.Fatal(err)
		}
		work(sb, host)
	}
	// docker is a client inside; programs outside use DOCKER_HOST, a Go program
	// the client's option WithHost.
	docker := func(sb *gvx.Sandbox, args ...string) {
		out, err := sb.Output(ctx, append([]string{"docker"}, args...)...)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s", out)
	}
	engine(gvx.Mount{SizeBytes: 16 << 30}, func(sb *gvx.Sandbox, host string) {
		fmt.Println(strings.HasPrefix(host, "unix:///"))
		docker(sb, "volume", "create", "--name", "prepared")
		// A golden volume comes to rest: synced, compacted, clean.
		if err := sb.Stop(ctx); err != nil {
			log.Fatal(err)
		}
	})
	for range 2 {
		engine(gvx.Mount{Clone: gvx.CloneEphemeral}, func(sb *gvx.Sandbox, _ string) {
			docker(sb, "volume", "create", "--name", "mine")
			docker(sb, "volume", "ls", "--quiet")
		})
	}
	// Output:
	// true
	// prepared
	// mine
	// mine
	// prepared
	// mine
	// mine
	// prepared
}

// Work in a sandbox that stays up: an agent's tool calls.
func ExampleSandbox_Exec() {
	ctx := context.Background()
	sb, err := gvx.New(ctx, gvx.Config{OCIImage: "debian:12", Cmd: []string{"sleep", "infinity"}, NetworkMode: gvx.NetModeNone})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	if err := sb.Start(ctx); err != nil {
		log.Fatal(err)
	}
	call, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	exit, err := sb.Exec(call, gvx.Command{
		Args: []string{"bash", "-c", "echo in $PWD as $(id -un); exit 2"}, Dir: "/tmp", User: "nobody", Stdout: os.Stdout, Stderr: os.Stderr,
	})
	fmt.Println(exit.Code, err)
	// Output:
	// in /tmp as nobody
	// 2 <nil>
}

// A command that is talked to while it runs.
func ExampleSandbox_StartExec() {
	ctx := context.Background()
	sb, err := gvx.New(ctx, gvx.Config{OCIImage: "debian:12", Cmd: []string{"sleep", "infinity"}, NetworkMode: gvx.NetModeNone})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	if err := sb.Start(ctx); err != nil {
		log.Fatal(err)
	}
	in, typed := io.Pipe()
	read, out := io.Pipe()
	p, err := sb.StartExec(ctx, gvx.Command{Args: []string{"bash"}, Stdin: in, Stdout: out})
	if err != nil {
		log.Fatal(err)
	}
	answer := make([]byte, 64)
	for _, line := range []string{"x=6", "echo $((x * 7))"} {
		fmt.Fprintln(typed, line)
	}
	n, err := read.Read(answer)
	fmt.Printf("%s%v\n", answer[:n], err)
	typed.Close() // The end of its input ends the shell.
	exit, err := p.Wait(ctx)
	fmt.Println(exit.Code, err)
	// Output:
	// 42
	// <nil>
	// 0 <nil>
}

// Files go in and out, one by one or as an archive.
func ExampleSandbox_WriteFile() {
	ctx := context.Background()
	sb, err := gvx.New(ctx, gvx.Config{OCIImage: "debian:12", Cmd: []string{"sleep", "infinity"}, NetworkMode: gvx.NetModeNone})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	if err := sb.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if err := sb.MkdirAll(ctx, "/repo"); err != nil {
		log.Fatal(err)
	}
	if err := sb.WriteFile(ctx, "/repo/input", []byte("3\n1\n2\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	if _, err := sb.Output(ctx, "sh", "-c", "sort /repo/input >/repo/output"); err != nil {
		log.Fatal(err)
	}
	sorted, err := sb.ReadFile(ctx, "/repo/output")
	fmt.Printf("%q %v\n", sorted, err)
	_, err = sb.ReadFile(ctx, "/repo/nothing")
	fmt.Println(errors.Is(err, fs.ErrNotExist), errors.Is(err, gvx.ErrNotFound))
	var archive bytes.Buffer
	if err := sb.CopyOut(ctx, "/repo", &archive); err != nil {
		log.Fatal(err)
	}
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(h.Name)
	}
	// Output:
	// "1\n2\n3\n" <nil>
	// true true
	// repo/
	// repo/input
	// repo/output
}

// Rules for the phases of an episode: the agent may use a service of the host's, the
// scoring may not.
func ExampleSandbox_SetEgress() {
	ctx := context.Background()
	tools, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer tools.Close()
	port := tools.Addr().(*net.TCPAddr).Port
	sb, err := gvx.New(ctx, gvx.Config{
		OCIImage: "python:3.11-slim",
		Cmd:      []string{"sleep", "infinity"},
		Egress:   []string{"deny", fmt.Sprintf("allow=127.0.0.1:%d", port)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	if err := sb.Start(ctx); err != nil {
		log.Fatal(err)
	}
	// The host's loopback, as far as it is allowed, is the guest's gateway.
	try := gvx.Command{Args: []string{"python3", "-c", fmt.Sprintf(`import socket; socket.create_connection(("10.0.2.2", %d))`, port)}}
	exit, err := sb.Exec(ctx, try)
	fmt.Println("agent:", exit.Code, err)
	if err := sb.SetEgress(ctx, "deny"); err != nil {
		log.Fatal(err)
	}
	exit, err = sb.Exec(ctx, try)
	fmt.Println("scoring:", exit.Code, err)
	// Output:
	// agent: 0 <nil>
	// scoring: 1 <nil>
}

// A golden volume from code, an episode on a clone that is kept, and the next golden
// volume of what the episode made of it. No sandbox is needed to read a volume.
func ExampleVolumes() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "volumes-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	golden, episode, next := filepath.Join(dir, "golden.ext4"), filepath.Join(dir, "episode.delta"), filepath.Join(dir, "next.ext4")
	run := func(m gvx.Mount, script string) {
		m.Kind, m.ImagePath, m.GuestPath = gvx.MountVolume, golden, "/data"
		sb, err := gvx.New(ctx, gvx.Config{OCIImage: "debian:12", Cmd: []string{"sh", "-c", script}, NetworkMode: gvx.NetModeNone, Mounts: []gvx.Mount{m}})
		if err != nil {
			log.Fatal(err)
		}
		defer sb.Close()
		if code, err := sb.Run(ctx); code != 0 || err != nil {
			log.Fatal(code, err)
		}
	}
	var volumes gvx.Volumes
	if err := volumes.Create(ctx, golden, 1<<30); err != nil {
		log.Fatal(err)
	}
	run(gvx.Mount{}, "echo prepared >/data/state")
	run(gvx.Mount{Clone: episode}, "echo changed >>/data/state; mkdir /data/out; echo 1 >/data/out/score")
	if err := volumes.Flatten(ctx, episode, next); err != nil {
		log.Fatal(err)
	}
	for _, path := range []string{golden, episode, next} {
		v, err := gvx.OpenVolume(path)
		if err != nil {
			log.Fatal(err)
		}
		state, err := fs.ReadFile(v, "state")
		fmt.Printf("%s: %q %v\n", filepath.Base(path), state, err)
		v.Close()
	}
	// A clone is known to rungv, which guards its base: it goes by rungv, too.
	if err := volumes.Remove(ctx, episode); err != nil {
		log.Fatal(err)
	}
	// Output:
	// golden.ext4: "prepared\n" <nil>
	// episode.delta: "prepared\nchanged\n" <nil>
	// next.ext4: "prepared\nchanged\n" <nil>
}

// What an episode left in its volume, after it was closed.
func ExampleOpenVolume() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "volume-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	volume := filepath.Join(dir, "episode.ext4")
	sb, err := gvx.New(ctx, gvx.Config{
		OCIImage: "debian:12", Cmd: []string{"sh", "-c", "mkdir /data/out; echo 1 >/data/out/score"}, NetworkMode: gvx.NetModeNone,
		Mounts: []gvx.Mount{{Kind: gvx.MountVolume, ImagePath: volume, GuestPath: "/data", SizeBytes: 1 << 30}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sb.Run(ctx); err != nil {
		log.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		log.Fatal(err)
	}
	v, err := gvx.OpenVolume(volume)
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	err = fs.WalkDir(v, ".", func(path string, d fs.DirEntry, err error) error {
		fmt.Println(path)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// .
	// out
	// out/score
}
