// SPDX-License-Identifier: Apache-2.0

// The host's side of a run's network.

package container

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/netns"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/usernet"
)

// resolverPort is where name servers listen.
const resolverPort = 53

// openNetwork makes the broker and binds the published ports: early, since a
// port in use ends the run.
func (u *run) openNetwork() error {
	o := &u.o.Options
	if path, ok := convert.NetworkNamespace(o.Network); ok {
		var err error
		u.namespace, err = netns.Open(path)
		return err
	}
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
	if u.namespace != nil {
		u.namespaceOptions(&o)
	}
	return o
}

// namespaceResolver is where iproute2 keeps the resolv.conf of the namespace with
// a name.
const namespaceResolver = "/etc/netns/%s/resolv.conf"

// namespaceOptions adds what a network namespace says about names.
func (u *run) namespaceOptions(o *convert.Options) {
	if addresses, err := u.namespace.Addresses(); err == nil && len(addresses) > 0 {
		o.OwnAddress = addresses[0].Addr().String()
	}
	resolver := usernet.ResolverOf(fmt.Sprintf(namespaceResolver, filepath.Base(u.namespace.Name)))
	if len(resolver.Servers) == 0 {
		resolver = usernet.HostResolver()
	}
	if len(o.DNS) == 0 {
		for _, s := range resolver.Servers {
			// One on a loopback is on another one than the guest's.
			if !s.Addr().IsLoopback() {
				o.DNS = append(o.DNS, s.Addr().String())
			}
		}
	}
	if len(o.DNSSearch) == 0 {
		o.DNSSearch = resolver.Search
	}
}

// takeNamespace takes the namespace's interfaces for the sandbox.
func (u *run) takeNamespace(cfg *launch.Config) error {
	if u.namespace == nil {
		return nil
	}
	var err error
	if u.taken, err = u.namespace.Take(); err != nil {
		return err
	}
	for _, note := range u.taken.Notes {
		u.warn("network namespace %s: %s", u.namespace.Name, note)
	}
	cfg.Spec.Network.Links, cfg.Links = u.taken.Links, u.taken.Files
	return nil
}

// links are the sandbox's interfaces, for the record: without descriptors.
func (u *run) links() []api.Link {
	if u.taken == nil {
		return nil
	}
	links := slices.Clone(u.taken.Links)
	for i := range links {
		links[i].FDs = nil
	}
	return links
}

// closeNetwork gives back interfaces, ports and socket files.
func (u *run) closeNetwork() {
	if u.stopArrivals != nil {
		u.stopArrivals()
	}
	if u.taken != nil {
		if err := u.taken.Release(); err != nil {
			u.warn("%v", err)
		}
	}
	if u.namespace != nil {
		u.namespace.Close()
	}
	if u.broker == nil {
		return
	}
	if err := u.broker.Close(); err != nil {
		u.warn("%v", fmt.Errorf("close published ports: %w", err))
	}
}
