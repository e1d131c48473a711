// SPDX-License-Identifier: Apache-2.0

// Package netns lends a Linux network namespace to a sandbox: the namespace that
// CNI, docker or podman have made and configured, or one made here.
//
// It owns the host's half: being in a namespace without moving anybody else there,
// reading what its interfaces are, opening packet sockets on them, and keeping the
// host's own network stack from answering beside the sandbox's, for as long as the
// sandbox has them. It never changes an interface that it does not lend, never
// gives away the host's own (initial) namespace, and holds nothing that outlives
// the process but where an old kernel leaves no choice: see quiet_linux.go.
//
// # How two stacks share an interface
//
// A packet socket gets its copy of a frame before the host's stack looks at it. So
// a program in front of the stack can throw away what is not the host's, and the
// sandbox sees it all the same; nothing about the interface itself has to change.
// Its addresses, routes and multicast groups stay: `nsenter --net`, CNI's CHECK
// and monitoring find them; and an ipvlan, which is sent frames by address, or a
// card that filters multicast, goes on working. (Taking the addresses away instead,
// as others do, breaks all of these.)
//
// What remains the host's is what its processes in the namespace have begun
// themselves: docker's name server asks from there, and so does whoever uses
// nsenter. Their connections are told from the guest's by port: the namespace's
// local ports are set to [api.HostPortFirst] to [api.HostPortLast], and a guest
// does not use these. Frames to them go to the host's stack only; answers to ARP,
// neighbour discovery, ping, and errors go to both; all else to the sandbox. What
// they connect to in the namespace itself is the sandbox's: see [Taken.Arrivals].
//
// Where the host takes no such program (no rights to load one, a very old kernel),
// the addresses are taken from the interfaces and given back afterwards.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// Namespace is a network namespace, held open: it lives as long as this does, or
// longer if others hold it too.
type Namespace struct {
	// Name is what messages call it: its path.
	Name string
	file *os.File
}

// Open returns the namespace that a path such as /run/netns/NAME or
// /proc/PID/ns/net leads to.
func Open(path string) (*Namespace, error) {
	// A path may lead to a pipe, which would keep us waiting.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		kind := api.KindInvalid
		switch {
		case errors.Is(err, fs.ErrNotExist):
			kind = api.KindNotFound
		case errors.Is(err, fs.ErrPermission):
			kind = api.KindPermission
		}
		return nil, api.Errorf(kind, "open network namespace: %w", err)
	}
	n := &Namespace{Name: path, file: f}
	if err := n.check(); err != nil {
		f.Close()
		return nil, err
	}
	return n, nil
}

// check refuses what is no network namespace.
func (n *Namespace) check() error {
	kind, err := unix.IoctlRetInt(int(n.file.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return api.Errorf(api.KindInvalid, "%s is not a network namespace", n.Name)
	}
	return nil
}

// New makes a namespace whose one interface, the loopback, is up.
func New() (*Namespace, error) {
	n := &Namespace{Name: "a new network namespace"}
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return refused("make a network namespace", err)
		}
		var err error
		if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		return loopbackUp()
	})
	if err != nil {
		if n.file != nil {
			n.file.Close()
		}
		return nil, err
	}
	return n, nil
}

// File is the namespace as a descriptor, for setns(2); it stays the Namespace's.
func (n *Namespace) File() *os.File { return n.file }

// Close lets go of the namespace.
func (n *Namespace) Close() error { return n.file.Close() }

// Do calls f on a thread of its own that is in the namespace; processes that f
// starts are in it too. The caller's thread stays where it is.
func (n *Namespace) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return refused("enter network namespace "+n.Name, err)
		}
		return f()
	})
}

// onOwnThread calls f on a thread that ends afterwards, so that no other goroutine
// ever finds itself in a namespace that f has entered.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end, and it is what /proc/PID/ns shows of the
			// whole process. While we hold it, others run elsewhere.
			defer runtime.UnlockOSThread()
			done <- onOwnThread(f)
			return
		}
		// Never unlocked: the runtime ends the thread with the goroutine.
		done <- f()
	}()
	return <-done
}

// refused sorts what the kernel does not allow from the rest.
func refused(what string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return api.Errorf(api.KindPermission, "%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// isInitial says whether the calling thread is in the host's first network
// namespace: only there does the kernel show settings of all of them.
func isInitial() bool {
	_, err := os.Stat("/proc/sys/net/core/dev_weight")
	return err == nil
}
