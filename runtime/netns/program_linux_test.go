// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

func itoa(n int) string { return strconv.Itoa(n) }

// frame is an Ethernet frame with what the programs look at.
func frame(ethertype uint16, payload ...byte) []byte {
	f := make([]byte, 12, 128)
	f = binary.BigEndian.AppendUint16(f, ethertype)
	f = append(f, payload...)
	return append(f, make([]byte, 64)...)
}

// v4 is an IPv4 packet with a header of the given words.
func v4(words int, fragment uint16, protocol byte, payload ...byte) []byte {
	ip := make([]byte, 4*words)
	ip[0] = 0x40 | byte(words)
	binary.BigEndian.PutUint16(ip[6:], fragment)
	ip[9] = protocol
	return frame(unix.ETH_P_IP, append(ip, payload...)...)
}

func v6(protocol byte, payload ...byte) []byte {
	ip := make([]byte, 40)
	ip[0], ip[6] = 0x60, protocol
	return frame(unix.ETH_P_IPV6, append(ip, payload...)...)
}

func port(n int) []byte { return []byte{0, 1, byte(n >> 8), byte(n)} }

// owners says who is to get a frame.
type owners struct {
	frame         []byte
	host, sandbox bool
}

func allFrames() map[string]owners {
	const inside = api.HostPortFirst + 3
	arp := func(operation byte) []byte { return frame(unix.ETH_P_ARP, 0, 1, 8, 0, 6, 4, 0, operation) }
	all := map[string]owners{
		"arp question":       {arp(1), false, true},
		"arp answer":         {arp(2), true, true},
		"tcp":                {v4(5, 0, 6, port(80)...), false, true},
		"tcp below":          {v4(5, 0, 6, port(api.HostPortFirst-1)...), false, true},
		"tcp first":          {v4(5, 0, 6, port(api.HostPortFirst)...), true, false},
		"tcp last":           {v4(5, 0, 6, port(api.HostPortLast)...), true, false},
		"tcp with options":   {v4(8, 0, 6, port(inside)...), true, false},
		"udp":                {v4(5, 0, 17, port(53)...), false, true},
		"udp inside":         {v4(5, 0x4000, 17, port(inside)...), true, false},
		"later fragment":     {v4(5, 185, 17, port(inside)...), false, true},
		"first fragment":     {v4(5, 0x2000, 17, port(inside)...), true, false},
		"ping":               {v4(5, 0, 1, 8), false, true},
		"pong":               {v4(5, 0, 1, 0), true, true},
		"unreachable":        {v4(5, 0, 1, 3), true, true},
		"igmp":               {v4(5, 0, 2, 0x11), false, true},
		"sctp":               {v4(5, 0, 132, port(inside)...), false, true},
		"tcp over ipv6":      {v6(6, port(443)...), false, true},
		"tcp6 inside":        {v6(6, port(inside)...), true, false},
		"udp6 inside":        {v6(17, port(inside)...), true, false},
		"ping6":              {v6(58, 128), false, true},
		"pong6":              {v6(58, 129), true, true},
		"packet too big":     {v6(58, 2), true, true},
		"solicitation":       {v6(58, 135), false, true},
		"advertisement":      {v6(58, 136), true, true},
		"router":             {v6(58, 134), true, true},
		"listener query":     {v6(58, 130), false, true},
		"extension headers":  {v6(0, port(inside)...), false, true},
		"anything else":      {frame(0x88cc), false, true},
		"VLAN tag":           {frame(unix.ETH_P_8021Q, 0, 5, 8, 0), true, true},
		"second tag outside": {frame(unix.ETH_P_8021AD, 0, 5, 0x81, 0), true, true},
	}
	return all
}

// TestSandboxFilter runs the classic filter in its own machine. That has no notion
// of a frame's protocol, so the extension is put into the frame itself.
func TestSandboxFilter(t *testing.T) {
	for name, c := range allFrames() {
		program := hostPortsFilter(ethernetBytes)
		program[0] = bpf.LoadAbsolute{Off: 12, Size: 2}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		n, err := vm.Run(c.frame)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if (n > 0) != c.sandbox {
			t.Errorf("%s: the sandbox gets %d bytes, want it to get it: %v", name, n, c.sandbox)
		}
	}
}

// TestHostProgram has the kernel itself run the program.
func TestHostProgram(t *testing.T) {
	program, err := loadProgram(hostProgram(ethernetBytes))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("this host or user loads no programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for name, c := range allFrames() {
		attr := struct {
			program, result, sizeIn, sizeOut uint32
			dataIn, dataOut                  uint64
			repeat, duration                 uint32
			ctxSizeIn, ctxSizeOut            uint32
			ctxIn, ctxOut                    uint64
			flags, cpu                       uint32
		}{program: uint32(program.Fd()), sizeIn: uint32(len(c.frame)), dataIn: uint64(uintptr(unsafe.Pointer(&c.frame[0])))}
		if _, err := bpfCall(unix.BPF_PROG_TEST_RUN, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		host := int32(attr.result) == answerNext
		if !host && attr.result != answerDrop {
			t.Errorf("%s: answer %d", name, int32(attr.result))
		}
		if host != c.host {
			t.Errorf("%s: the host gets it: %v, want %v", name, host, c.host)
		}
	}
}
