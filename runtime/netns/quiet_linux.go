// SPDX-License-Identifier: Apache-2.0

// Keeping the host's stack off an interface.

package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// filterName and filterPriority tell our filter from others on an interface.
const (
	filterName     = "gvx-netns"
	filterPriority = 0x6776
)

// quiet is an interface that the host's stack leaves alone.
type quiet struct {
	// split says that the host's stack keeps its own ports.
	split bool
	undo  func() error
}

// way is a way of quieting; tests ask for those that their host would not need.
type way int

const (
	byLink way = iota
	byFilter
	byAddresses
)

// prepareSplit says whether programs can be loaded here at all.
func prepareSplit() error {
	program, err := loadProgram(hostProgram(ethernetBytes))
	if err != nil {
		return err
	}
	return program.Close()
}

// quiet keeps the host's stack off the interface, by the first way that works:
//
//  1. a program that belongs to a descriptor of this process (Linux 6.6), and ends
//     with it, however that ends;
//  2. the same program as a filter of traffic control, which stays behind when
//     this process is killed: until the next taker replaces it, or the namespace
//     is removed;
//  3. without programs: the addresses are taken away.
//
// best is the first of them that is tried.
func (i *iface) quiet(h *netlink.Handle, best way) (quiet, error) {
	if best == byAddresses {
		return i.removeAddresses(h)
	}
	program, err := loadProgram(hostProgram(linkHeaderBytes(i.ethernet())))
	if err != nil {
		return i.removeAddresses(h)
	}
	defer program.Close()
	if best == byLink {
		if link, err := attachProgram(program, i.index); err == nil {
			return quiet{split: true, undo: link.Close}, nil
		}
	}
	if undo, err := i.addFilter(h, program); err == nil {
		return quiet{split: true, undo: undo}, nil
	}
	return i.removeAddresses(h)
}

// addFilter makes the program a filter for what comes in.
func (i *iface) addFilter(h *netlink.Handle, program *os.File) (undo func() error, err error) {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: i.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	err = h.QdiscAdd(qdisc)
	added := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: i.index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1,
			Protocol: unix.ETH_P_ALL, Priority: filterPriority,
		},
		Fd: int(program.Fd()), Name: filterName, DirectAction: true,
	}
	if err := h.FilterReplace(filter); err != nil {
		if added {
			_ = h.QdiscDel(qdisc)
		}
		return nil, err
	}
	return func() error {
		// In the namespace, by a new socket: the old one is closed.
		if added {
			return gone(netlink.QdiscDel(qdisc))
		}
		return gone(netlink.FilterDel(filter))
	}, nil
}

// removeAddresses takes the addresses from the interface, and with them the
// routes.
func (i *iface) removeAddresses(h *netlink.Handle) (quiet, error) {
	l, err := h.LinkByIndex(i.index)
	if err != nil {
		return quiet{}, fmt.Errorf("interface %s: %w", i.link.Name, err)
	}
	for k := range i.addresses {
		err := h.AddrDel(l, &i.addresses[k])
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return quiet{}, refused(fmt.Sprintf("take address %s from %s", i.addresses[k].IPNet, i.link.Name), err)
		}
	}
	return quiet{undo: i.restoreAddresses}, nil
}

// restoreAddresses is the opposite. Routes that the kernel makes with addresses
// are there again by themselves.
func (i *iface) restoreAddresses() error {
	l, err := netlink.LinkByIndex(i.index)
	if err != nil {
		return gone(err)
	}
	var errs []error
	for k := range i.addresses {
		a := i.addresses[k]
		a.Flags = unix.IFA_F_NODAD // It was ours all the time.
		if err := netlink.AddrReplace(l, &a); err != nil {
			errs = append(errs, fmt.Errorf("give address %s back to %s: %w", a.IPNet, i.link.Name, err))
		}
	}
	for k := range i.routes {
		if r := i.routes[k]; r.Protocol != unix.RTPROT_KERNEL {
			if err := netlink.RouteReplace(&r); err != nil {
				errs = append(errs, fmt.Errorf("give route to %s back to %s: %w", r.Dst, i.link.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// gone takes the absence of what was to be removed for success.
func gone(err error) error {
	var missing netlink.LinkNotFoundError
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) || errors.As(err, &missing) {
		return nil
	}
	return err
}

// programLoad and linkCreate are the parts of union bpf_attr that are used:
// Linux' include/uapi/linux/bpf.h.
type programLoad struct {
	kind         uint32
	instructions uint32
	code         uint64
	license      uint64
	logLevel     uint32
	logBytes     uint32
	log          uint64
	kernel       uint32
	flags        uint32
	name         [unix.BPF_OBJ_NAME_LEN]byte
	ifindex      uint32
	attach       uint32
}

type linkCreate struct {
	program  uint32
	target   uint32 // an interface's index, or a namespace
	attach   uint32
	flags    uint32
	relative uint32
	_        uint32
	revision uint64
}

// loadProgram hands a program for what comes in to the kernel.
func loadProgram(code []byte) (*os.File, error) {
	return loadProgramOf(unix.BPF_PROG_TYPE_SCHED_CLS, 0, code)
}

// loadProgramOf hands a program of any kind to the kernel; attach is where it will
// be attached, for kinds that have to say so.
func loadProgramOf(kind, attach uint32, code []byte) (*os.File, error) {
	license := []byte("Apache-2.0\x00")
	attr := programLoad{
		kind:         kind,
		attach:       attach,
		instructions: uint32(len(code) / bytesPerInstruction),
		code:         uint64(uintptr(unsafe.Pointer(&code[0]))),
		license:      uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	copy(attr.name[:], "gvx_netns")
	fd, err := bpfCall(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(code)
	runtime.KeepAlive(license)
	if err != nil {
		return nil, fmt.Errorf("load a program for the host's stack: %w", err)
	}
	return os.NewFile(uintptr(fd), "program"), nil
}

// attachProgram puts the program before the host's stack for as long as the file
// that it returns is open.
func attachProgram(program *os.File, index int) (*os.File, error) {
	attr := linkCreate{program: uint32(program.Fd()), target: uint32(index), attach: unix.BPF_TCX_INGRESS}
	fd, err := bpfCall(unix.BPF_LINK_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return nil, fmt.Errorf("attach a program: %w", err)
	}
	return os.NewFile(uintptr(fd), "program's link"), nil
}

func bpfCall(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil // Not inherited: the kernel makes them so.
}
