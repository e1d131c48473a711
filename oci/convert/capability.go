// SPDX-License-Identifier: Apache-2.0

// Guest capabilities. A guest has all of them unless told otherwise: they count
// in the guest's own kernel only, and the boundary is the sandbox.

package convert

import (
	"slices"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// capabilityNames are Linux' capabilities in the order of their numbers.
var capabilityNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER",
	"CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST",
	"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER",
	"CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
	"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE",
	"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
	"CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP",
	"CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
	"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE",
}

// allCapabilities is docker's word for every one.
const allCapabilities = "ALL"

// Capabilities returns all capabilities without those dropped, and with those
// added back: `--cap-drop ALL --cap-add CHOWN` leaves one. Names count with
// and without CAP_, in any case.
func Capabilities(add, drop []string) ([]string, error) {
	adding, err := capabilitySet(add, "add")
	if err != nil {
		return nil, err
	}
	dropping, err := capabilitySet(drop, "drop")
	if err != nil {
		return nil, err
	}
	have := make([]string, 0, len(capabilityNames))
	for _, name := range capabilityNames {
		// A name in both lists stays only if it was dropped as part of ALL:
		// dropping one by name is the stronger word.
		switch {
		case dropping[name]:
		case dropping[allCapabilities] && !adding[name] && !adding[allCapabilities]:
		default:
			have = append(have, name)
		}
	}
	return have, nil
}

func capabilitySet(names []string, verb string) (map[string]bool, error) {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		name := strings.ToUpper(n)
		if name != allCapabilities {
			if !strings.HasPrefix(name, "CAP_") {
				name = "CAP_" + name
			}
			if !slices.Contains(capabilityNames, name) {
				return nil, api.Errorf(api.KindInvalid, "invalid capability to %s: %q is none; see capabilities(7)", verb, n)
			}
		}
		set[name] = true
	}
	return set, nil
}
