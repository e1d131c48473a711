// SPDX-License-Identifier: Apache-2.0

package lockdown

import "os"

// DefaultUIDBase is the first of the uids that a launcher with root's rights
// gives to sandboxes, one each. They lie in a part of the number space that
// neither distributions, nor systemd's dynamic and container ranges (up to
// 1879048191), nor /etc/subuid by default use.
const DefaultUIDBase = 1879048192

// UIDCount is how many uids follow DefaultUIDBase before the range that
// kernels and tools treat as invalid.
const UIDCount = 1 << 24

// Outer describes the layers that a launcher puts around a sandbox process.
type Outer struct {
	// Namespaces are made new: a subset of "user", "pid", "net", "ipc", "mnt",
	// "uts", in this order.
	Namespaces []string
	// UID is what a root launcher drops to, user and group; 0 keeps the
	// launcher's own.
	UID uint32
	// Landlock is the version of the interface to use, 0 for none.
	Landlock int
	// EmptyRoot asks the process to give itself an empty root: see
	// [ShedOptions]. Only with "mnt".
	EmptyRoot bool
	// OwnLandlock leaves Landlock to the process: see [RestrictFiles].
	OwnLandlock bool
	// Capabilities are what the process keeps beyond its start.
	Capabilities []uint

	// network, if not nil, is the network namespace to live in.
	network *os.File
	// hostNetwork leaves the process in the launcher's.
	hostNetwork bool
}
