// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"runtime"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// KillProcess is what the program returns for everything that no entry
// permits. Loading for a test replaces it.
const KillProcess = uint32(linux.SECCOMP_RET_KILL_PROCESS)

// Patch is a place in a program where half of a variable's value goes.
type Patch struct {
	// Index is the instruction whose K is replaced.
	Index int
	Var   Variable
	// High says that it is the upper half.
	High bool
}

// Program is a compiled table. Until all of Patches are applied it refuses
// whatever depends on a variable.
type Program struct {
	Instructions []bpf.Instruction
	Patches      []Patch
}

// placeholder returns a variable's stand-in. Each half is a value that occurs
// nowhere in a genuine rule, so that the places are found by searching.
func placeholder(v Variable) uint64 {
	return (0x6776_7800+uint64(v))<<32 | (0x7867_7600 + uint64(v))
}

// Compile translates entries into a program for arch. Every entry must be
// known there and have a reason.
func Compile(arch Arch, entries []Entry) (*Program, error) {
	rules := seccomp.NewSyscallRules()
	for i := range entries {
		e := &entries[i]
		nr, ok := Number(arch, e.Syscall)
		if !ok {
			return nil, fmt.Errorf("compile seccomp table: %s: number unknown on %s", e, arch)
		}
		if e.Reason == "" {
			return nil, fmt.Errorf("compile seccomp table: %s: no reason, no entry", e)
		}
		if len(e.Args) == 0 {
			rules.Add(uintptr(nr), seccomp.MatchAll{})
			continue
		}
		for _, r := range expand(e.Args) {
			rules.Add(uintptr(nr), r)
		}
	}
	hot, _ := Number(arch, "futex")
	hot2, _ := Number(arch, "ioctl")
	p := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: rules, Action: seccomp.Allow}},
		Options: seccomp.ProgramOptions{
			DefaultAction: seccomp.KillProcess,
			BadArchAction: seccomp.KillProcess,
			// These two are half of all calls in every workload we traced.
			HotSyscalls: []uintptr{uintptr(hot), uintptr(hot2)},
		},
	}
	insns, _, err := p.Build()
	if err != nil {
		return nil, fmt.Errorf("compile seccomp table for %s: %w", arch, err)
	}
	if err := setArch(insns, arch); err != nil {
		return nil, err
	}
	return &Program{Instructions: insns, Patches: findPatches(insns)}, nil
}

// expand turns conditions into rules: one for every combination of the values
// that OneOf conditions allow.
func expand(conds []Cond) []seccomp.PerArg {
	out := []seccomp.PerArg{{}}
	for _, c := range conds {
		var next []seccomp.PerArg
		for _, base := range out {
			for _, m := range c.matchers() {
				r := base
				r[c.Arg] = m
				next = append(next, r)
			}
		}
		out = next
	}
	for i := range out {
		for j := range out[i] {
			if out[i][j] == nil {
				out[i][j] = seccomp.AnyValue{}
			}
		}
	}
	return out
}

func (c *Cond) matchers() []seccomp.ValueMatcher {
	switch c.Op {
	case OneOf:
		var m []seccomp.ValueMatcher
		for _, v := range c.Values {
			m = append(m, seccomp.EqualTo(v))
		}
		return m
	case Masked:
		return []seccomp.ValueMatcher{seccomp.MaskedEqual(uintptr(c.Mask), uintptr(c.Value))}
	case Descriptor:
		return []seccomp.ValueMatcher{seccomp.NonNegativeFD{}}
	}
	value := c.Value
	if c.Var != NoVariable {
		value = placeholder(c.Var)
	}
	if c.Op == AtLeast {
		return []seccomp.ValueMatcher{seccomp.GreaterThanOrEqual(value)}
	}
	return []seccomp.ValueMatcher{seccomp.EqualTo(value)}
}

// setArch makes the program expect arch's system calls. The compiler knows
// only the architecture it was itself built for, and checks it in the second
// instruction; everything else in a program is independent of it.
func setArch(insns []bpf.Instruction, arch Arch) error {
	audit := map[Arch]uint32{AMD64: linux.AUDIT_ARCH_X86_64, ARM64: linux.AUDIT_ARCH_AARCH64}
	const dataArch = 4 // offset of seccomp_data.arch
	load := bpf.Stmt(bpf.Ld|bpf.Abs|bpf.W, dataArch)
	if len(insns) < 2 || insns[0] != load || insns[1].OpCode != bpf.Jmp|bpf.Jeq|bpf.K || insns[1].K != audit[Arch(runtime.GOARCH)] {
		return fmt.Errorf("compile seccomp table for %s: the program does not begin with the architecture check", arch)
	}
	insns[1].K = audit[arch]
	return nil
}

func findPatches(insns []bpf.Instruction) []Patch {
	var patches []Patch
	for i, ins := range insns {
		for v := NoVariable + 1; v < variables; v++ {
			switch p := placeholder(v); ins.K {
			case uint32(p):
				patches = append(patches, Patch{Index: i, Var: v})
			case uint32(p >> 32):
				patches = append(patches, Patch{Index: i, Var: v, High: true})
			}
		}
	}
	return patches
}
