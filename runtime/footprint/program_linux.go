// SPDX-License-Identifier: Apache-2.0

package footprint

import (
	"debug/elf"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Entries of the auxiliary vector: getauxval(3).
const (
	headersAt    = 3 // AT_PHDR
	headerSize   = 4 // AT_PHENT
	headersCount = 5 // AT_PHNUM
)

// forgetProgram lets go of this program's code and constants as they are mapped now:
// half of it only the start needed, and all has to be undone when the process ends.
// What runs on comes back from the host's page cache.
func forgetProgram() {
	for _, pages := range programPages() {
		_ = unix.Madvise(pages, unix.MADV_DONTNEED)
	}
}

// programPages are the parts of this program's file that are mapped and cannot be
// written: what can be is this process' own, and nowhere else. Source: elf(5).
func programPages() [][]byte {
	vector, err := unix.Auxv()
	if err != nil {
		return nil // A kernel that does not tell.
	}
	var at, size, count uintptr
	for _, entry := range vector {
		switch entry[0] {
		case headersAt:
			at = entry[1]
		case headerSize:
			size = entry[1]
		case headersCount:
			count = entry[1]
		}
	}
	if at == 0 || size != unsafe.Sizeof(elf.Prog64{}) {
		return nil
	}
	headers := unsafe.Slice((*elf.Prog64)(unsafe.Add(nil, at)), count)
	// How far the program is from where its file says.
	var moved uintptr
	for _, h := range headers {
		if elf.ProgType(h.Type) == elf.PT_PHDR {
			moved = at - uintptr(h.Vaddr)
		}
	}
	page := uintptr(os.Getpagesize())
	var parts [][]byte
	for _, h := range headers {
		if elf.ProgType(h.Type) != elf.PT_LOAD || elf.ProgFlag(h.Flags)&elf.PF_W != 0 {
			continue
		}
		begin := (moved + uintptr(h.Vaddr)) &^ (page - 1)
		end := moved + uintptr(h.Vaddr) + uintptr(h.Filesz)
		parts = append(parts, unsafe.Slice((*byte)(unsafe.Add(nil, begin)), end-begin))
	}
	return parts
}
