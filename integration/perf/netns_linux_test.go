// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestNetworkNamespace measures `--network ns:` beside runsc and runc in network
// namespaces of the same make, in turn.
func TestNetworkNamespace(t *testing.T) {
	needBench(t)
	testbed.NeedRoot(t, "network namespaces")
	testbed.NeedCommand(t, "ip")
	n := testbed.Rounds(5)
	server := startNetworkServer(t)
	ns, host, _ := vethNamespace(t, 87)
	h := getHome(t)
	rungv := func(args ...string) func(t *testing.T, stdin io.Reader) testbed.Result {
		return func(t *testing.T, stdin io.Reader) testbed.Result {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := h.CommandAs(ctx, h.Binary, append([]string{"--root", h.Path("root")}, args...)...)
			cmd.SysProcAttr.Credential = nil // As root.
			return testbed.Run(t, cmd, stdin)
		}
	}
	if r := rungv("image", "import", "--progress", "none", "oci:"+h.Layout(t, image)+":latest", image)(t, nil); r.Code != 0 {
		t.Fatal(r)
	}
	ours := &networked{
		name: "rungv, veth (root)", address: net.JoinHostPort(host, server.port), figures: map[string][]float64{},
		run: func(t *testing.T, script string, stdin io.Reader) testbed.Result {
			return rungv("run", "--rm", "-i", "--network", "ns:/run/netns/"+ns, image, "/bin/sh", "-c", script)(t, stdin)
		},
	}
	contenders := []*networked{ours, vethPeer(t, server, "runsc", 88), vethPeer(t, server, "runc", 89)}
	compareNetworks(t, contenders, n, buildNetworkClient(t),
		fmt.Sprintf("network namespaces, medians of %d rounds in turn, %v each (goal: not behind runsc)", n-1, networkTime))
}
