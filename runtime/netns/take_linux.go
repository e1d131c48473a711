// SPDX-License-Identifier: Apache-2.0

// Taking over, and giving back.

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// Taken is what a sandbox gets of a namespace.
type Taken struct {
	// Links are the interfaces. Their descriptors are indices into Files: who
	// hands them over renumbers them.
	Links []api.Link
	// Files are the packet sockets. They stay the Taken's until CloseFiles.
	Files []*os.File
	// Notes say what of the namespace could not be taken over, for people.
	Notes []string

	ns *Namespace
	// best is the first way of quieting that is tried.
	best way
	// undo gives everything back, last thing first; each runs in the namespace.
	undo []func() error
}

// Take takes over every interface of the namespace that is up. From then on the
// host's stack leaves them to whoever holds the packet sockets, until
// [Taken.Release], or the end of this process.
//
// The namespace must not be the host's initial one, and not one that another
// sandbox has: api.KindUnsupported and api.KindState.
func (n *Namespace) Take() (*Taken, error) { return n.takeBy(byLink) }

func (n *Namespace) takeBy(best way) (*Taken, error) {
	// An open file description's lock ends with it, however this process ends.
	if err := unix.Flock(int(n.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, api.Errorf(api.KindState, "network namespace %s: another sandbox has it", n.Name)
		}
		return nil, fmt.Errorf("lock network namespace %s: %w", n.Name, err)
	}
	t := &Taken{ns: n, best: best}
	if err := n.Do(t.take); err != nil {
		t.Release()
		return nil, fmt.Errorf("take over network namespace %s: %w", n.Name, err)
	}
	return t, nil
}

// take does it, in the namespace.
func (t *Taken) take() error {
	if isInitial() {
		return api.Errorf(api.KindUnsupported, "it is the host's own: a sandbox never gets that")
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer h.Close()
	interfaces, err := t.read(h)
	if err != nil {
		return err
	}
	split := t.best != byAddresses
	if split {
		if err := prepareSplit(); err != nil {
			t.note("addresses are taken from the interfaces, and processes of the host in the namespace reach nobody: %v", err)
			split, t.best = false, byAddresses
		}
	}
	if split {
		undo, err := reservePorts()
		if err != nil {
			t.note("host processes in the namespace will not hear answers: %v", err)
		} else {
			t.undo = append(t.undo, undo)
		}
	}
	for _, i := range interfaces {
		if i.link.Loopback {
			t.Links = append(t.Links, i.link)
			continue
		}
		quiet, err := i.quiet(h, t.best)
		if err != nil {
			return err
		}
		t.undo = append(t.undo, quiet.undo)
		socket, gso, err := openSocket(&i, quiet.split)
		if err != nil {
			return err
		}
		i.link.GSOMaxBytes = gso
		i.link.FDs = []api.FD{api.FD(len(t.Files))}
		t.Files = append(t.Files, socket)
		t.Links = append(t.Links, i.link)
	}
	return api.ValidateLinks(t.Links)
}

func (t *Taken) note(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

// AddResolver has the sandbox reach a name server of the host's own processes, on a
// loopback address of the namespace.
func (t *Taken) AddResolver(server netip.AddrPort) error {
	var file *os.File
	err := t.ns.Do(func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
		if err != nil {
			return err
		}
		defer conn.Close() // File duplicates it.
		file, err = conn.File()
		return err
	})
	if err != nil {
		return fmt.Errorf("reach name server %s in network namespace %s: %w", server, t.ns.Name, err)
	}
	i := slices.IndexFunc(t.Links, func(l api.Link) bool { return l.Loopback })
	if i < 0 {
		t.Links = append(t.Links, api.Link{Name: "lo", Loopback: true})
		i = len(t.Links) - 1
	}
	lo := &t.Links[i]
	lo.Resolvers = append(lo.Resolvers, server)
	lo.FDs = append(lo.FDs, api.FD(len(t.Files)))
	t.Files = append(t.Files, file)
	return nil
}

// CloseFiles closes the packet sockets here, once they have been handed over.
func (t *Taken) CloseFiles() {
	for _, f := range t.Files {
		f.Close()
	}
	t.Files = nil
}

// Release gives the interfaces back to the host's stack. It says what could not be
// given back; a namespace that has gone meanwhile is no error.
func (t *Taken) Release() error {
	t.CloseFiles()
	undo := t.undo
	t.undo = nil
	if len(undo) > 0 {
		err := t.ns.Do(func() error {
			var errs []error
			for i := len(undo) - 1; i >= 0; i-- {
				errs = append(errs, undo[i]())
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return fmt.Errorf("give back network namespace %s: %w", t.ns.Name, err)
		}
	}
	if err := unix.Flock(int(t.ns.file.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("unlock network namespace %s: %w", t.ns.Name, err)
	}
	return nil
}

// localPorts is the namespace's setting of the ports that the host's stack gives
// to sockets that ask for none.
const localPorts = "/proc/sys/net/ipv4/ip_local_port_range"

// reservePorts has the host's stack use its own ports, and returns what undoes it.
func reservePorts() (undo func() error, err error) {
	before, err := os.ReadFile(localPorts)
	if err != nil {
		return nil, err
	}
	own := strconv.Itoa(api.HostPortFirst) + " " + strconv.Itoa(api.HostPortLast)
	if err := os.WriteFile(localPorts, []byte(own), 0); err != nil {
		return nil, err
	}
	if strings.Join(strings.Fields(string(before)), " ") == own {
		// One that was killed left it so: the kernel's default is as good a guess.
		before = []byte("32768 60999")
	}
	return func() error { return os.WriteFile(localPorts, before, 0) }, nil
}
