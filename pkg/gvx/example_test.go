// SPDX-License-Identifier: Apache-2.0

package gvx_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"time"

	"z.gfire.dev/gvx/pkg/gvx"
)

// A command in a sandbox of its own, with limits.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	sb, err := gvx.New(ctx, gvx.Config{
		OCIImage:  "python:3.11-slim",
		Cmd:       []string{"python", "-c", "print(6 * 7)"},
		Resources: gvx.Resources{MemoryBytes: 1 << 30, CPUMillis: 1000},
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	code, err := sb.Run(ctx)
	switch {
	case errors.Is(err, gvx.ErrOOM):
		fmt.Println("it needs more memory")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println("exit code", code)
	}
}

// A Docker engine per episode, from a golden volume that no episode changes.
func ExampleSandbox_DockerHost() {
	ctx := context.Background()
	sb, err := gvx.New(ctx, gvx.Config{
		OCIImage:  "docker:dind",
		Cmd:       []string{"--tls=false"},
		Envv:      []string{"DOCKER_TLS_CERTDIR="},
		NetRaw:    true,
		AllowSUID: true,
		Docker:    true,
		Mounts: []gvx.Mount{{
			Kind: gvx.MountVolume, ImagePath: "/srv/golden-docker.ext4", GuestPath: "/var/lib/docker", Clone: gvx.CloneEphemeral,
		}},
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
	fmt.Println("DOCKER_HOST=" + host)
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
		Args: []string{"bash", "-lc", "make test"}, Dir: "/repo", Stdout: os.Stdout, Stderr: os.Stderr,
	})
	fmt.Println(exit.Code, err)
}

// What an episode left in its volume, after it was closed.
func ExampleOpenVolume() {
	v, err := gvx.OpenVolume("/srv/episodes/ep-0001.delta")
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	err = fs.WalkDir(v, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			fmt.Println(path)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
