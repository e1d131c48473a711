// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
)

// Action is what the filter does with a call that no entry permits.
type Action uint32

const (
	// Kill ends the process. It is the zero value and the only one that
	// production code uses.
	Kill Action = 0
	// Trap raises SIGSYS instead, so that a debug build can say where.
	Trap Action = Action(linux.SECCOMP_RET_TRAP)
	// Refuse answers EPERM, for a test that tries many calls in one process.
	Refuse Action = Action(linux.SECCOMP_RET_ERRNO) | Action(unix.EPERM)
)

// FilterOptions are the values that the allow-list depends on.
type FilterOptions struct {
	// ListenFD is the donated listening socket on which the process may
	// accept connections; negative if there is none.
	ListenFD int
	// BrokerFD is the donated channel on which the process may receive
	// descriptors; 0 or negative if there is none.
	BrokerFD int
	// StreamsFD is the donated socket on which the process may receive the
	// streams of new guest processes; 0 or negative if there is none.
	StreamsFD int
	// Trees says that a gofer serves the process. TreesFD is then the lowest of
	// the numbers on which it may send messages, see [ReserveAbove]; zero is all,
	// for a process without sockets that a message could lead astray.
	Trees   bool
	TreesFD int
	// HostNetwork says that guests use the host's network: the process may make
	// sockets of the internet's families. With it the process may be served by a
	// gofer, too.
	HostNetwork bool
	// Action is for tests; see [Action].
	Action Action
}

// instruction is a BPF instruction, in the generated file's short form.
type instruction struct {
	op     uint16
	jt, jf uint8
	k      uint32
}

// variable is a value known only in the running process.
type variable int

const (
	selfPID variable = iota
	listenFD
	brokerFD
	streamsFD
	treesFD
	threadPriority
)

// patch is a place in the program that takes half of a variable's value.
type patch struct {
	index int
	value variable
	high  bool
}

// compiled is a program with placeholders, and where they are.
type compiled struct {
	insns   []instruction
	patches []patch
}

// Filter returns the allow-list as a program for [Install]. It takes
// microseconds: the program was compiled when gvx was built, only the process'
// own id, its listener and its priority are filled in.
//
// It must be called in the process that installs the program, after its last
// change of priority or pid namespace.
func Filter(o FilterOptions) ([]bpf.Instruction, error) {
	values, err := o.values()
	if err != nil {
		return nil, err
	}
	p := &program
	switch {
	case o.HostNetwork:
		p = &hostProgram
	case o.Trees:
		p = &treesProgram
	}
	return o.fill(p, &values), nil
}

// GoferFilter returns the gofer's allow-list, likewise.
func GoferFilter(o FilterOptions) ([]bpf.Instruction, error) {
	values, err := o.values()
	if err != nil {
		return nil, err
	}
	return o.fill(&goferProgram, &values), nil
}

// fill puts the values into a program.
func (o *FilterOptions) fill(c *compiled, values *variableValues) []bpf.Instruction {
	insns := make([]bpf.Instruction, len(c.insns))
	for i, ins := range c.insns {
		insns[i] = bpf.Instruction{OpCode: ins.op, JumpIfTrue: ins.jt, JumpIfFalse: ins.jf, K: ins.k}
	}
	for _, p := range c.patches {
		v := values[p.value]
		if p.high {
			v >>= 32
		}
		insns[p.index].K = uint32(v)
	}
	o.act(insns)
	return insns
}

// variableValues holds a value for each variable.
type variableValues [threadPriority + 1]uint64

// values returns the variables' values in this process.
func (o *FilterOptions) values() (variableValues, error) {
	// The raw call returns 20 minus the nice value; systrap gives its stubs
	// one more than that, and computes it the same way.
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return variableValues{}, fmt.Errorf("prepare seccomp filter: get priority: %w", err)
	}
	v := variableValues{
		selfPID:        uint64(os.Getpid()),
		listenFD:       ^uint64(0), // no descriptor has this number
		brokerFD:       ^uint64(0),
		streamsFD:      ^uint64(0),
		treesFD:        uint64(max(o.TreesFD, 0)),
		threadPriority: uint64(int64(20 - raw + 1)),
	}
	if o.ListenFD >= 0 {
		v[listenFD] = uint64(o.ListenFD)
	}
	if o.BrokerFD > 0 {
		v[brokerFD] = uint64(o.BrokerFD)
	}
	if o.StreamsFD > 0 {
		v[streamsFD] = uint64(o.StreamsFD)
	}
	return v, nil
}

// act puts the action in place of the kernel's.
func (o *FilterOptions) act(insns []bpf.Instruction) {
	if o.Action == Kill {
		return
	}
	for i := range insns {
		if insns[i].OpCode == bpf.Ret|bpf.K && insns[i].K == uint32(linux.SECCOMP_RET_KILL_PROCESS) {
			insns[i].K = uint32(o.Action)
		}
	}
}

// Install puts a program into force on every thread of the process, for good,
// and reads back that it is. It sets no_new_privs, which the kernel demands.
func Install(insns []bpf.Instruction) error {
	if len(insns) == 0 || len(insns) > bpf.MaxInstructions {
		return fmt.Errorf("install seccomp filter: %d instructions, want 1 to %d", len(insns), bpf.MaxInstructions)
	}
	if err := setFilter(insns, unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
		return fmt.Errorf("install seccomp filter: %w", err)
	}
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("install seccomp filter: read back: %w", err)
	}
	if mode != unix.SECCOMP_MODE_FILTER {
		return fmt.Errorf("install seccomp filter: the kernel accepted it but reports mode %d", mode)
	}
	return nil
}

// errSync says that a thread already had a filter that the others lack.
var errSync = errors.New("another thread has a filter of its own")

// setFilter calls seccomp(2) on a locked thread: no_new_privs belongs to a
// thread, and the kernel copies it to the others only together with TSYNC.
func setFilter(insns []bpf.Instruction, flags uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	tid, errno := seccompLoad(insns, flags)
	switch {
	case errno != 0:
		return fmt.Errorf("seccomp: %w", errno)
	case tid != 0:
		return fmt.Errorf("seccomp: thread %d: %w", tid, errSync)
	}
	return nil
}

// seccompLoad gives a program to the kernel. What the result means depends on
// flags: a thread that could not follow, or a listener's descriptor.
func seccompLoad(insns []bpf.Instruction, flags uintptr) (uintptr, unix.Errno) {
	prog := unix.SockFprog{
		Len:    uint16(len(insns)),
		Filter: (*unix.SockFilter)(unsafe.Pointer(&insns[0])),
	}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	return r, errno
}

// actionAvailable asks whether the kernel knows a filter's action.
func actionAvailable(action uint32) bool {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}
