// SPDX-License-Identifier: Apache-2.0

// Which process of the guest a flow is of. It is for the log only: a socket
// remembers the task that made it, and packets that a network of the guest has
// forwarded remember none.

package boot

import (
	"sync"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// maxOwners bounds the owners that wait for the handshake of their connection.
// Beyond it all are forgotten, and their processes are unknown.
const maxOwners = 2 * maxHandshakes

// flowOwners hands the owner of a connection's first packet, which a forwarder
// does not pass on, to whoever handles the connection.
type flowOwners struct {
	mu     sync.Mutex
	owners map[stack.TransportEndpointID]tcpip.PacketOwner
}

// note remembers the owner of a packet that begins a connection.
func (o *flowOwners) note(id stack.TransportEndpointID, pkt *stack.PacketBuffer) {
	h := header.TCP(pkt.TransportHeader().Slice())
	if pkt.Owner == nil || len(h) < header.TCPMinimumSize || h.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owners == nil || len(o.owners) >= maxOwners {
		o.owners = make(map[stack.TransportEndpointID]tcpip.PacketOwner)
	}
	o.owners[id] = pkt.Owner
}

// take returns the process that began a connection.
func (o *flowOwners) take(id stack.TransportEndpointID) netwire.Process {
	o.mu.Lock()
	owner := o.owners[id]
	delete(o.owners, id)
	o.mu.Unlock()
	return processOf(owner)
}

// processOf names the process of a packet's owner, by its id in the guest's
// first namespace.
func processOf(owner tcpip.PacketOwner) netwire.Process {
	t, ok := owner.(*kernel.Task)
	if !ok {
		return netwire.Process{}
	}
	// Threads have names of their own, which say less.
	if leader := t.ThreadGroup().Leader(); leader != nil {
		t = leader
	}
	name := t.Name()
	return netwire.Process{
		PID:  uint32(t.Kernel().RootPIDNamespace().IDOfThreadGroup(t.ThreadGroup())),
		Name: name[:min(len(name), netwire.NameBytes)],
	}
}
