// SPDX-License-Identifier: Apache-2.0

package state

// Mount is a volume of a container, as it was opened for it.
type Mount struct {
	// Type is "" for a volume, or MountBind.
	Type string `json:"type,omitempty"`
	// Name is the volume's in the store, "" for a file elsewhere and for a
	// volume that goes with its container.
	Name string `json:"name,omitempty"`
	// Source is the file that was asked for, "" for a volume without one; of a
	// bind mount the host's path.
	Source string `json:"source,omitempty"`
	// Files are what is open for it, the lowest base first; the last is "" for
	// what has no name.
	Files []string `json:"files"`
	// Target is the guest's directory.
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Clone says that Source is the base of what the guest writes.
	Clone bool `json:"clone,omitempty"`
	// Propagation is a bind mount's, "" for docker's rprivate.
	Propagation string `json:"propagation,omitempty"`
}

// MountBind is the Type of a directory or file of the host.
const MountBind = "bind"
