// SPDX-License-Identifier: Apache-2.0

// Command sdkclient is a program that uses the SDK, for measurements: for each line of
// its input, "true" or "episode", it makes and ends a sandbox, and prints how many
// nanoseconds that took.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"z.gfire.dev/gvx/integration/perf/engineclient"
	"z.gfire.dev/gvx/pkg/gvx"
)

// timeout bounds a sandbox' life, on a busy machine.
const timeout = 5 * time.Minute

func main() {
	rungv := flag.String("rungv", "", "rungv")
	image := flag.String("image", "", "image with true")
	engine := flag.String("engine", "", "image of an engine")
	golden := flag.String("golden", "", "golden volume of an engine that has the image")
	flag.Parse()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		began := time.Now()
		var err error
		switch lines.Text() {
		case "true":
			err = life(gvx.Config{RuntimePath: *rungv, OCIImage: *image, Cmd: []string{"true"}, NetworkMode: gvx.NetModeNone})
		case "episode":
			err = episode(*rungv, *engine, *golden, *image)
		default:
			err = fmt.Errorf("%q is nothing to do", lines.Text())
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
}

// life is a sandbox that runs to its end.
func life(c gvx.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	sb, err := gvx.New(ctx, c)
	if err != nil {
		return err
	}
	if code, err := sb.Run(ctx); err != nil || code != 0 {
		sb.Close()
		return fmt.Errorf("code %d: %w", code, err)
	}
	return sb.Close()
}

// episode has an engine on a clone of a golden volume run a container.
func episode(rungv, engine, golden, image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	sb, err := gvx.New(ctx, gvx.Config{
		RuntimePath: rungv, OCIImage: engine, Cmd: []string{"--tls=false"}, Envv: []string{"DOCKER_TLS_CERTDIR="},
		NetRaw: true, AllowPacketSocketWrite: true, AllowSUID: true, Docker: true,
		Mounts: []gvx.Mount{{Kind: gvx.MountVolume, ImagePath: golden, GuestPath: "/var/lib/docker", Clone: gvx.CloneEphemeral}},
	})
	if err != nil {
		return err
	}
	defer sb.Close()
	if err := sb.Start(ctx); err != nil {
		return err
	}
	host, err := sb.DockerHost(ctx)
	if err != nil {
		return err
	}
	if err := engineclient.Run(ctx, host, engineclient.True(image)); err != nil {
		return err
	}
	return sb.Close()
}
