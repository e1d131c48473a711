// SPDX-License-Identifier: Apache-2.0

//go:build compromised

package compromised

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"

	"z.gfire.dev/gvx/runtime/lockdown"
	"z.gfire.dev/gvx/runtime/lockdown/policy"
)

// processName is argv[0] of a sandbox process: the launcher, which is the same
// binary, must not attack anybody.
const processName = "gvx-sandbox"

// mode is the content of the mode file.
type mode struct {
	Action    string `json:"action"`
	Attack    string `json:"attack"`
	Without   int    `json:"without"`
	Neighbour int    `json:"neighbour"`
	Egress    egress `json:"egress"`
}

// Result is how one attack ended.
type Result struct {
	Name string `json:"name"`
	// Permitted says that the attack uses only calls of the allow-list.
	Permitted bool `json:"permitted"`
	// Err is what refused it; empty if it succeeded.
	Err string `json:"err"`
	// Errno is the error as a number.
	Errno int `json:"errno"`
}

var (
	chosen  = mode{Action: "kill", Without: -1}
	results *os.File
)

// The mode is read before main, while the process can still open files.
func init() {
	if len(os.Args) != 1 || os.Args[0] != processName {
		return
	}
	binary, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	doc, err := os.ReadFile(binary + ".mode")
	if err != nil {
		return
	}
	if err := json.Unmarshal(doc, &chosen); err != nil {
		panic(err)
	}
	if results, err = os.OpenFile(binary+".result", os.O_WRONLY|os.O_APPEND, 0); err != nil {
		panic(err)
	}
}

// Filter stands in for [lockdown.Filter].
func Filter(o lockdown.FilterOptions) ([]bpf.Instruction, error) {
	switch chosen.Action {
	case "refuse":
		o.Action = lockdown.Refuse
	case "ignore":
		o.Action = lockdown.Action(linux.SECCOMP_RET_ALLOW)
	}
	if chosen.Without < 0 {
		return lockdown.Filter(o)
	}
	arch := policy.Arch(runtime.GOARCH)
	table := policy.Table(arch)
	if chosen.Without >= len(table) {
		return nil, fmt.Errorf("the table has %d entries, no number %d", len(table), chosen.Without)
	}
	table = append(table[:chosen.Without], table[chosen.Without+1:]...)
	p, err := policy.Compile(arch, table)
	if err != nil {
		return nil, err
	}
	return lockdown.Load(p, o)
}

// Run carries out the chosen attacks. It is called after the filter is in
// force, before the guest exists.
func Run() {
	defer close(locked())
	if chosen.Attack == "" || results == nil {
		return
	}
	out := json.NewEncoder(results)
	for _, a := range attacks() {
		if chosen.Attack != "all" && chosen.Attack != a.name {
			continue
		}
		if a.final && chosen.Action == "ignore" {
			continue // it would work, or end the process
		}
		r := Result{Name: a.name, Permitted: a.permitted}
		if err := a.try(); err != nil {
			r.Err = err.Error()
			var errno unix.Errno
			if errors.As(err, &errno) {
				r.Errno = int(errno)
			}
		}
		if err := out.Encode(r); err != nil {
			panic(err)
		}
	}
}
