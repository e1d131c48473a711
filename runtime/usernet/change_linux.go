// SPDX-License-Identifier: Apache-2.0

// The policy while it holds, and its change.

package usernet

import (
	"net/netip"
	"slices"
	"time"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// Policy is the policy that holds now.
func (b *Broker) Policy() *Policy { return b.policy.Load() }

// SetPolicy changes the policy for all connections: those to come, those being
// made, and those there are. What it does not allow ends, at both ends; how
// many that were is returned. It has been done when SetPolicy returns.
func (b *Broker) SetPolicy(p *Policy) (ended int) {
	over := b.flows.replace(
		func() { b.policy.Store(p) },
		func(f *flow) *Denial {
			allowed, why := b.allows(f)
			if allowed {
				return nil
			}
			return &Denial{Protocol: f.protocol, From: f.from, To: f.to, By: f.by, Reason: why, Ended: true}
		})
	for _, d := range over {
		b.report(*d)
	}
	// So that an honest sandbox need not find out. One that does not read its
	// channel keeps nobody waiting: each connection ends once.
	b.tasks.Go(func() {
		for id, d := range over {
			_ = b.send(netwire.Message{Kind: netwire.Ended, Protocol: d.Protocol, ID: id}, -1)
		}
	})
	return len(over)
}

// Connection is one that a guest has.
type Connection struct {
	Protocol netwire.Protocol
	From, To netip.AddrPort
	By       netwire.Process
	// Names are those by which the guest knows the address.
	Names []string
}

// Connections lists what the guest has open, but for published ports.
func (b *Broker) Connections() []Connection {
	var list []Connection
	for _, f := range b.flows.list() {
		names := b.namesOf(&f)
		slices.Sort(names)
		list = append(list, Connection{f.protocol, f.from, f.to, f.by, slices.Compact(names)})
	}
	slices.SortFunc(list, func(x, y Connection) int { return x.From.Compare(y.From) })
	return list
}

// Denials lists the latest denials, the oldest first, and how many came after
// the last of them and were too many to keep.
func (b *Broker) Denials() (kept []Denial, unreported int) { return b.denials.list() }

// allows asks the policy about a connection, as it is now.
func (b *Broker) allows(f *flow) (bool, string) {
	return b.policy.Load().Check(f.to, b.namesOf(f))
}

// namesOf are the names that a connection's address had when it was made, and
// those that it has got since.
func (b *Broker) namesOf(f *flow) []string {
	return slices.Concat(f.names, b.learned.names(f.to.Addr()))
}

// report tells of a denial, unless there are too many.
func (b *Broker) report(d Denial) {
	d.At = time.Now()
	if b.denials.add(&d) && b.o.Denied != nil {
		b.o.Denied(d)
	}
}
