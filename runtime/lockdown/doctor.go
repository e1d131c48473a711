// SPDX-License-Identifier: Apache-2.0

package lockdown

// State is what [Doctor] found about one layer or facility.
type State string

const (
	// StateUsed means that sandboxes started here and now have it.
	StateUsed State = "used"
	// StatePresent means that the host has it and sandboxes can go without.
	StatePresent State = "present"
	// StateMissing means that the host lacks it or refuses it to this user.
	StateMissing State = "missing"
)

// Layer is one line of doctor's report.
type Layer struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Detail is what was found: a version, a number, an error.
	Detail string `json:"detail,omitempty"`
	// Meaning says what the state means for sandboxes, and what to do about it
	// where something can be done.
	Meaning string `json:"meaning"`
	// Fatal says that no sandbox can run while this is missing.
	Fatal bool `json:"fatal,omitempty"`
}
