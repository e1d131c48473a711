// SPDX-License-Identifier: Apache-2.0

// Package engineclient is what programs do with a Docker engine by docker's client
// for Go, for measurements: the same calls, whoever runs the engine.
package engineclient

import (
	"context"
	"fmt"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// Run does what `docker run --rm` does, with the engine at host: it makes a container,
// starts it, waits until it has ended with code 0, and removes it. doing, if not nil, is
// called while the container runs, before it is waited for; then it is killed, and its
// code says nothing.
func Run(ctx context.Context, host string, options client.ContainerCreateOptions, doing func() error) (err error) {
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer c.Close()
	made, err := c.ContainerCreate(ctx, options)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer func() {
		if _, removeErr := c.ContainerRemove(ctx, made.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err == nil && removeErr != nil {
			err = fmt.Errorf("remove: %w", removeErr)
		}
	}()
	if doing != nil {
		if _, err := c.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
			return fmt.Errorf("start: %w", err)
		}
		return doing()
	}
	// Waited for from before the start on, as docker's own command does.
	ended := c.ContainerWait(ctx, made.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := c.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	select {
	case end := <-ended.Result:
		if end.StatusCode != 0 {
			return fmt.Errorf("it ended with code %d", end.StatusCode)
		}
		return nil
	case err := <-ended.Error:
		return fmt.Errorf("wait: %w", err)
	}
}

// True is a container that does nothing, without a network.
func True(image string) client.ContainerCreateOptions {
	return client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Cmd: []string{"true"}},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	}
}
