// SPDX-License-Identifier: Apache-2.0

// The host's side of a run's network.

package container

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
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
	fail := func(err error) error {
		return fmt.Errorf("bind the network's control socket in %s: %w", u.handle.Dir(), err)
	}
	path, done, err := socketIn(u.handle.Dir(), networkSocket)
	if err != nil {
		return fail(err)
	}
	defer done()
	l, err := net.Listen("unix", path)
	if err != nil {
		return fail(err)
	}
	// Its file goes with the directory, which is 0700: the mode is a second lock.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return fail(err)
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

// socketIn returns a name for a socket of a directory that fits into the 108
// bytes of a socket address, whatever the directory's own length.
func socketIn(dir, name string) (path string, done func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name), func() { d.Close() }, nil
}
