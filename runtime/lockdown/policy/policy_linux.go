// SPDX-License-Identifier: Apache-2.0

// Package policy is the seccomp allow-lists as data, of the sandbox process, of one
// that a gofer serves, and of the gofer: one [Entry] per permitted form of a system
// call, each with the reason why the Sentry, its platform, the Go runtime or the
// gofer cannot do without it. Rule of the house: no reason, no entry.
//
// It owns the tables and their compilation to BPF programs. It installs nothing
// and is never linked into the sandbox: programs are compiled at build time
// (see ../internal/gen) because compiling takes some 7 ms, a third of a
// sandbox's boot. Tests read the tables to check the live process against them.
//
// The tables are pure allow-lists. What is not in one ends the process
// (SECCOMP_RET_KILL_PROCESS), and that is deliberate: a Sentry that makes
// another system call is either broken or taken over.
package policy

import (
	"fmt"
	"strings"
)

// Arch names a processor architecture as GOARCH does.
type Arch string

// The architectures that the table covers.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// Variable is a value that is known only when the filter is loaded. The
// compiled program carries a placeholder in its place.
type Variable int

const (
	// NoVariable marks a condition on a constant.
	NoVariable Variable = iota
	// SelfPID is the sandbox process' id as it sees it itself.
	SelfPID
	// ListenFD is the donated listening socket, all ones if there is none.
	ListenFD
	// BrokerFD is the donated channel to the network's broker, all ones if
	// there is none.
	BrokerFD
	// StreamsFD is the donated socket on which a client's streams arrive, all
	// ones if there is none.
	StreamsFD
	// TreesFD is the lowest number of the sockets to the gofer: above them the
	// kernel gives no number away, see lockdown.ReserveAbove. Zero is any
	// descriptor.
	TreesFD
	// ThreadPriority is the nice value that systrap gives its stub threads:
	// one more than the process' own at the time the platform starts.
	ThreadPriority
	variables
)

// Op is how a condition compares an argument.
type Op int

const (
	// Equal compares all 64 bits with Value, or with Var's value.
	Equal Op = iota
	// OneOf is Equal to any of Values.
	OneOf
	// Masked compares the bits of Mask with Value.
	Masked
	// AtLeast accepts Value, or Var's value, and all above it.
	AtLeast
	// Descriptor accepts 0 to 2^31-1: a descriptor, but not AT_FDCWD.
	Descriptor
)

// Cond is a condition on one argument of a system call.
type Cond struct {
	// Arg is the argument's index, from 0.
	Arg    int
	Op     Op
	Value  uint64
	Mask   uint64
	Values []uint64
	Var    Variable
}

// Entry is one permitted form of a system call: its name, what its arguments
// must be (all conditions hold; none means any), and why it is needed.
type Entry struct {
	Syscall string
	Args    []Cond
	Reason  string
	// Only restricts the entry to one architecture; empty means all.
	Only Arch
}

// Match reports whether the entry permits a call with these arguments. vars
// holds the variables' values.
func (e *Entry) Match(args [6]uint64, vars map[Variable]uint64) bool {
	for _, c := range e.Args {
		if !c.match(args[c.Arg], vars) {
			return false
		}
	}
	return true
}

func (c *Cond) match(v uint64, vars map[Variable]uint64) bool {
	switch c.Op {
	case Equal:
		if c.Var != NoVariable {
			return v == vars[c.Var]
		}
		return v == c.Value
	case AtLeast:
		if c.Var != NoVariable {
			return v >= vars[c.Var]
		}
		return v >= c.Value
	case OneOf:
		for _, w := range c.Values {
			if v == w {
				return true
			}
		}
		return false
	case Masked:
		return v&c.Mask == c.Value
	default: // Descriptor
		return v < 1<<31
	}
}

// String writes the entry as a call, for listings and test failures.
func (e *Entry) String() string {
	parts := make([]string, 0, len(e.Args))
	for _, c := range e.Args {
		parts = append(parts, c.String())
	}
	return e.Syscall + "(" + strings.Join(parts, ", ") + ")"
}

// String writes the condition with its argument's index.
func (c *Cond) String() string {
	switch {
	case c.Var == SelfPID:
		return fmt.Sprintf("%d=self", c.Arg)
	case c.Var == ListenFD:
		return fmt.Sprintf("%d=listener", c.Arg)
	case c.Var == BrokerFD:
		return fmt.Sprintf("%d=broker", c.Arg)
	case c.Var == StreamsFD:
		return fmt.Sprintf("%d=streams", c.Arg)
	case c.Var == TreesFD:
		return fmt.Sprintf("%d≥trees", c.Arg)
	case c.Var == ThreadPriority:
		return fmt.Sprintf("%d=priority", c.Arg)
	case c.Op == Equal:
		return fmt.Sprintf("%d=%#x", c.Arg, c.Value)
	case c.Op == AtLeast:
		return fmt.Sprintf("%d≥%#x", c.Arg, c.Value)
	case c.Op == OneOf:
		return fmt.Sprintf("%d∈%#x", c.Arg, c.Values)
	case c.Op == Masked:
		return fmt.Sprintf("%d&%#x=%#x", c.Arg, c.Mask, c.Value)
	default:
		return fmt.Sprintf("%d=fd", c.Arg)
	}
}

// Shorthands that keep the table readable.

func is(arg int, v uint64) Cond           { return Cond{Arg: arg, Op: Equal, Value: v} }
func variable(arg int, v Variable) Cond   { return Cond{Arg: arg, Op: Equal, Var: v} }
func from(arg int, v Variable) Cond       { return Cond{Arg: arg, Op: AtLeast, Var: v} }
func anyOf(arg int, v ...uint64) Cond     { return Cond{Arg: arg, Op: OneOf, Values: v} }
func descriptor(arg int) Cond             { return Cond{Arg: arg, Op: Descriptor} }
func within(arg int, allowed uint64) Cond { return Cond{Arg: arg, Op: Masked, Mask: ^allowed} }
func has(arg int, bits uint64) Cond       { return Cond{Arg: arg, Op: Masked, Mask: bits, Value: bits} }
func args(c ...Cond) []Cond               { return c }
func only(arch Arch, e Entry) Entry       { e.Only = arch; return e }
