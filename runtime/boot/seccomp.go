// SPDX-License-Identifier: Apache-2.0

// Filters for a guest's system calls, as OCI bundles ask for: compiled here into
// the classic BPF that the guest's own kernel runs before each call. They confine
// the guest within its sandbox; what the sandbox itself may do is lockdown's.

package boot

import (
	"fmt"
	"slices"

	"gvisor.dev/gvisor/pkg/abi"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"z.gfire.dev/gvx/runtime/api"
)

// Where a filter finds things in its input, struct seccomp_data.
const (
	seccompNumberAt = 0
	seccompArchAt   = 4
	seccompArgsAt   = 16
	// x32Bit marks calls of amd64's ABI with short pointers, which the guest's
	// kernel has not.
	x32Bit = 0x40000000
	// errnoNoSys is what a kernel answers that has no such call.
	errnoNoSys = 38
)

// callFilter is what a filter does with one system call.
type callFilter struct {
	// always is the action where no rule looks at arguments, nil without.
	always *uint32
	// rules look at arguments, in their order.
	rules []api.SeccompRule
}

// compileSeccomp makes a program of a filter.
func compileSeccomp(s *api.Seccomp, table *kernel.SyscallTable) (bpf.Program, error) {
	calls, err := filterCalls(s, table)
	if err != nil {
		return bpf.Program{}, err
	}
	fallback := seccompReturn(s.Default, s.Errno)
	numbers := make([]uint32, 0, len(calls))
	for n := range calls {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)

	var leaves []seccompRange
	next := uint32(0)
	for _, n := range numbers {
		if n > next {
			leaves = append(leaves, seccompRange{next, ret(fallback)})
		}
		leaves = append(leaves, seccompRange{n, callCode(calls[n], fallback)})
		next = n + 1
	}
	// A profile knows the calls of its time. What is newer is not there, rather
	// than forbidden: programs then do with what they did before. So does runc.
	beyond := fallback
	if s.Default != api.SeccompAllow && s.Default != api.SeccompLog && len(numbers) > 0 {
		beyond = seccompReturn(api.SeccompErrno, errnoNoSys)
	}
	leaves = append(leaves, seccompRange{next, ret(beyond)})
	leaves = mergeRanges(leaves)

	code := []bpf.Instruction{
		bpf.Stmt(bpf.Ld|bpf.Abs|bpf.W, seccompArchAt),
		bpf.Jump(bpf.Jmp|bpf.Jeq|bpf.K, table.AuditNumber, 1, 0),
		bpf.Stmt(bpf.Ret|bpf.K, uint32(linux.SECCOMP_RET_KILL_THREAD)),
		bpf.Stmt(bpf.Ld|bpf.Abs|bpf.W, seccompNumberAt),
		bpf.Jump(bpf.Jmp|bpf.Jge|bpf.K, x32Bit, 0, 1),
		bpf.Stmt(bpf.Ret|bpf.K, seccompReturn(api.SeccompErrno, errnoNoSys)),
	}
	code = append(code, searchCode(leaves)...)
	if len(code) > bpf.MaxInstructions {
		return bpf.Program{}, api.Errorf(api.KindLimit, "seccomp: the filter has %d instructions, at most %d", len(code), bpf.MaxInstructions)
	}
	program, err := bpf.Compile(code, true)
	if err != nil {
		return bpf.Program{}, fmt.Errorf("compile the seccomp filter: %w", err)
	}
	return program, nil
}

// filterCalls sorts the rules by the numbers of system calls, as libseccomp does:
// a rule that looks at no argument holds for all calls of a number, whatever
// others say; the first of several.
func filterCalls(s *api.Seccomp, table *kernel.SyscallTable) (map[uint32]*callFilter, error) {
	number := make(map[string]uint32, len(table.Table))
	for n, call := range table.Table {
		if call.Name != "" {
			number[call.Name] = uint32(n)
		}
	}
	calls := make(map[uint32]*callFilter)
	total := 0
	for _, r := range s.Rules {
		action := seccompReturn(r.Action, r.Errno)
		for _, name := range r.Names {
			n, ok := number[name]
			if !ok {
				continue // Of another architecture, or unknown to this kernel: nobody can call it.
			}
			f := calls[n]
			if f == nil {
				f = &callFilter{}
				calls[n] = f
			}
			switch {
			case len(r.Args) > 0:
				split := splitRule(r)
				// Each becomes more than one instruction.
				if total += len(split); total > bpf.MaxInstructions {
					return nil, api.Errorf(api.KindLimit, "seccomp: more than %d rules that look at arguments", bpf.MaxInstructions)
				}
				f.rules = append(f.rules, split...)
			case f.always == nil:
				f.always = &action
			}
		}
	}
	return calls, nil
}

// splitRule makes a rule that looks at an argument twice one rule for each of its
// conditions: runc takes the one for the other, since profiles rely on it.
func splitRule(r api.SeccompRule) []api.SeccompRule {
	var seen [6]bool
	twice := false
	for _, a := range r.Args {
		twice = twice || seen[a.Index]
		seen[a.Index] = true
	}
	if !twice {
		return []api.SeccompRule{r}
	}
	rules := make([]api.SeccompRule, len(r.Args))
	for i, a := range r.Args {
		rules[i] = api.SeccompRule{Action: r.Action, Errno: r.Errno, Args: []api.SeccompArg{a}}
	}
	return rules
}

// seccompReturn is the value that a filter ends with. The guest's kernel ends a
// thread where it is to end a process, and would do so too where it is to log.
func seccompReturn(a api.SeccompAction, errno uint16) uint32 {
	switch a {
	case api.SeccompAllow, api.SeccompLog:
		return uint32(linux.SECCOMP_RET_ALLOW)
	case api.SeccompErrno:
		return uint32(linux.SECCOMP_RET_ERRNO) | uint32(errno)
	case api.SeccompTrap:
		return uint32(linux.SECCOMP_RET_TRAP) | uint32(errno)
	case api.SeccompTrace:
		return uint32(linux.SECCOMP_RET_TRACE) | uint32(errno)
	}
	return uint32(linux.SECCOMP_RET_KILL_THREAD)
}

func ret(value uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.Stmt(bpf.Ret|bpf.K, value)}
}

// callCode decides about one system call, whose number is known.
func callCode(f *callFilter, fallback uint32) []bpf.Instruction {
	if f.always != nil {
		return ret(*f.always)
	}
	var code []bpf.Instruction
	for _, r := range f.rules {
		code = append(code, ruleCode(&r)...)
	}
	return append(code, ret(fallback)...)
}

// ruleCode ends with the rule's action where all its conditions hold, and goes on
// behind itself otherwise.
func ruleCode(r *api.SeccompRule) []bpf.Instruction {
	code := ret(seccompReturn(r.Action, r.Errno))
	for _, a := range slices.Backward(r.Args) {
		code = append(argCode(a, len(code)), code...)
	}
	return code
}

// argCode goes on behind itself where a condition holds, and behind the rest of
// its rule otherwise. Registers have 32 bits: the high half is looked at first.
func argCode(a api.SeccompArg, rest int) []bpf.Instruction {
	at := uint32(seccompArgsAt + 8*a.Index)
	low := bpf.Stmt(bpf.Ld|bpf.Abs|bpf.W, at)
	high := bpf.Stmt(bpf.Ld|bpf.Abs|bpf.W, at+4)
	jump := func(op uint16, k uint32, yes, no int) bpf.Instruction {
		return bpf.Jump(bpf.Jmp|op|bpf.K, k, uint8(yes), uint8(no))
	}
	v, vh := uint32(a.Value), uint32(a.Value>>32)
	switch a.Op {
	case api.SeccompMasked:
		w, wh := uint32(a.ValueTwo), uint32(a.ValueTwo>>32)
		return []bpf.Instruction{
			high, bpf.Stmt(bpf.Alu|bpf.And|bpf.K, vh), jump(bpf.Jeq, wh, 0, 3+rest),
			low, bpf.Stmt(bpf.Alu|bpf.And|bpf.K, v), jump(bpf.Jeq, w, 0, rest),
		}
	case api.SeccompEqual:
		return []bpf.Instruction{high, jump(bpf.Jeq, vh, 0, 2+rest), low, jump(bpf.Jeq, v, 0, rest)}
	case api.SeccompNotEqual:
		return []bpf.Instruction{high, jump(bpf.Jeq, vh, 0, 2), low, jump(bpf.Jeq, v, rest, 0)}
	case api.SeccompGreater, api.SeccompGreaterEqual:
		op := uint16(bpf.Jgt)
		if a.Op == api.SeccompGreaterEqual {
			op = bpf.Jge
		}
		return []bpf.Instruction{high, jump(bpf.Jgt, vh, 3, 0), jump(bpf.Jeq, vh, 0, 2+rest), low, jump(op, v, 0, rest)}
	default: // Less and less or equal: the opposite of the two above.
		op := uint16(bpf.Jge)
		if a.Op == api.SeccompLessEqual {
			op = bpf.Jgt
		}
		return []bpf.Instruction{high, jump(bpf.Jgt, vh, 3+rest, 0), jump(bpf.Jeq, vh, 0, 2), low, jump(op, v, rest, 0)}
	}
}

// seccompRange is what is done with the calls from a number up to the next range.
type seccompRange struct {
	from uint32
	code []bpf.Instruction
}

// mergeRanges makes one range of neighbours that do the same.
func mergeRanges(ranges []seccompRange) []seccompRange {
	return slices.CompactFunc(ranges, func(a, b seccompRange) bool { return slices.Equal(a.code, b.code) })
}

// searchCode finds the range of the number in the register, by halves. Conditional
// jumps reach 255 instructions: longer ways take an unconditional one.
func searchCode(ranges []seccompRange) []bpf.Instruction {
	if len(ranges) == 1 {
		return ranges[0].code
	}
	middle := len(ranges) / 2
	below, above := searchCode(ranges[:middle]), searchCode(ranges[middle:])
	code := []bpf.Instruction{
		bpf.Jump(bpf.Jmp|bpf.Jge|bpf.K, ranges[middle].from, 0, 1),
		bpf.Stmt(bpf.Jmp|bpf.Ja, uint32(len(below))),
	}
	return append(append(code, below...), above...)
}

// confinement prepares what a process' spec asks for beyond its creation: what is
// returned is called before the process runs.
func confinement(p *api.Process) (func(*kernel.ThreadGroup), error) {
	var filter *bpf.Program
	if p.Seccomp != nil {
		table, ok := kernel.LookupSyscallTable(abi.Linux, arch.Host)
		if !ok {
			return nil, api.Errorf(api.KindInternal, "seccomp: the guest's kernel has no table of system calls")
		}
		program, err := compileSeccomp(p.Seccomp, table)
		if err != nil {
			return nil, err
		}
		filter = &program
	}
	return func(tg *kernel.ThreadGroup) {
		leader := tg.Leader()
		if p.OOMScoreAdj != nil {
			if err := leader.SetOOMScoreAdj(int32(*p.OOMScoreAdj)); err != nil {
				panic(fmt.Sprintf("oom_score_adj %d, which was checked: %v", *p.OOMScoreAdj, err))
			}
		}
		if filter != nil {
			if err := leader.AppendSyscallFilter(*filter, true); err != nil {
				panic(fmt.Sprintf("seccomp filter of %d instructions, which is within the limit: %v", filter.Length(), err))
			}
		}
	}, nil
}
