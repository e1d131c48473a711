// SPDX-License-Identifier: Apache-2.0

// Loading of BPF programs. gVisor's bpf(2) takes programs that filter devices
// only, of a million instructions each, which it keeps in the Sentry's own memory
// and never runs.

package boot

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/ebpf"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/ebpffd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// maxFilterInstructions bounds what a guest can have kept for each descriptor:
// Linux's own bound until 5.2. Filters that engines load have a few hundred.
const maxFilterInstructions = 4096

// loadFilters loads packet filters too: runc up to 1.2 loads an empty one to
// learn whether there is bpf(2) at all, and gives up without.
func loadFilters(bpf kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if args[0].Int() != linux.BPF_PROG_LOAD {
			return bpf(t, number, args)
		}
		// Read once: the guest may change it meanwhile.
		attr, err := copyInLoad(t, args[1].Pointer(), args[2].Uint())
		if err != nil {
			return 0, nil, err
		}
		fd, err := loadFilter(t, attr)
		return fd, nil, err
	}
}

// copyInLoad reads what a guest asks with. What is behind the fields that are
// known here has to be zero, as in Linux.
func copyInLoad(t *kernel.Task, addr hostarch.Addr, size uint32) (*linux.BPFAttrProgLoad, error) {
	if size > hostarch.PageSize {
		return nil, linuxerr.E2BIG
	}
	attr := &linux.BPFAttrProgLoad{}
	known := min(int(size), attr.SizeBytes())
	if _, err := attr.CopyInN(t, addr, known); err != nil {
		return nil, err
	}
	rest := make([]byte, int(size)-known)
	if _, err := t.CopyInBytes(addr+hostarch.Addr(known), rest); err != nil {
		return nil, err
	}
	if !zeros(rest) {
		return nil, linuxerr.E2BIG
	}
	return attr, nil
}

// loadFilter loads one program, and returns the descriptor that stands for it.
func loadFilter(t *kernel.Task, attr *linux.BPFAttrProgLoad) (uintptr, error) {
	admin := t.HasRootCapability(linux.CAP_SYS_ADMIN)
	if !admin && !(t.HasRootCapability(linux.CAP_BPF) && t.HasRootCapability(linux.CAP_NET_ADMIN)) {
		return 0, linuxerr.EPERM
	}
	switch attr.ProgType {
	case uint32(linux.BPF_PROG_TYPE_CGROUP_DEVICE), uint32(linux.BPF_PROG_TYPE_CGROUP_SKB):
	default:
		return 0, linuxerr.EINVAL
	}
	switch {
	case attr.ProgFlags != 0, attr.AttachBTFID != 0, attr.AttachFD != 0:
		return 0, linuxerr.EINVAL
	case attr.InstructionCount == 0, attr.InstructionCount > maxFilterInstructions:
		return 0, linuxerr.E2BIG
	}
	code := make([]linux.EBPFInstruction, attr.InstructionCount)
	if _, err := linux.CopyEBPFInstructionSliceIn(t, hostarch.Addr(attr.Instructions), code); err != nil {
		return 0, err
	}
	// A packet filter counts as one of devices: so it cannot be attached, which
	// is how such programs find out that it is of no use to them.
	unverified := ebpf.NewUnverifiedProgram(code)
	program, err := unverified.Validate(0, linux.BPF_PROG_TYPE_CGROUP_DEVICE)
	if err != nil {
		return 0, err
	}
	file, err := ebpffd.New(t, t.Kernel().VFS(), linux.O_RDWR, &program)
	if err != nil {
		return 0, err
	}
	defer file.DecRef(t)
	fd, err := t.NewFDFrom(0, file, kernel.FDFlags{CloseOnExec: true})
	return uintptr(fd), err
}
