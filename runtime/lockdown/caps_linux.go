// SPDX-License-Identifier: Apache-2.0

package lockdown

import "golang.org/x/sys/unix"

// capabilitySets are a thread's effective, permitted and inheritable sets, as
// capget(2) splits them: capabilities 0 to 31 and 32 to 63.
type capabilitySets [2]unix.CapUserData

// capabilities returns the sets of the calling thread.
func capabilities() (capabilitySets, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var s capabilitySets
	err := unix.Capget(&hdr, &s[0])
	return s, err
}

func (s *capabilitySets) none() bool            { return *s == capabilitySets{} }
func (s *capabilitySets) permits(c uint) bool   { return s[c/32].Permitted&(1<<(c%32)) != 0 }
func (s *capabilitySets) effective(c uint) bool { return s[c/32].Effective&(1<<(c%32)) != 0 }

// prctlIs asks prctl for a value and compares it.
func prctlIs(option int, arg uintptr, want int) (bool, error) {
	got, err := unix.PrctlRetInt(option, arg, 0, 0, 0)
	return got == want, err
}
