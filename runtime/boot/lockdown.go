// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/bpf"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// filterResult is a compiled allow-list or why there is none.
type filterResult struct {
	program []bpf.Instruction
	err     error
}

// compileFilter makes the allow-list for this sandbox's descriptors while boot
// goes on.
func (sb *sandbox) compileFilter() <-chan filterResult {
	ch := make(chan filterResult, 1)
	go func() {
		listen := -1
		if fd := sb.spec.ListenFD; fd != api.NoFD {
			listen = int(fd)
		}
		p, err := makeFilter(lockdown.FilterOptions{
			ListenFD: listen, BrokerFD: int(sb.spec.Network.BrokerFD), StreamsFD: int(sb.spec.StreamsFD),
			Trees: sb.hasTrees(), TreesFD: sb.treesFD, HostNetwork: sb.hostNetwork != nil,
		})
		ch <- filterResult{p, err}
	}()
	return ch
}

// lockdown takes from the process everything that it will not need any more.
// After it returns, only the allow-list's system calls work, on every thread.
func (sb *sandbox) lockdown(filter <-chan filterResult) error {
	f := <-filter
	if f.err != nil {
		return fmt.Errorf("compile seccomp allow-list: %w", f.err)
	}
	// Seal reads the layers back before the filter: afterwards nobody could ask.
	layers, err := lockdown.Seal(f.program)
	if err != nil {
		return fmt.Errorf("lock down the sandbox process: %w", err)
	}
	attackHost()
	sb.layers = append(layers, outerLayers(&sb.head.Lockdown)...)
	sb.timeline.reached("locked down")
	return nil
}

// outerLayers names what the launcher put around the process.
func outerLayers(l *api.Lockdown) []string {
	var names []string
	for _, ns := range l.Namespaces {
		names = append(names, ns+" namespace")
	}
	if l.Landlock > 0 {
		names = append(names, fmt.Sprintf("landlock ABI %d", l.Landlock))
	}
	return names
}
