// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/socket/hostinet"
)

// TestHostOptionsAreGVisors: a guest that asks for an option which gVisor hands on
// would end its sandbox where the table lacks it; what gVisor does not hand on is none
// of the table's.
func TestHostOptionsAreGVisors(t *testing.T) {
	var want, have []sockOpt
	for _, o := range hostinet.SockOpts {
		want = append(want, sockOpt{o.Level, o.Name, o.AllowSet, o.AllowGet})
	}
	for _, o := range hostOptions {
		for _, of := range []struct {
			names    []uint64
			set, get bool
		}{{o.both, true, true}, {o.setOnly, true, false}, {o.getOnly, false, true}} {
			for _, name := range of.names {
				have = append(have, sockOpt{o.level, name, of.set, of.get})
			}
		}
	}
	for _, o := range want {
		if !slices.Contains(have, o) {
			t.Errorf("the table lacks %+v", o)
		}
	}
	for _, o := range have {
		if !slices.Contains(want, o) {
			t.Errorf("gVisor hands on no %+v", o)
		}
	}
}

// sockOpt is an option of a socket, and what a guest may do with it.
type sockOpt struct {
	level, name uint64
	set, get    bool
}
