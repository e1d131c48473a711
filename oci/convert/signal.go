// SPDX-License-Identifier: Apache-2.0

// Signals by name, as the guest (Linux, whatever the client runs on) numbers
// them.

package convert

import (
	"strconv"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// Real-time signals: glibc keeps the first two for itself.
const (
	signalRTMin = 34
	signalRTMax = 64
)

// signalNames are Linux' signals from number 1 on.
var signalNames = []string{
	"HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1",
	"SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP",
	"TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH",
	"IO", "PWR", "SYS",
}

// signalAliases are second names.
var signalAliases = map[string]string{"IOT": "ABRT", "CLD": "CHLD", "POLL": "IO"}

// ParseSignal reads a signal's number or name, with or without SIG, also
// RTMIN+n and RTMAX-n.
func ParseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > signalRTMax {
			return 0, api.Errorf(api.KindInvalid, "invalid signal: %s: want 1 to %d", s, signalRTMax)
		}
		return n, nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n, ok := strings.CutPrefix(name, "RTMIN"); ok {
		return realTime(s, signalRTMin, n)
	}
	if n, ok := strings.CutPrefix(name, "RTMAX"); ok {
		return realTime(s, signalRTMax, n)
	}
	if real, ok := signalAliases[name]; ok {
		name = real
	}
	for i, known := range signalNames {
		if name == known {
			return i + 1, nil
		}
	}
	return 0, api.Errorf(api.KindInvalid, "invalid signal: %s", s)
}

func realTime(s string, base int, offset string) (int, error) {
	n := base
	if offset != "" {
		d, err := strconv.Atoi(offset)
		if err != nil || offset[0] != '+' && offset[0] != '-' || d > signalRTMax || d < -signalRTMax {
			return 0, api.Errorf(api.KindInvalid, "invalid signal: %s", s)
		}
		n += d
	}
	if n < signalRTMin || n > signalRTMax {
		return 0, api.Errorf(api.KindInvalid, "invalid signal: %s", s)
	}
	return n, nil
}
