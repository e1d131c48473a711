// SPDX-License-Identifier: Apache-2.0

// Containers that are prepared first and started later, as the client sees
// them.

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

const (
	// MaxFiles bounds what is handed over in one message: Linux takes no more.
	MaxFiles = 253
	// MaxContainerBytes bounds a container's spec on the channel, which itself
	// takes messages of 4 MiB.
	MaxContainerBytes = 3 << 20
)

// WaitCreated returns once the container is prepared, or with the error that
// kept it from that. The report's PID is not set.
func (c *Client) WaitCreated(ctx context.Context, container string) (Started, error) {
	r, err := c.sandbox.WaitCreated(ctx, &controlv1.WaitCreatedRequest{Container: container})
	if err != nil {
		return Started{}, FromStatus(err)
	}
	return report(r.GetPhases(), r.GetLockdown()), nil
}

// Create prepares a further container. Its descriptors are numbers of the files
// that were sent under the id files before, from 0.
func (c *Client) Create(ctx context.Context, spec *api.Container, files string) error {
	doc, err := json.Marshal(spec)
	if err == nil && len(doc) > MaxContainerBytes {
		err = api.Errorf(api.KindLimit, "its spec has %d bytes, at most %d", len(doc), MaxContainerBytes)
	}
	if err != nil {
		return fmt.Errorf("create container %s: %w", spec.ID, err)
	}
	_, err = c.sandbox.Create(ctx, &controlv1.CreateRequest{Container: doc, Files: files})
	return FromStatus(err)
}

// Start lets a prepared container run. Links are the interfaces of its sandbox'
// network, where that is a namespace's and has not been given any: their
// descriptors are numbers of the files that were sent under the id files before.
func (c *Client) Start(ctx context.Context, container string, links []api.Link, files string) error {
	req := &controlv1.StartRequest{Container: container, Files: files}
	if len(links) > 0 {
		var err error
		if req.Links, err = json.Marshal(links); err != nil {
			return fmt.Errorf("start container %s: %w", container, err)
		}
		if len(req.Links) > MaxContainerBytes {
			return api.Errorf(api.KindLimit, "start container %s: what its network interfaces have is more than %d bytes", container, MaxContainerBytes)
		}
	}
	_, err := c.sandbox.Start(ctx, req)
	return FromStatus(err)
}

// Delete has the sandbox forget a further container that does not run.
func (c *Client) Delete(ctx context.Context, container string) error {
	_, err := c.sandbox.Delete(ctx, &controlv1.DeleteRequest{Container: container})
	return FromStatus(err)
}

// report bounds and cleans what a sandbox tells of its boot.
func report(phases []*controlv1.BootPhase, lockdown []string) Started {
	var s Started
	for _, p := range phases[:min(len(phases), maxPhases)] {
		s.Phases = append(s.Phases, Phase{Name: cleanName(p.GetName()), At: time.Duration(p.GetAtNanos())})
	}
	for _, l := range lockdown[:min(len(lockdown), maxLayers)] {
		s.Lockdown = append(s.Lockdown, cleanName(l))
	}
	return s
}
