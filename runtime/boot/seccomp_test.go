// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"encoding/binary"
	"fmt"
	"testing"

	"gvisor.dev/gvisor/pkg/abi"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"z.gfire.dev/gvx/runtime/api"
)

// guestTable is the table of the guest's system calls.
func guestTable(t *testing.T) *kernel.SyscallTable {
	t.Helper()
	table, ok := kernel.LookupSyscallTable(abi.Linux, arch.Host)
	if !ok {
		t.Fatal("no table of system calls")
	}
	return table
}

// answer runs a filter on a call and says what it returns.
func answer(t *testing.T, s *api.Seccomp, name string, args ...uint64) string {
	t.Helper()
	table := guestTable(t)
	number, err := table.LookupNo(name)
	if err != nil {
		t.Fatal(err)
	}
	return answerTo(t, s, table.AuditNumber, uint32(number), args...)
}

func answerTo(t *testing.T, s *api.Seccomp, audit, number uint32, args ...uint64) string {
	t.Helper()
	program, err := compileSeccomp(s, guestTable(t))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.NativeEndian.PutUint32(data, number)
	binary.NativeEndian.PutUint32(data[4:], audit)
	for i, a := range args {
		binary.NativeEndian.PutUint64(data[16+8*i:], a)
	}
	v, err := bpf.Exec[bpf.NativeEndian](program, bpf.Input(data))
	if err != nil {
		t.Fatal(err)
	}
	action := linux.BPFAction(v)
	switch action & linux.SECCOMP_RET_ACTION_FULL {
	case linux.SECCOMP_RET_ALLOW:
		return "allow"
	case linux.SECCOMP_RET_ERRNO:
		return fmt.Sprint("errno ", action.Data())
	case linux.SECCOMP_RET_TRAP:
		return "trap"
	case linux.SECCOMP_RET_TRACE:
		return fmt.Sprint("trace ", action.Data())
	case linux.SECCOMP_RET_KILL_THREAD:
		return "kill"
	}
	return fmt.Sprintf("%#x", v)
}

func rule(action api.SeccompAction, errno uint16, args []api.SeccompArg, names ...string) api.SeccompRule {
	return api.SeccompRule{Names: names, Action: action, Errno: errno, Args: args}
}

func TestSeccompActions(t *testing.T) {
	s := &api.Seccomp{Default: api.SeccompErrno, Errno: 1, Rules: []api.SeccompRule{
		rule(api.SeccompAllow, 0, nil, "read", "write", "exit_group", "no_such_call"),
		rule(api.SeccompErrno, 38, nil, "clone3"),
		rule(api.SeccompKillProcess, 0, nil, "mount"),
		rule(api.SeccompKillThread, 0, nil, "umount2"),
		rule(api.SeccompTrap, 0, nil, "ptrace"),
		rule(api.SeccompTrace, 7, nil, "chroot"),
		rule(api.SeccompLog, 0, nil, "sethostname"),
		rule(api.SeccompErrno, 2, nil, "read"), // The first one counts.
	}}
	for name, want := range map[string]string{
		"read": "allow", "write": "allow", "exit_group": "allow", "clone3": "errno 38", "mount": "kill", "umount2": "kill", "ptrace": "trap",
		"chroot": "trace 7", "sethostname": "allow", "setns": "errno 1", "socket": "errno 1",
	} {
		if got := answer(t, s, name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	table := guestTable(t)
	// What is newer than all that the profile names does not exist.
	last, err := table.LookupNo("clone3")
	if err != nil {
		t.Fatal(err)
	}
	for number, want := range map[uint32]string{uint32(last) + 1: "errno 38", 4000: "errno 38", x32Bit: "errno 38", x32Bit + 1: "errno 38", 1<<32 - 1: "errno 38"} {
		if got := answerTo(t, s, table.AuditNumber, number); got != want {
			t.Errorf("number %d: %s, want %s", number, got, want)
		}
	}
	if got := answerTo(t, s, table.AuditNumber^1, 0); got != "kill" {
		t.Errorf("another architecture: %s", got)
	}
	open := &api.Seccomp{Default: api.SeccompAllow, Rules: []api.SeccompRule{rule(api.SeccompErrno, 1, nil, "getcwd")}}
	if got := answerTo(t, open, table.AuditNumber, 4000); got != "allow" {
		t.Errorf("a new call where all is allowed: %s", got)
	}
	if got := answer(t, &api.Seccomp{Default: api.SeccompKillThread}, "read"); got != "kill" {
		t.Errorf("no rule: %s", got)
	}
}

// TestSeccompComparisons tries each comparison around its value, in both halves of
// the 64 bits.
func TestSeccompComparisons(t *testing.T) {
	const v = 5<<32 | 7
	around := []uint64{0, 7, v - 1, v, v + 1, 5 << 32, 6 << 32, 4<<32 | 7, 4<<32 | 9, 6<<32 | 1, 1<<64 - 1}
	for op, holds := range map[api.SeccompOp]func(a uint64) bool{
		api.SeccompEqual:        func(a uint64) bool { return a == v },
		api.SeccompNotEqual:     func(a uint64) bool { return a != v },
		api.SeccompGreater:      func(a uint64) bool { return a > v },
		api.SeccompGreaterEqual: func(a uint64) bool { return a >= v },
		api.SeccompLess:         func(a uint64) bool { return a < v },
		api.SeccompLessEqual:    func(a uint64) bool { return a <= v },
		api.SeccompMasked:       func(a uint64) bool { return a&v == 4<<32|7 },
	} {
		for index := range uint(6) {
			args := []api.SeccompArg{{Index: index, Op: op, Value: v}}
			if op == api.SeccompMasked {
				args[0].ValueTwo = 4<<32 | 7
			}
			// Behind it another rule, and a condition that always holds.
			args = append(args, api.SeccompArg{Index: (index + 1) % 6, Op: api.SeccompEqual, Value: 3})
			s := &api.Seccomp{Default: api.SeccompKillThread, Rules: []api.SeccompRule{
				rule(api.SeccompAllow, 0, args, "personality"),
				rule(api.SeccompErrno, 9, []api.SeccompArg{{Index: (index + 1) % 6, Op: api.SeccompEqual, Value: 4}}, "personality"),
			}}
			for _, a := range around {
				given := make([]uint64, 6)
				given[index], given[(index+1)%6] = a, 3
				want := "kill"
				if holds(a) {
					want = "allow"
				}
				if got := answer(t, s, "personality", given...); got != want {
					t.Errorf("argument %d = %#x %s %#x: %s, want %s", index, a, op, uint64(v), got, want)
				}
				given[(index+1)%6] = 4
				if got := answer(t, s, "personality", given...); got != "errno 9" {
					t.Errorf("argument %d = %#x %s %#x: the second rule gives %s", index, a, op, uint64(v), got)
				}
			}
		}
	}
}

// TestSeccompRules checks how rules for one call go together.
func TestSeccompRules(t *testing.T) {
	equal := func(v uint64) api.SeccompArg { return api.SeccompArg{Op: api.SeccompEqual, Value: v} }
	either := &api.Seccomp{Default: api.SeccompErrno, Errno: 1, Rules: []api.SeccompRule{
		rule(api.SeccompAllow, 0, []api.SeccompArg{equal(1), equal(2)}, "personality"),
	}}
	for v, want := range map[uint64]string{1: "allow", 2: "allow", 3: "errno 1"} {
		if got := answer(t, either, "personality", v); got != want {
			t.Errorf("one argument twice, %d: %s, want %s", v, got, want)
		}
	}
	both := &api.Seccomp{Default: api.SeccompErrno, Errno: 1, Rules: []api.SeccompRule{
		rule(api.SeccompAllow, 0, []api.SeccompArg{equal(1)}, "personality"),
		rule(api.SeccompErrno, 5, nil, "personality"),
	}}
	if got := answer(t, both, "personality", 1); got != "errno 5" {
		t.Errorf("a rule without arguments beside one with: %s", got)
	}
}

func TestSeccompLimits(t *testing.T) {
	s := &api.Seccomp{Default: api.SeccompErrno}
	for range bpf.MaxInstructions + 1 {
		s.Rules = append(s.Rules, rule(api.SeccompAllow, 0, []api.SeccompArg{{Op: api.SeccompEqual, Value: uint64(len(s.Rules))}}, "read"))
	}
	if _, err := compileSeccomp(s, guestTable(t)); api.KindOf(err) != api.KindLimit {
		t.Errorf("many rules: %v", err)
	}
	s.Rules = s.Rules[:bpf.MaxInstructions/4]
	if _, err := compileSeccomp(s, guestTable(t)); api.KindOf(err) != api.KindLimit {
		t.Errorf("many instructions: %v", err)
	}
}
