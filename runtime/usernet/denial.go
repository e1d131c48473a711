// SPDX-License-Identifier: Apache-2.0

// Denials: reported, but not so many that a guest could fill a disk with them.

package usernet

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// denialsPerWindow are reported in each denialWindow; the rest is counted.
	denialsPerWindow = 20
	denialWindow     = time.Second
	// recentDenials are kept to be asked for.
	recentDenials = 512
)

// Denial is a connection, or a name, that the policy did not allow.
type Denial struct {
	At       time.Time
	Protocol netwire.Protocol
	// From is the guest's end, To what it wanted to reach.
	From, To netip.AddrPort
	// Name is what it wanted to know the address of, if that was denied.
	Name string
	// By is the guest's process, as the sandbox tells it.
	By netwire.Process
	// Reason is the rule, or what kind of address it is.
	Reason string
	// Ended says that the connection existed and was ended by a change.
	Ended bool
	// Unreported are denials before this one that were too many to report.
	Unreported int
}

// Target is what was denied: an address, with its port if it has one, or a name.
func (d *Denial) Target() string {
	switch {
	case d.Name != "":
		return "name " + d.Name
	case d.Protocol == netwire.Echo:
		return d.Protocol.String() + " " + d.To.Addr().String()
	}
	return d.Protocol.String() + " " + d.To.String()
}

// String is the line for a log.
func (d Denial) String() string {
	verb := "denied"
	if d.Ended {
		verb = "ended"
	}
	s := fmt.Sprintf("egress %s: %s from %s, process %s: %s", verb, d.Target(), d.From, d.By, d.Reason)
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
	// recent is a ring of what was admitted; next is where it goes on.
	recent []Denial
	next   int
}

// add enters a denial and says whether it is one to report.
func (d *denials) add(denial *Denial) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	unreported, ok := d.admit(denial.At)
	if !ok {
		return false
	}
	denial.Unreported = unreported
	if len(d.recent) < recentDenials {
		d.recent = append(d.recent, *denial)
	} else {
		d.recent[d.next] = *denial
	}
	d.next = (d.next + 1) % recentDenials
	return true
}

// list returns the denials that are kept, the oldest first, and how many came
// after the last of them.
func (d *denials) list() (kept []Denial, unreported int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.recent) == recentDenials {
		kept = append(kept, d.recent[d.next:]...)
		return append(kept, d.recent[:d.next]...), d.skipped
	}
	return append(kept, d.recent...), d.skipped
}

// admit says whether one more is reported, and how many were not before it. The
// caller holds d.mu.
func (d *denials) admit(now time.Time) (unreported int, ok bool) {
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

// printable is what a guest wrote in a form that does a terminal no harm.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
