// SPDX-License-Identifier: Apache-2.0

// Package shim is containerd's runtime v2 shim for gvx: the program that containerd
// starts for each pod, or for each container outside of one.
//
//	containerd ─ start ─► manager ─ executes itself ─► server: task ─► sandboxes ─► runtime/container
//	           ─ ttrpc ──────────────────────────────► (one socket)          └ rootfs, stdio, options, metrics
//	           ─ delete ► manager: cleans up after a server that is gone
//
// It owns the wiring of these parts, by containerd's own library for shims, and
// the life of the server process. The words of containerd, its errors and its API,
// are known here and below only; everything under runtime speaks its own.
package shim

import (
	"context"
	"os"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/footprint"
	"z.gfire.dev/gvx/shim/manager"
	"z.gfire.dev/gvx/shim/sandboxes"
	"z.gfire.dev/gvx/shim/task"
)

// Name is the runtime's name for containerd: it makes of it the name of this
// program, containerd-shim-gvx-v2.
const Name = "io.containerd.gvx.v2"

// Version is set by the linker.
var Version = "unknown"

// Main runs the command that the process' arguments name. It returns when that is
// done, and ends the process when it fails.
func Main() {
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "task", Requires: []plugin.Type{plugins.InternalPlugin}, InitFn: serve,
	})
	places := sandboxes.DefaultPlaces()
	m := manager.New(manager.Options{
		Name: Name, Version: Version,
		Features: func() *features.Features { return convert.Features(Version) },
		Remove: func(ctx context.Context, bundle, id string) error {
			return sandboxes.Remove(ctx, places, bundle, id)
		},
	})
	shim.RunShim(context.Background(), m, func(c *shim.Config) {
		// Processes are waited for by whoever starts them: a reaper of all would
		// take their exits away.
		c.NoReaper, c.NoSubreaper = true, true
	})
}

// serve makes the task service in the server process, whose working directory is
// its first container's bundle.
func serve(ic *plugin.InitContext) (any, error) {
	v, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
	if err != nil {
		return nil, err
	}
	end := v.(shutdown.Service)
	namespace, err := namespaces.NamespaceRequired(ic.Context)
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	footprint.Settle(nil)
	version := 1
	if cgroups.Mode() == cgroups.Unified {
		version = 2
	}
	runtime := sandboxes.New(sandboxes.DefaultPlaces(), dir)
	service, err := task.New(task.Options{
		Runtime: runtime, Namespace: namespace, EventsAddress: ic.Properties[plugins.PropertyTTRPCAddress],
		Shutdown: end.Shutdown, StatsVersion: version,
	})
	if err != nil {
		return nil, err
	}
	// Read now: the bundle goes before the shim does.
	address, _ := shim.ReadAddress("address")
	end.RegisterCallback(func(ctx context.Context) error {
		err := service.Close(ctx)
		if address != "" {
			_ = shim.RemoveSocket(address)
		}
		if err != nil {
			return err
		}
		return runtime.Close()
	})
	return service, nil
}
