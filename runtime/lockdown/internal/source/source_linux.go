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

// Arches are those that programs are generated for.
var Arches = []policy.Arch{policy.AMD64, policy.ARM64}

// Program is a table and the names that its compiled form has.
type Program struct {
	// file is where it goes, less "_linux_ARCH.go"; name is that of the variable.
	file, name string
	what       string
	table      func(policy.Arch) []policy.Entry
}

// Programs are all that are generated.
var Programs = []Program{
	{"filter", "program", "a sandbox' allow-list", policy.Table},
	{"filter_trees", "treesProgram", "the allow-list of a sandbox with a gofer", policy.TreesTable},
	{"filter_host", "hostProgram", "the allow-list of a sandbox on the host's network", policy.HostNetworkTable},
	{"filter_gofer", "goferProgram", "the gofer's allow-list", policy.GoferTable},
}

// FileName returns the name of the generated file for arch.
func (p *Program) FileName(arch policy.Arch) string {
	return fmt.Sprintf("%s_linux_%s.go", p.file, arch)
}

// variableNames are those of package lockdown.
var variableNames = map[policy.Variable]string{
	policy.SelfPID: "selfPID", policy.ListenFD: "listenFD", policy.BrokerFD: "brokerFD", policy.StreamsFD: "streamsFD",
	policy.TreesFD: "treesFD", policy.ThreadPriority: "threadPriority",
}

// Generate returns the generated file's text for arch.
func (p *Program) Generate(arch policy.Arch) ([]byte, error) {
	compiled, err := policy.Compile(arch, p.table(arch))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprint(&b, "// SPDX-License-Identifier: Apache-2.0\n\n// Code generated from runtime/lockdown/policy by go generate. DO NOT EDIT.\n\n")
	fmt.Fprint(&b, "package lockdown\n\n")
	fmt.Fprintf(&b, "// %s is %s for %s, compiled, with placeholders.\nvar %s = compiled{[]instruction{\n", p.name, p.what, arch, p.name)
	for i, ins := range compiled.Instructions {
		end := ", "
		if i%perLine == perLine-1 || i == len(compiled.Instructions)-1 {
			end = ",\n"
		}
		fmt.Fprintf(&b, "{%#x, %d, %d, %#x}%s", ins.OpCode, ins.JumpIfTrue, ins.JumpIfFalse, ins.K, end)
	}
	fmt.Fprint(&b, "}, []patch{\n")
	for _, pt := range compiled.Patches {
		fmt.Fprintf(&b, "{%d, %s, %t},\n", pt.Index, variableNames[pt.Var], pt.High)
	}
	fmt.Fprint(&b, "}}\n")
	return format.Source(b.Bytes())
}
