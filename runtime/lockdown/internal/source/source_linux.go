// SPDX-License-Identifier: Apache-2.0

// Package source writes a compiled seccomp table as a Go source file. The
// generator saves it; a test compares it with the file in the tree.
package source

import (
	"bytes"
	"fmt"
	"go/format"

	"z.gfire.dev/gvx/runtime/lockdown/policy"
)

// perLine is how many instructions share a line of the generated file.
const perLine = 6

// FileName returns the name of the generated file for arch.
func FileName(arch policy.Arch) string { return fmt.Sprintf("filter_linux_%s.go", arch) }

// Generate returns the generated file's text for arch.
func Generate(arch policy.Arch) ([]byte, error) {
	p, err := policy.Compile(arch, policy.Table(arch))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprint(&b, "// SPDX-License-Identifier: Apache-2.0\n\n// Code generated from runtime/lockdown/policy by go generate. DO NOT EDIT.\n\n")
	fmt.Fprint(&b, "package lockdown\n\n")
	fmt.Fprintf(&b, "// program is the compiled allow-list for %s, with placeholders.\nvar program = [...]instruction{\n", arch)
	for i, ins := range p.Instructions {
		end := ", "
		if i%perLine == perLine-1 || i == len(p.Instructions)-1 {
			end = ",\n"
		}
		fmt.Fprintf(&b, "{%#x, %d, %d, %#x}%s", ins.OpCode, ins.JumpIfTrue, ins.JumpIfFalse, ins.K, end)
	}
	fmt.Fprint(&b, "}\n\n// patches are the places of the placeholders.\nvar patches = [...]patch{\n")
	names := map[policy.Variable]string{policy.SelfPID: "selfPID", policy.ListenFD: "listenFD", policy.BrokerFD: "brokerFD", policy.StreamsFD: "streamsFD", policy.ThreadPriority: "threadPriority"}
	for _, pt := range p.Patches {
		fmt.Fprintf(&b, "{%d, %s, %t},\n", pt.Index, names[pt.Var], pt.High)
	}
	fmt.Fprint(&b, "}\n")
	return format.Source(b.Bytes())
}
