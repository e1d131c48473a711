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
// starts it, waits until it has ended with code 0, and removes it.
func Run(ctx context.Context, host string, options client.ContainerCreateOptions) error {
	return with(ctx, host, options, func(c *client.Client, id string) error {
		// Waited for from before the start on, as docker's own command does.
		ended := c.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
		if _, err := c.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
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
	})
}

// During makes and starts a container, calls do while it runs, and kills and removes it.
func During(ctx context.Context, host string, options client.ContainerCreateOptions, do func() error) error {
	return with(ctx, host, options, func(c *client.Client, id string) error {
		if _, err := c.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
			return fmt.Errorf("start: %w", err)
		}
		return do()
	})
}

// with makes a container for do, and removes it, with what it runs.
func with(ctx context.Context, host string, options client.ContainerCreateOptions, do func(c *client.Client, id string) error) (err error) {
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
	return do(c, made.ID)
}

// True is a container that does nothing, without a network.
func True(image string) client.ContainerCreateOptions {
	return client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Cmd: []string{"true"}},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	}
}
