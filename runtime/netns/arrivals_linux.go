// SPDX-License-Identifier: Apache-2.0

// Connections that processes of the host in the namespace make to what is the
// guest's: `kubectl port-forward` connects to localhost there.
//
// A program of the namespace (BPF_PROG_TYPE_SK_LOOKUP, Linux 5.9) is asked for the
// listening socket of every connection that comes in to the host's stack. It names
// ours, for all ports but the host's own, and ends with this process, like the one
// before the stack. Frames from outside never get that far: they are the guest's
// already. What listens in the namespace on 127.0.0.0/8 beside 127.0.0.1 (docker's
// name server) keeps its connections.

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// acceptPause is between attempts to accept where there is a shortage.
const acceptPause = 50 * time.Millisecond

// Arrivals are such connections.
type Arrivals struct {
	listeners []net.Listener
	link      *os.File
	arrived   chan *net.TCPConn
	closed    chan struct{}
	once      sync.Once
}

// Arrivals begins to accept connections that are the guest's. The caller closes
// the result before it releases the Taken.
func (t *Taken) Arrivals() (*Arrivals, error) {
	a := &Arrivals{arrived: make(chan *net.TCPConn), closed: make(chan struct{})}
	if err := t.ns.Do(func() error { return a.open(t.ns.file) }); err != nil {
		a.Close()
		return nil, fmt.Errorf("accept what is the guest's in network namespace %s: %w", t.ns.Name, err)
	}
	for _, l := range a.listeners {
		go a.accept(l)
	}
	return a, nil
}

// open makes the listeners and puts the program before them; in the namespace.
func (a *Arrivals) open(ns *os.File) error {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // Of such a socket the kernel makes no entry.
	v4, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a.listeners = append(a.listeners, v4)
	v6, err := config.Listen(context.Background(), "tcp6", "[::1]:0")
	if err == nil {
		a.listeners = append(a.listeners, v6)
	}
	sockets, err := newSocketMap(a.listeners)
	if err != nil {
		return err
	}
	defer sockets.Close()
	program, err := loadProgramOf(unix.BPF_PROG_TYPE_SK_LOOKUP, unix.BPF_SK_LOOKUP, lookupProgram(int32(sockets.Fd())))
	if err != nil {
		return err
	}
	defer program.Close()
	attr := linkCreate{program: uint32(program.Fd()), target: uint32(ns.Fd()), attach: unix.BPF_SK_LOOKUP}
	fd, err := bpfCall(unix.BPF_LINK_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return fmt.Errorf("attach a program to the namespace: %w", err)
	}
	a.link = os.NewFile(uintptr(fd), "program's link")
	return nil
}

func (a *Arrivals) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Of one that has gone again, or a shortage: that passes, and whoever waits
			// for it meanwhile must not be the cause of another.
			select {
			case <-time.After(acceptPause):
				continue
			case <-a.closed:
				return
			}
		}
		select {
		case a.arrived <- c.(*net.TCPConn):
		case <-a.closed:
			c.Close()
			return
		}
	}
}

// Accept waits for a connection and says where in the guest it was meant to go. It
// fails with [net.ErrClosed] after Close.
func (a *Arrivals) Accept() (*net.TCPConn, netip.AddrPort, error) {
	select {
	case c := <-a.arrived:
		to := c.LocalAddr().(*net.TCPAddr).AddrPort()
		return c, netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port()), nil
	case <-a.closed:
		return nil, netip.AddrPort{}, net.ErrClosed
	}
}

// Close ends it. Connections that were accepted go on.
func (a *Arrivals) Close() {
	a.once.Do(func() {
		close(a.closed)
		if a.link != nil {
			a.link.Close()
		}
		for _, l := range a.listeners {
			l.Close()
		}
	})
}

// mapCreate and mapUpdate are parts of union bpf_attr.
type mapCreate struct {
	kind, keyBytes, valueBytes, entries, flags uint32
}

type mapUpdate struct {
	fd    uint32
	_     uint32
	key   uint64
	value uint64
	flags uint64
}

// The places of listeners in the map.
const placeV4, placeV6 = 0, 1

// newSocketMap makes the map in which the program finds the listeners, IPv4's first.
func newSocketMap(listeners []net.Listener) (*os.File, error) {
	attr := mapCreate{kind: unix.BPF_MAP_TYPE_SOCKMAP, keyBytes: 4, valueBytes: 8, entries: 2}
	fd, err := bpfCall(unix.BPF_MAP_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return nil, fmt.Errorf("make a map of listeners: %w", err)
	}
	f := os.NewFile(uintptr(fd), "listeners")
	for place, l := range listeners {
		raw, err := l.(*net.TCPListener).SyscallConn()
		if err == nil {
			cerr := raw.Control(func(socket uintptr) {
				key, value := uint32(place), uint64(socket)
				update := mapUpdate{fd: uint32(fd), key: uint64(uintptr(unsafe.Pointer(&key))), value: uint64(uintptr(unsafe.Pointer(&value)))}
				_, err = bpfCall(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&update), unsafe.Sizeof(update))
			})
			err = errors.Join(err, cerr)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("enter a listener: %w", err)
		}
	}
	return f, nil
}

// Fields of struct bpf_sk_lookup, helpers, and the program's one answer: whatever
// it has assigned, or nothing.
const (
	lookupFamily, lookupProtocol   = 8, 12
	lookupLocalIP4, lookupLocalIP6 = 40, 44
	lookupLocalPort                = 60
	helperMapLookup                = 1
	helperSocketRelease            = 86
	helperSocketAssign             = 124
	pass                           = 1
	opCall                         = unix.BPF_JMP | unix.BPF_CALL
	opStoreWord                    = unix.BPF_ST | unix.BPF_MEM | unix.BPF_W
	opLoadConstant                 = unix.BPF_LD | unix.BPF_IMM | unix.BPF_DW
	opAddConstant                  = unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_K
	r2, r3, r10                    = 2, 3, 10
	stackSlot                      = -4
	loopbackNet                    = 127
)

// lookupProgram names the listener of a connection that is the guest's.
func lookupProgram(sockets int32) []byte {
	a := &assembler{labels: map[string]int{}, jumps: map[int]string{}}
	a.add(opMoveReg, r6, r1, 0, 0)
	a.add(opLoadField, r7, r6, lookupProtocol, 0)
	a.jump(opNotEqual, r7, protocolTCP, "pass")
	a.add(opLoadField, r7, r6, lookupLocalPort, 0)
	a.jump(opGreater, r7, api.HostPortFirst-1, "pass")
	a.add(opStoreWord, r10, 0, stackSlot, placeV6)
	a.add(opLoadField, r7, r6, lookupFamily, 0)
	a.jump(opEqual, r7, unix.AF_INET6, "assign")
	a.jump(opNotEqual, r7, unix.AF_INET, "pass")
	a.add(opStoreWord, r10, 0, stackSlot, placeV4)
	// Of 127.0.0.0/8 only the usual one is the guest's.
	a.add(opLoadField, r7, r6, lookupLocalIP4, 0)
	a.jump(opEqual, r7, int32(networkLong(127<<24|1)), "assign")
	a.add(opAnd, r7, 0, 0, int32(networkLong(0xff<<24)))
	a.jump(opEqual, r7, int32(networkLong(loopbackNet<<24)), "pass")
	a.label("assign")
	// The map's descriptor takes two instructions.
	a.add(opLoadConstant, r1, unix.BPF_PSEUDO_MAP_FD, 0, sockets)
	a.add(0, 0, 0, 0, 0)
	a.add(opMoveReg, r2, r10, 0, 0)
	a.add(opAddConstant, r2, 0, 0, stackSlot)
	a.add(opCall, 0, 0, 0, helperMapLookup)
	a.jump(opEqual, r0, 0, "pass")
	a.add(opMoveReg, r7, r0, 0, 0)
	a.add(opMoveReg, r1, r6, 0, 0)
	a.add(opMoveReg, r2, r0, 0, 0)
	a.add(opMove, r3, 0, 0, 0)
	a.add(opCall, 0, 0, 0, helperSocketAssign)
	a.add(opMoveReg, r1, r7, 0, 0)
	a.add(opCall, 0, 0, 0, helperSocketRelease)
	a.label("pass")
	a.add(opMove, r0, 0, 0, pass)
	a.add(opExit, 0, 0, 0, 0)
	return a.program()
}
