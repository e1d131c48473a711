// SPDX-License-Identifier: Apache-2.0

// The host's side of a run's network.

package container

import (
	"fmt"
	"net/netip"
	"strings"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/usernet"
)

// resolverPort is where name servers listen.
const resolverPort = 53

// openNetwork makes the broker and binds the published ports: early, since a
// port in use ends the run.
func (u *run) openNetwork() error {
	o := &u.o.Options
	if o.Network != string(api.NetworkNAT) {
		return nil
	}
	policy, err := usernet.NewPolicy(o.Egress)
	if err != nil {
		return err
	}
	options := usernet.Options{
		Policy: policy, Hosts: hostTable(o.AddHosts), Warn: u.warn,
		Denied: func(d usernet.Denial) {
			if u.Debug != nil {
				u.Debug("%v", d)
			}
		},
	}
	for _, s := range o.DNS {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return api.Errorf(api.KindInvalid, "invalid name server: %w", err)
		}
		options.Servers = append(options.Servers, netip.AddrPortFrom(a, resolverPort))
	}
	if u.broker, err = usernet.New(options); err != nil {
		return err
	}
	ports, err := u.broker.Publish(o.Publish)
	if err != nil {
		return err
	}
	if err := u.listenNetwork(); err != nil {
		return err
	}
	o.IPv6 = usernet.HostHasIPv6()
	if len(ports) == 0 && !o.IPv6 {
		return nil
	}
	return u.handle.Update(func(rec *state.Record) error {
		rec.Ports, rec.Options.IPv6 = ports, o.IPv6
		return nil
	})
}

// listenNetwork binds the broker's control socket. The launcher owns the
// broker, and not the sandbox: what is asked of one is not asked of the other.
func (u *run) listenNetwork() error {
	l, err := listenIn(u.handle.Dir(), networkSocket)
	if err != nil {
		return err
	}
	return u.broker.Control(l)
}

// hostTable is the name server's form of --add-host.
func hostTable(list []convert.Host) map[string][]netip.Addr {
	table := make(map[string][]netip.Addr, len(list))
	for _, h := range list {
		if a, err := netip.ParseAddr(h.Address); err == nil {
			name := strings.ToLower(strings.TrimSuffix(h.Name, "."))
			table[name] = append(table[name], a)
		}
	}
	return table
}

// guestOptions are the options with what the host's resolver adds to them.
func (u *run) guestOptions() convert.Options {
	o := u.o.Options
	if u.broker != nil && len(o.DNSSearch) == 0 {
		o.DNSSearch = usernet.HostResolver().Search
	}
	return o
}

// closeNetwork gives back ports and socket files.
func (u *run) closeNetwork() {
	if u.broker == nil {
		return
	}
	if err := u.broker.Close(); err != nil {
		u.warn("%v", fmt.Errorf("close published ports: %w", err))
	}
}
