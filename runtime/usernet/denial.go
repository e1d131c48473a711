// SPDX-License-Identifier: Apache-2.0

// Denials: reported, but not so many that a guest could fill a disk with them.

package usernet

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// denialsPerWindow are reported in each denialWindow; the rest is counted.
	denialsPerWindow = 20
	denialWindow     = time.Second
)

// Denial is a connection that the policy did not allow.
type Denial struct {
	Protocol netwire.Protocol
	// From is the guest's end, To what it wanted to reach.
	From, To netip.AddrPort
	// Reason is the rule, or what kind of address it is.
	Reason string
	// Unreported are denials before this one that were too many to report.
	Unreported int
}

// String is the line for a log.
func (d Denial) String() string {
	to := d.To.String()
	if d.Protocol == netwire.Echo {
		to = d.To.Addr().String()
	}
	s := fmt.Sprintf("egress denied: %s %s from %s: %s", d.Protocol, to, d.From, d.Reason)
	if d.Unreported > 0 {
		s += fmt.Sprintf(" (and %d before it)", d.Unreported)
	}
	return s
}

// denials decides which are reported.
type denials struct {
	mu      sync.Mutex
	window  time.Time
	count   int
	skipped int
}

// admit says whether one more is reported, and how many were not before it.
func (d *denials) admit(now time.Time) (unreported int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.window) >= denialWindow {
		d.window, d.count = now, 0
	}
	if d.count >= denialsPerWindow {
		d.skipped++
		return 0, false
	}
	d.count++
	unreported, d.skipped = d.skipped, 0
	return unreported, true
}
