// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

func TestOpenRefuses(t *testing.T) {
	for path, want := range map[string]api.Kind{
		"/no/such/namespace": api.KindNotFound,
		"/dev/null":          api.KindInvalid,
		"/proc/self/ns/mnt":  api.KindInvalid,
		"/":                  api.KindInvalid,
	} {
		if _, err := Open(path); api.KindOf(err) != want {
			t.Errorf("%s: %v, want kind %s", path, err, want)
		}
	}
}

// TestDoStaysAside: nobody else is moved, not even one who was on the thread before.
func TestDoStaysAside(t *testing.T) {
	needRoot(t)
	n := newNamespace(t)
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var there string
	in(t, n, func() (err error) {
		there, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if here == there {
		t.Error("it was not entered")
	}
	// Threads take a moment to end.
	var left string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if left = strayThread(t, here); left == "" {
			return
		}
	}
	t.Errorf("thread %s is left there", left)
}

// strayThread returns a thread of this process that is not in the namespace.
func strayThread(t *testing.T, here string) string {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if now, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/net"); err == nil && now != here {
			return thread.Name()
		}
	}
	return ""
}

func TestNeverTheHostsOwn(t *testing.T) {
	needRoot(t)
	if !isInitial() {
		t.Skip("this is a container: its namespace is not the host's")
	}
	n, err := Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Take(); api.KindOf(err) != api.KindUnsupported {
		t.Errorf("got %v", err)
	}
}

func TestOneTakerAtATime(t *testing.T) {
	w := newWorld(t)
	taken, err := w.near.Take()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open("/proc/self/fd/" + itoa(int(w.near.File().Fd())))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Take(); api.KindOf(err) != api.KindState {
		t.Errorf("a second taker: %v", err)
	}
	if err := taken.Release(); err != nil {
		t.Fatal(err)
	}
	second, err := again.Take()
	if err != nil {
		t.Fatalf("after the first: %v", err)
	}
	if err := second.Release(); err != nil {
		t.Error(err)
	}
}

// TestReads looks at everything that an interface has.
func TestReads(t *testing.T) {
	w := newWorld(t)
	in(t, w.near, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("10.200.0.1/32")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(lo, a); err != nil {
			return err
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.NeighAdd(&netlink.Neigh{
			LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP("10.11.0.77"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 77},
		}); err != nil {
			return err
		}
		// One that is down, and one without frames.
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "down0"}, PeerName: "down1"}); err != nil {
			return err
		}
		if err := netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}); err != nil {
			return err
		}
		tun, err := netlink.LinkByName("tun0")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(tun)
	})
	taken, err := w.near.Take()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	byName := map[string]api.Link{}
	for _, l := range taken.Links {
		byName[l.Name] = l
	}
	if len(byName) != 3 {
		t.Fatalf("got %+v", taken.Links)
	}
	eth0 := byName["eth0"]
	if eth0.MTU != 1400 || net.HardwareAddr(eth0.MAC).String() != nearMAC || eth0.GSOMaxBytes != 65536 || len(eth0.FDs) != 1 {
		t.Errorf("got %+v", eth0)
	}
	for _, want := range []string{nearIP + "/24", nearIP6 + "/64"} {
		if !slices.Contains(eth0.Addresses, netip.MustParsePrefix(want)) {
			t.Errorf("no address %s in %v", want, eth0.Addresses)
		}
	}
	for _, want := range []api.LinkRoute{
		{Destination: netip.MustParsePrefix("10.11.0.0/24"), Source: netip.MustParseAddr(nearIP)},
		{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr(farIP), Metric: 50},
		{Destination: netip.MustParsePrefix("10.99.0.0/16"), Gateway: netip.MustParseAddr(farIP), MTU: 1300},
		{Destination: netip.MustParsePrefix("10.98.0.0/16")},
		{Destination: netip.MustParsePrefix("fd11::/64"), Metric: 256},
	} {
		if !slices.Contains(eth0.Routes, want) {
			t.Errorf("no route %+v in %+v", want, eth0.Routes)
		}
	}
	if len(eth0.Neighbors) != 1 || eth0.Neighbors[0].Address.String() != "10.11.0.77" || eth0.Neighbors[0].MAC[5] != 77 {
		t.Errorf("neighbours %+v", eth0.Neighbors)
	}
	if tun := byName["tun0"]; tun.MAC != nil || len(tun.FDs) != 1 {
		t.Errorf("got %+v", tun)
	}
	if lo := byName["lo"]; !lo.Loopback || len(lo.FDs) != 0 || len(lo.Addresses) != 1 || lo.Addresses[0].String() != "10.200.0.1/32" {
		t.Errorf("got %+v", lo)
	}
}

// TestNothingToTake: a namespace with its loopback alone is like a guest's.
func TestNothingToTake(t *testing.T) {
	needRoot(t)
	taken, err := newNamespace(t).Take()
	if err != nil {
		t.Fatal(err)
	}
	if len(taken.Links)+len(taken.Files) != 0 {
		t.Errorf("got %+v", taken.Links)
	}
	if err := taken.Release(); err != nil {
		t.Error(err)
	}
}

// arpAsked says whether a packet socket holds a question for our address.
func arpAsked(t *testing.T, f *os.File) bool {
	t.Helper()
	const header = 10 // struct virtio_net_hdr
	frame := make([]byte, 1<<16)
	asked := false
	for {
		n, err := unix.Read(int(f.Fd()), frame)
		if err != nil {
			return asked
		}
		if n >= header+42 && frame[header+12] == 8 && frame[header+13] == 6 && frame[header+21] == 1 {
			asked = true
		}
	}
}

// TestTwoStacks goes through all three ways: the host's stack answers nobody while
// a sandbox has the interface, and afterwards it does again; in between the
// sandbox's socket hears what comes.
func TestTwoStacks(t *testing.T) {
	for name, best := range map[string]way{"link": byLink, "filter": byFilter, "addresses": byAddresses} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			listen(t, w.near, ":80")
			listen(t, w.far, ":80")
			for _, address := range []string{nearIP + ":80", "[" + nearIP6 + "]:80"} {
				if err := dial(w.far, address, patience); err != nil {
					t.Fatalf("before: %v", err)
				}
			}
			taken, err := w.near.takeBy(best)
			if err != nil {
				t.Fatal(err)
			}
			if len(taken.Files) != 1 {
				t.Fatalf("got %d sockets", len(taken.Files))
			}
			in(t, w.far, flushNeighbors)
			for _, address := range []string{nearIP + ":80", "[" + nearIP6 + "]:80"} {
				if err := dial(w.far, address, absence); err == nil {
					t.Errorf("the host's stack still answers at %s", address)
				}
			}
			if !arpAsked(t, taken.Files[0]) {
				t.Error("the sandbox's socket has not heard the question")
			}
			// Processes of the host reach others, with both IPs. The far side learns
			// where we are from our question: no sandbox here answers its own.
			in(t, w.near, flushNeighbors)
			for _, address := range []string{farIP + ":80", "[" + farIP6 + "]:80"} {
				limit := patience
				if best == byAddresses {
					limit = absence
				}
				switch err := dial(w.near, address, limit); {
				case best != byAddresses && err != nil:
					t.Errorf("from the namespace: %v", err)
				case best == byAddresses && err == nil:
					t.Error("without addresses it was reached")
				}
			}
			if err := taken.Release(); err != nil {
				t.Fatal(err)
			}
			for _, address := range []string{nearIP + ":80", "[" + nearIP6 + "]:80"} {
				if err := dial(w.far, address, patience); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			}
			in(t, w.near, func() error {
				routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
				if err != nil || len(routes) != 4 {
					t.Errorf("routes afterwards: %v, %v", routes, err)
				}
				ports, err := os.ReadFile(localPorts)
				if err != nil || string(ports) != "32768\t60999\n" {
					t.Errorf("local ports afterwards: %q, %v", ports, err)
				}
				return nil
			})
		})
	}
}

// flushNeighbors makes the far side ask again.
func flushNeighbors() error {
	list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].State == netlink.NUD_NOARP {
			continue // Of groups, whose addresses nobody is asked for.
		}
		_ = netlink.NeighDel(&list[i])
	}
	return nil
}
