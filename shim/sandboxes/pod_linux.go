// SPDX-License-Identifier: Apache-2.0

package sandboxes

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/log"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/shim/options"
	"z.gfire.dev/gvx/shim/pod"
	"z.gfire.dev/gvx/shim/task"
)

// CreatePod makes a sandbox in which nothing of the pod's runs.
func (r *Runtime) CreatePod(ctx context.Context, o task.PodOptions) (task.Container, error) {
	choices, err := options.Kept(o.Bundle)
	if err != nil {
		return nil, err
	}
	config, err := pod.Parse(o.ConfigType, o.Config)
	if err != nil {
		return nil, err
	}
	b, err := podBundle(config, o)
	if err != nil {
		return nil, err
	}
	if choices.Network == options.NetworkNone {
		withoutNetwork(b.Spec)
	}
	c, err := r.prepare(o.ID, b, choices)
	if err != nil {
		return nil, err
	}
	if c.files, err = config.MakeFiles(o.Bundle); err == nil {
		c.task, err = c.runner.CreateTask(ctx, container.TaskOptions{
			ID: o.ID, Bundle: b, Systemd: systemdPath(b.Spec), HostNetwork: choices.HostNetwork, Idle: true,
			Note: func(format string, args ...any) { log.L.WithField("id", o.ID).Infof(format, args...) },
		})
	}
	if err != nil {
		c.logs.close()
		return nil, err
	}
	return c, nil
}

// podBundle is the bundle that a pod's sandbox would have, checked as any other: the
// description may say what no bundle may.
func podBundle(config *pod.Config, o task.PodOptions) (*bundle.Bundle, error) {
	doc, err := json.Marshal(config.Spec(o.ID, o.Netns))
	if err != nil {
		return nil, fmt.Errorf("describe the sandbox of pod %s: %w", o.ID, err)
	}
	spec, err := bundle.Parse(doc)
	if err != nil {
		return nil, fmt.Errorf("sandbox of pod %s: %w", o.ID, err)
	}
	return &bundle.Bundle{Dir: o.Bundle, Spec: spec}, nil
}
