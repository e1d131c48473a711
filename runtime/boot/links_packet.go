// SPDX-License-Identifier: Apache-2.0

// The endpoint of an interface whose frames go through packet sockets.
//
// gVisor has one too (link/fdbased). This one reads and writes the sockets as
// files: it needs no system call that a sandbox does not have anyway, where
// sendmmsg could name other destinations than the interface, and other sockets
// than these. And it believes what the host says about checksums and segments of
// each frame, which a guest that forwards (a container engine) depends on: see
// links_offload.go.

package boot

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// maxWritePieces is how many pieces a frame is written in; one of more is
	// copied together first.
	maxWritePieces = 32
	// maxReadErrors ends a receiver whose socket gives nothing but errors. An
	// interface that goes down gives one.
	maxReadErrors = 1000
	// noOffset makes preadv2 and pwritev2 what readv and writev are.
	noOffset = ^uintptr(0)
)

// packetLink is an interface of the host.
type packetLink struct {
	stack    *stack.Stack
	nic      tcpip.NICID
	name     string
	ethernet bool
	// gsoMaxBytes is the longest packet that the host cuts up; 0 says that frames
	// have no virtio header.
	gsoMaxBytes uint32

	files []*os.File
	raw   []syscall.RawConn
	fds   []uintptr

	started    atomic.Bool
	dispatcher atomic.Pointer[stack.NetworkDispatcher]
	address    atomic.Pointer[tcpip.LinkAddress]
	mtu        atomic.Uint32
}

var (
	_ stack.LinkEndpoint = (*packetLink)(nil)
	_ stack.GSOEndpoint  = (*packetLink)(nil)
)

// newPacketLink makes the endpoint of nic. Nothing is received before the stack
// attaches itself.
func newPacketLink(s *stack.Stack, nic tcpip.NICID, l *api.Link) (*packetLink, error) {
	p := &packetLink{stack: s, nic: nic, name: l.Name, ethernet: len(l.MAC) > 0, gsoMaxBytes: uint32(l.GSOMaxBytes)}
	for _, fd := range l.FDs {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_NONBLOCK == 0 {
			err = fmt.Errorf("it is in blocking mode")
		}
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("its socket, descriptor %d: %w", fd, err)
		}
		f := os.NewFile(uintptr(fd), l.Name)
		p.files = append(p.files, f)
		raw, err := f.SyscallConn()
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("its socket, descriptor %d: %w", fd, err)
		}
		p.raw, p.fds = append(p.raw, raw), append(p.fds, uintptr(fd))
	}
	p.SetLinkAddress(tcpip.LinkAddress(l.MAC))
	mtu := uint32(l.MTU)
	if p.ethernet {
		mtu += header.EthernetMinimumSize // Which ethernet.Endpoint takes off.
	}
	p.SetMTU(mtu)
	return p, nil
}

// linkBytes is the length of a frame's header.
func (p *packetLink) linkBytes() int {
	if p.ethernet {
		return header.EthernetMinimumSize
	}
	return 0
}

// WritePackets implements stack.LinkWriter.
func (p *packetLink) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range packets.AsSlice() {
		if err := p.write(pkt); err != nil {
			return i, err
		}
	}
	return packets.Len(), nil
}

// write writes one frame. What the host has no room for is lost, as on a wire:
// senders that wait for room would wait for a sign that never comes.
func (p *packetLink) write(pkt *stack.PacketBuffer) tcpip.Error {
	var vnet [virtioHeaderBytes]byte
	var array [maxWritePieces + 1]unix.Iovec
	pieces := array[:0]
	if p.gsoMaxBytes > 0 {
		vnet = offloadOf(pkt, p.linkBytes())
		pieces = append(pieces, unix.Iovec{Base: &vnet[0], Len: virtioHeaderBytes})
	}
	slices := pkt.AsSlices()
	if len(slices) > maxWritePieces {
		whole := pkt.ToView()
		defer whole.Release()
		slices = [][]byte{whole.AsSlice()}
	}
	for _, b := range slices {
		if len(b) > 0 {
			pieces = append(pieces, unix.Iovec{Base: &b[0], Len: uint64(len(b))})
		}
	}
	if len(pieces) == 0 {
		return nil
	}
	fd := p.fds[pkt.Hash%uint32(len(p.fds))]
	// It never waits, so the scheduler need not know.
	_, _, errno := unix.RawSyscall6(unix.SYS_PWRITEV2, fd, uintptr(unsafe.Pointer(&pieces[0])), uintptr(len(pieces)), noOffset, noOffset, 0)
	runtime.KeepAlive(slices)
	switch errno {
	case 0, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		return nil
	}
	return tcpip.TranslateErrno(errno)
}

// Attach implements stack.NetworkLinkEndpoint. A guest may move an interface from
// one of its namespaces to another, in between it is attached to none.
func (p *packetLink) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		p.dispatcher.Store(nil)
		return
	}
	p.dispatcher.Store(&d)
	if p.started.CompareAndSwap(false, true) {
		for _, raw := range p.raw {
			go p.receive(raw)
		}
	}
}

// receive delivers what comes until the link is closed.
func (p *packetLink) receive(raw syscall.RawConn) {
	r := newFrameReader(p.gsoMaxBytes > 0)
	failures := 0
	for {
		var errno unix.Errno
		err := raw.Read(func(fd uintptr) bool {
			for {
				var n int
				switch n, errno = r.read(fd); errno {
				case 0:
					failures = 0
					p.deliver(r, n)
				case unix.EINTR:
				case unix.EAGAIN:
					return false
				default:
					return true
				}
			}
		})
		failures++
		if err != nil || failures > maxReadErrors {
			if err == nil {
				log.Warningf("interface %s: receive: %v", p.name, errno)
			}
			return
		}
	}
}

// deliver hands a frame of n bytes to the stack.
func (p *packetLink) deliver(r *frameReader, n int) {
	d := p.dispatcher.Load()
	if d == nil || n <= p.linkBytes() {
		return
	}
	link := p.linkBytes()
	first := r.views[0].AsSlice()
	protocol := protocolOf(first, link)
	offload := r.offload()
	if p.gsoMaxBytes == 0 || offload.asItIs(p.forwards(protocol)) {
		p.hand(*d, protocol, r.pull(n))
		return
	}
	whole := r.pull(n)
	frame := whole.Flatten()
	whole.Release()
	for _, f := range offload.settle(frame, link, protocol) {
		p.hand(*d, protocol, buffer.MakeWithData(f))
	}
}

// hand gives one frame to the stack.
func (p *packetLink) hand(d stack.NetworkDispatcher, protocol tcpip.NetworkProtocolNumber, frame buffer.Buffer) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: frame})
	defer pkt.DecRef()
	pkt.NetworkProtocolNumber = protocol
	d.DeliverNetworkPacket(protocol, pkt)
}

// forwards says whether the guest may send on what it receives here.
func (p *packetLink) forwards(protocol tcpip.NetworkProtocolNumber) bool {
	on, err := p.stack.NICForwarding(p.nic, protocol)
	return err == nil && on
}

// protocolOf reads which network protocol a frame carries; one without a header
// says it itself.
func protocolOf(frame []byte, link int) tcpip.NetworkProtocolNumber {
	if link > 0 {
		return header.Ethernet(frame).Type()
	}
	switch header.IPVersion(frame) {
	case header.IPv4Version:
		return header.IPv4ProtocolNumber
	case header.IPv6Version:
		return header.IPv6ProtocolNumber
	}
	return 0
}

// IsAttached implements stack.NetworkLinkEndpoint.
func (p *packetLink) IsAttached() bool { return p.dispatcher.Load() != nil }

// GSOMaxSize implements stack.GSOEndpoint.
func (p *packetLink) GSOMaxSize() uint32 { return p.gsoMaxBytes }

// SupportedGSO implements stack.GSOEndpoint.
func (p *packetLink) SupportedGSO() stack.SupportedGSO {
	if p.gsoMaxBytes > 0 {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}

// Capabilities implements stack.NetworkLinkEndpoint. With offload, what is handed
// to the stack has been verified.
func (p *packetLink) Capabilities() stack.LinkEndpointCapabilities {
	if p.gsoMaxBytes > 0 {
		return stack.CapabilityRXChecksumOffload
	}
	return stack.CapabilityNone
}

// MTU implements stack.NetworkLinkEndpoint.
func (p *packetLink) MTU() uint32 { return p.mtu.Load() }

// SetMTU implements stack.NetworkLinkEndpoint.
func (p *packetLink) SetMTU(mtu uint32) { p.mtu.Store(mtu) }

// LinkAddress implements stack.NetworkLinkEndpoint.
func (p *packetLink) LinkAddress() tcpip.LinkAddress { return *p.address.Load() }

// SetLinkAddress implements stack.NetworkLinkEndpoint.
func (p *packetLink) SetLinkAddress(a tcpip.LinkAddress) { p.address.Store(&a) }

// MaxHeaderLength implements stack.NetworkLinkEndpoint.
func (*packetLink) MaxHeaderLength() uint16 { return 0 }

// ARPHardwareType implements stack.NetworkLinkEndpoint.
func (p *packetLink) ARPHardwareType() header.ARPHardwareType {
	if p.ethernet {
		return header.ARPHardwareEther
	}
	return header.ARPHardwareNone
}

// AddHeader implements stack.NetworkLinkEndpoint.
func (*packetLink) AddHeader(*stack.PacketBuffer) {}

// ParseHeader implements stack.NetworkLinkEndpoint.
func (*packetLink) ParseHeader(*stack.PacketBuffer) bool { return true }

// Wait implements stack.NetworkLinkEndpoint. Receivers outlive a detachment.
func (*packetLink) Wait() {}

// Close implements stack.NetworkLinkEndpoint.
func (p *packetLink) Close() {
	for _, f := range p.files {
		f.Close()
	}
}

// SetOnCloseAction implements stack.NetworkLinkEndpoint.
func (*packetLink) SetOnCloseAction(func()) {}
