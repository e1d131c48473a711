// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// world is two namespaces with a cable between: what a pod and its node are.
type world struct {
	near, far *Namespace
}

// The cable's two ends.
const (
	nearIP, farIP   = "10.11.0.2", "10.11.0.1"
	nearIP6, farIP6 = "fd11::2", "fd11::1"
	nearMAC         = "02:00:00:00:11:02"
)

// patience is for what is going to happen; absence is how long something that
// must not happen is waited for.
const (
	patience = 10 * time.Second
	absence  = 300 * time.Millisecond
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may enter network namespaces here")
	}
}

func newNamespace(t *testing.T) *Namespace {
	t.Helper()
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func in(t *testing.T, n *Namespace, f func() error) {
	t.Helper()
	if err := n.Do(f); err != nil {
		t.Fatal(err)
	}
}

// newWorld makes both ends, with addresses and routes.
func newWorld(t *testing.T) *world {
	t.Helper()
	needRoot(t)
	w := &world{near: newNamespace(t), far: newNamespace(t)}
	mac, err := net.ParseMAC(nearMAC)
	if err != nil {
		t.Fatal(err)
	}
	in(t, w.near, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: "eth0", MTU: 1400, HardwareAddr: mac},
			PeerName:      "far0",
			PeerNamespace: netlink.NsFd(w.far.File().Fd()),
		})
	})
	end := func(name string, addresses ...string) func() error {
		return func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			for _, s := range addresses {
				a, err := netlink.ParseAddr(s)
				if err != nil {
					return err
				}
				a.Flags = unix.IFA_F_NODAD
				if err := netlink.AddrAdd(l, a); err != nil {
					return err
				}
			}
			return netlink.LinkSetUp(l)
		}
	}
	in(t, w.far, end("far0", farIP+"/24", farIP6+"/64"))
	in(t, w.near, end("eth0", nearIP+"/24", nearIP6+"/64"))
	in(t, w.near, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(farIP), Priority: 50}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: cidr("10.99.0.0/16"), Gw: net.ParseIP(farIP), MTU: 1300}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: cidr("10.98.0.0/16"), Scope: netlink.SCOPE_LINK}),
		)
	})
	// The kernel takes up addresses of version 6 when it hears that the link is up, by and by.
	for n, address := range map[*Namespace]string{w.near: nearIP6, w.far: farIP6} {
		in(t, n, func() error {
			for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				routes, err := netlink.RouteGet(net.ParseIP(address))
				if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
					return nil
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("address %s is not there: %v, %w", address, routes, err)
				}
			}
		})
	}
	return w
}

func cidr(s string) *net.IPNet {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return n
}

// listen listens in a namespace.
func listen(t *testing.T, n *Namespace, address string) net.Listener {
	t.Helper()
	var l net.Listener
	in(t, n, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l
}

// dial connects from a namespace, again and again until the time is up: who was
// just unreachable is taken for that a little longer.
func dial(n *Namespace, address string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		err := n.Do(func() error {
			c, err := net.DialTimeout("tcp", address, min(limit, time.Second))
			if err == nil {
				c.Close()
			}
			return err
		})
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
