// SPDX-License-Identifier: Apache-2.0

// The program of a sandbox that has no container of its own: process 1 of a pod.

package guestinit

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"unsafe"
)

const (
	// reaperAddress is where the program is mapped: on a page of any size, above
	// what no program may map.
	reaperAddress = 0x10000
	// maxReaperBytes bounds its code: it has some thirty instructions.
	maxReaperBytes = 512
	// elfHeaderBytes and elfSegmentBytes are the sizes of an ELF file's headers.
	elfHeaderBytes, elfSegmentBytes = 64, 56
)

// reaperEnd is behind the code's last instruction.
var reaperEnd = []byte("gvx-reaper-ends.")

// reaperCode is the address of the program's code, which is position-independent
// and calls the kernel alone: see reaper_linux_*.s.
func reaperCode() unsafe.Pointer

// Reaper is a static executable that reaps the processes that lose their parents,
// and ends with SIGTERM or SIGINT. It takes a few pages of a guest, where this
// program would take megabytes.
func Reaper() []byte {
	code := unsafe.Slice((*byte)(reaperCode()), maxReaperBytes)
	end := bytes.Index(code, reaperEnd)
	if end < 0 {
		panic("guestinit: the reaper's code has no end")
	}
	return reaperFile(code[:end])
}

// reaperFile puts code into an ELF file of one segment, which holds the headers too.
func reaperFile(code []byte) []byte {
	const head = elfHeaderBytes + elfSegmentBytes
	size := uint64(head + len(code))
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	f := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 15: 0} // 64 bits, little-endian, version 1
	le := binary.LittleEndian
	f = le.AppendUint16(f, 2) // an executable
	f = le.AppendUint16(f, machine)
	f = le.AppendUint32(f, 1)
	f = le.AppendUint64(f, reaperAddress+head) // entry
	f = le.AppendUint64(f, elfHeaderBytes)     // program headers, no section headers
	f = le.AppendUint64(f, 0)
	f = le.AppendUint32(f, 0)
	for _, n := range []uint16{elfHeaderBytes, elfSegmentBytes, 1, 0, 0, 0} {
		f = le.AppendUint16(f, n)
	}
	f = le.AppendUint32(f, 1) // PT_LOAD
	f = le.AppendUint32(f, 5) // readable and executable
	for _, n := range []uint64{0, reaperAddress, reaperAddress, size, size, reaperAddress} {
		f = le.AppendUint64(f, n)
	}
	return append(f, code...)
}
