// SPDX-License-Identifier: Apache-2.0

//go:build compromised && linux && (amd64 || arm64)

package lockdown

import (
	"slices"

	"gvisor.dev/gvisor/pkg/bpf"

	"z.gfire.dev/gvx/runtime/lockdown/policy"
)

// Load is [Filter] for a program that was compiled just now, from a changed
// table: tests only.
func Load(p *policy.Program, o FilterOptions) ([]bpf.Instruction, error) {
	values, err := o.values()
	if err != nil {
		return nil, err
	}
	insns := slices.Clone(p.Instructions)
	names := map[policy.Variable]variable{policy.SelfPID: selfPID, policy.ListenFD: listenFD, policy.BrokerFD: brokerFD, policy.StreamsFD: streamsFD, policy.TreesFD: treesFD, policy.ThreadPriority: threadPriority}
	for _, pt := range p.Patches {
		v := values[names[pt.Var]]
		if pt.High {
			v >>= 32
		}
		insns[pt.Index].K = uint32(v)
	}
	o.act(insns)
	return insns, nil
}
