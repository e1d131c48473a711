// SPDX-License-Identifier: Apache-2.0

// Two programs that say whose a frame is: one before the host's stack, one before
// the sandbox. Both read the same fields and agree about ports.

package netns

import (
	"encoding/binary"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// Fields, counted from the beginning of the IP header, and their values.
const (
	ethernetBytes = 14

	ipv4Fragment, ipv4Protocol     = 6, 9
	ipv4FragmentOffset             = 0x1fff
	ipv6NextHeader, ipv6Bytes      = 6, 40
	destinationPort                = 2
	arpOperation, arpReply         = 6, 2
	protocolTCP, protocolUDP       = 6, 17
	protocolICMP, protocolICMPv6   = 1, 58
	echoReply, echoReplyV6         = 0, 129
	unreachable, exceeded, problem = 3, 11, 12
	// Errors of ICMPv6 are 1 to 4.
	lastErrorV6                       = 4
	routerAdvertisement, neighborHere = 134, 136

	// acceptAll is a socket filter's word for the whole frame.
	acceptAll = 0xffffffff
)

// linkHeaderBytes is where IP begins.
func linkHeaderBytes(ethernet bool) int {
	if ethernet {
		return ethernetBytes
	}
	return 0
}

// hostPortsFilter is the sandbox's side, a classic filter on its packet socket: it
// drops TCP and UDP to the host's ports. Fragments but the first have no ports:
// the sandbox gets them, and drops what it does not know.
func hostPortsFilter(link int) []bpf.Instruction {
	l := uint32(link)
	// Jumps are counted by hand: the comments name where they lead.
	return []bpf.Instruction{
		/* 0 */ bpf.LoadExtension{Num: bpf.ExtProto},
		/* 1 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipFalse: 8}, // to 10
		/* 2 */ bpf.LoadAbsolute{Off: l + ipv4Fragment, Size: 2},
		/* 3 */ bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: ipv4FragmentOffset, SkipTrue: 13}, // to 17
		/* 4 */ bpf.LoadAbsolute{Off: l + ipv4Protocol, Size: 1},
		/* 5 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolTCP, SkipTrue: 1}, // to 7
		/* 6 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolUDP, SkipFalse: 10}, // to 17
		/* 7 */ bpf.LoadMemShift{Off: l},
		/* 8 */ bpf.LoadIndirect{Off: l + destinationPort, Size: 2},
		/* 9 */ bpf.Jump{Skip: 5}, // to 15
		/* 10 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipFalse: 6}, // to 17
		/* 11 */ bpf.LoadAbsolute{Off: l + ipv6NextHeader, Size: 1},
		/* 12 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolTCP, SkipTrue: 1}, // to 14
		/* 13 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolUDP, SkipFalse: 3}, // to 17
		/* 14 */ bpf.LoadAbsolute{Off: l + ipv6Bytes + destinationPort, Size: 2},
		/* 15 */ bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: api.HostPortFirst, SkipFalse: 1}, // to 17
		/* 16 */ bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: api.HostPortLast, SkipFalse: 1}, // to 18
		/* 17 */ bpf.RetConstant{Val: acceptAll},
		/* 18 */ bpf.RetConstant{Val: 0},
	}
}

// What a program before the host's stack answers: the next one decides, or drop.
const (
	answerNext = -1
	answerDrop = 2
)

// Opcodes of eBPF, as far as they are used.
const (
	opMove       = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	opMoveReg    = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X
	opAnd        = unix.BPF_ALU64 | unix.BPF_AND | unix.BPF_K
	opShiftLeft  = unix.BPF_ALU64 | unix.BPF_LSH | unix.BPF_K
	opLoadField  = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
	opLoadByte   = unix.BPF_LD | unix.BPF_ABS | unix.BPF_B
	opLoadHalf   = unix.BPF_LD | unix.BPF_ABS | unix.BPF_H
	opLoadByteAt = unix.BPF_LD | unix.BPF_IND | unix.BPF_B
	opLoadHalfAt = unix.BPF_LD | unix.BPF_IND | unix.BPF_H
	opEqual      = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opNotEqual   = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	opGreater    = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opLess       = unix.BPF_JMP | unix.BPF_JLT | unix.BPF_K
	opJump       = unix.BPF_JMP | unix.BPF_JA
	opExit       = unix.BPF_JMP | unix.BPF_EXIT
)

// Registers and fields of struct __sk_buff. Loads from the packet go to r0, take
// the frame from r6 and spoil r1 to r5.
const (
	r0, r1, r6, r7, r8 = 0, 1, 6, 7, 8

	fieldProtocol, fieldVLANPresent = 16, 20
)

// assembler collects a program of eBPF.
type assembler struct {
	code   []byte
	labels map[string]int
	jumps  map[int]string
}

// bytesPerInstruction: op, registers, offset, constant.
const bytesPerInstruction = 8

func (a *assembler) add(op int, dst, src uint8, offset int16, constant int32) {
	a.code = append(a.code, byte(op), registers(dst, src))
	a.code = binary.NativeEndian.AppendUint16(a.code, uint16(offset))
	a.code = binary.NativeEndian.AppendUint32(a.code, uint32(constant))
}

// registers packs two of four bits each, the first in the low ones of a machine
// of little endian.
func registers(dst, src uint8) byte {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return dst | src<<4
	}
	return dst<<4 | src
}

// jump adds a jump to a label if register dst compares so with the constant.
func (a *assembler) jump(op int, dst uint8, constant int32, to string) {
	a.jumps[len(a.code)] = to
	a.add(op, dst, 0, 0, constant)
}

func (a *assembler) label(name string) { a.labels[name] = len(a.code) }

// program resolves the labels.
func (a *assembler) program() []byte {
	for at, to := range a.jumps {
		distance := (a.labels[to] - at) / bytesPerInstruction
		binary.NativeEndian.PutUint16(a.code[at+2:], uint16(int16(distance-1)))
	}
	return a.code
}

// hostProgram is the host's side: what its stack may see of an interface that a
// sandbox has.
func hostProgram(link int) []byte {
	l := int32(link)
	a := &assembler{labels: map[string]int{}, jumps: map[int]string{}}
	a.add(opMoveReg, r6, r1, 0, 0)
	// Frames with a tag are for VLAN interfaces above, which the sandbox gets by
	// themselves.
	a.add(opLoadField, r7, r6, fieldVLANPresent, 0)
	a.jump(opNotEqual, r7, 0, "host")
	a.add(opLoadField, r7, r6, fieldProtocol, 0)
	a.jump(opEqual, r7, int32(networkOrder(unix.ETH_P_8021Q)), "host")
	a.jump(opEqual, r7, int32(networkOrder(unix.ETH_P_8021AD)), "host")
	a.jump(opEqual, r7, int32(networkOrder(unix.ETH_P_IP)), "ipv4")
	a.jump(opEqual, r7, int32(networkOrder(unix.ETH_P_IPV6)), "ipv6")
	a.jump(opNotEqual, r7, int32(networkOrder(unix.ETH_P_ARP)), "sandbox")
	// Questions are answered by the sandbox, answers may be to either's.
	a.add(opLoadHalf, 0, 0, 0, l+arpOperation)
	a.jump(opEqual, r0, arpReply, "host")
	a.jump(opJump, 0, 0, "sandbox")

	a.label("ipv4")
	a.add(opLoadHalf, 0, 0, 0, l+ipv4Fragment)
	a.add(opAnd, r0, 0, 0, ipv4FragmentOffset)
	a.jump(opNotEqual, r0, 0, "sandbox")
	a.add(opLoadByte, 0, 0, 0, l)
	a.add(opAnd, r0, 0, 0, 0xf)
	a.add(opShiftLeft, r0, 0, 0, 2)
	a.add(opMoveReg, r7, r0, 0, 0) // The header's length.
	a.add(opLoadByte, 0, 0, 0, l+ipv4Protocol)
	a.add(opMoveReg, r8, r0, 0, 0)
	a.jump(opEqual, r8, protocolTCP, "ports of ipv4")
	a.jump(opEqual, r8, protocolUDP, "ports of ipv4")
	a.jump(opNotEqual, r8, protocolICMP, "sandbox")
	a.add(opLoadByteAt, 0, r7, 0, l)
	for _, kind := range []int32{echoReply, unreachable, exceeded, problem} {
		a.jump(opEqual, r0, kind, "host")
	}
	a.jump(opJump, 0, 0, "sandbox")
	a.label("ports of ipv4")
	a.add(opLoadHalfAt, 0, r7, 0, l+destinationPort)
	a.jump(opJump, 0, 0, "port")

	a.label("ipv6")
	a.add(opLoadByte, 0, 0, 0, l+ipv6NextHeader)
	a.add(opMoveReg, r8, r0, 0, 0)
	a.jump(opEqual, r8, protocolTCP, "ports of ipv6")
	a.jump(opEqual, r8, protocolUDP, "ports of ipv6")
	a.jump(opNotEqual, r8, protocolICMPv6, "sandbox")
	a.add(opLoadByte, 0, 0, 0, l+ipv6Bytes)
	for _, kind := range []int32{echoReplyV6, routerAdvertisement, neighborHere} {
		a.jump(opEqual, r0, kind, "host")
	}
	a.jump(opGreater, r0, lastErrorV6, "sandbox")
	a.jump(opJump, 0, 0, "host")
	a.label("ports of ipv6")
	a.add(opLoadHalf, 0, 0, 0, l+ipv6Bytes+destinationPort)

	a.label("port")
	a.jump(opLess, r0, api.HostPortFirst, "sandbox")
	a.jump(opGreater, r0, api.HostPortLast, "sandbox")
	a.label("host")
	a.add(opMove, r0, 0, 0, answerNext)
	a.add(opExit, 0, 0, 0, 0)
	a.label("sandbox")
	a.add(opMove, r0, 0, 0, answerDrop)
	a.add(opExit, 0, 0, 0, 0)
	return a.program()
}
