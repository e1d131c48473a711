// SPDX-License-Identifier: Apache-2.0

// Network mode host: the guest's first network namespace is the host's, by gVisor's
// hostinet, which makes a socket of the host for each of a guest's. The process has
// stayed in its launcher's network namespace, and its allow-list permits sockets of
// the internet's families ([lockdown.FilterOptions.HostNetwork]): who takes the Sentry
// over reaches what the guest may reach anyway.
//
// It has no capability over the host's network: nothing of it can be changed from
// inside, no port below the host's net.ipv4.ip_unprivileged_port_start bound, no raw
// or packet socket made. Packet filters are refused: gVisor's netlink protocol for
// them takes every stack for its own. So does much of the rest of it, and would end the
// sandbox where two kinds meet: a guest makes no network namespaces. What hostinet
// itself trusts a guest with is checked before it (hostsockets.go).

package boot

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/hostinet"
)

// readHostNetwork learns what the stack wants to know of the host from its files:
// before they are out of sight.
func (sb *sandbox) readHostNetwork() error {
	sb.hostNetwork = hostinet.NewStack()
	if err := sb.hostNetwork.Configure(false); err != nil {
		return fmt.Errorf("read the host's network configuration: %w", err)
	}
	return nil
}

// newHostNetworkNamespace makes the guest's first network namespace out of the host's.
func (sb *sandbox) newHostNetworkNamespace(userns *auth.UserNamespace) *inet.Namespace {
	return inet.NewRootNamespace(sb.hostNetwork, nil, userns)
}
