// SPDX-License-Identifier: Apache-2.0

// Talking to the broker of a running container.

package container

import (
	"context"
	"fmt"

	"github.com/containerd/ttrpc"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	networkv1 "z.gfire.dev/gvx/runtime/control/network/v1"
)

// networkSocket is the broker's control socket, in the container's directory.
const networkSocket = "network.sock"

// Network calls f with the broker of a running container.
func (r *Runner) Network(ctx context.Context, ref string, f func(context.Context, networkv1.NetworkService) error) error {
	rec, err := r.State.Get(ref)
	if err != nil {
		return err
	}
	if rec.State != api.StateRunning {
		return api.Errorf(api.KindState, "container %s is not running", rec.Name)
	}
	if rec.Options.Network != string(api.NetworkNAT) {
		return api.Errorf(api.KindState, "container %s has no network that could be asked: it was started with --network %s", rec.Name, rec.Options.Network)
	}
	conn, err := dialIn(r.State.Dir(rec.ID), networkSocket)
	if err != nil {
		return fmt.Errorf("connect to the network of container %s: %w", rec.Name, err)
	}
	c := ttrpc.NewClient(conn)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, manageTimeout)
	defer cancel()
	return control.FromStatus(f(ctx, networkv1.NewNetworkClient(c)))
}
