// SPDX-License-Identifier: Apache-2.0

package lockdown

// Landlock, the part that is pure computation: which accesses a ruleset takes
// away under each version of the kernel's interface, and which it gives back.

// Landlock access rights to files, as bits (include/uapi/linux/landlock.h).
const (
	accessExecute    = 1 << 0
	accessWriteFile  = 1 << 1
	accessReadFile   = 1 << 2
	accessReadDir    = 1 << 3
	accessRemoveDir  = 1 << 4
	accessRemoveFile = 1 << 5
	accessMakeChar   = 1 << 6
	accessMakeDir    = 1 << 7
	accessMakeReg    = 1 << 8
	accessMakeSym    = 1 << 12
	accessRefer      = 1 << 13
	accessTruncate   = 1 << 14

	// The number of file access rights that each version knows; all of them
	// are taken away.
	fsRights1 = 13 // execute to make_sym
	fsRights2 = 14 // refer
	fsRights3 = 15 // truncate
	fsRights5 = 16 // ioctl_dev

	netRights4    = 1<<0 | 1<<1 // bind and connect TCP
	scopedRights6 = 1<<0 | 1<<1 // abstract unix sockets, signals
)

// landlockRuleset is what a ruleset handles, and its exceptions.
type landlockRuleset struct {
	// FS, Net and Scoped are the rights that nobody has unless a rule gives
	// them back.
	FS, Net, Scoped uint64
	Rules           []landlockRule
}

// landlockRule gives access rights below a path.
type landlockRule struct {
	Path   string
	Access uint64
}

// sandboxRuleset is the ruleset of a sandbox process for a kernel's Landlock
// version. The process may execute its own binary and, until the allow-list
// forbids it to open anything, read what Go and gVisor read at start below
// /proc and /sys. It may write nowhere, bind and connect no TCP port, reach no
// abstract socket, and signal and trace nobody outside.
//
// A process that handles no file rights may still change its mounts, so that
// is left to one that is going to give itself an empty root, which takes away
// more. Where nothing remains to be handled, the ruleset is empty.
//
// Descriptors opened before keep what they were opened for: the donated ones
// are not affected.
func sandboxRuleset(abi int, binary string, emptyRoot bool) landlockRuleset {
	var r landlockRuleset
	if abi >= 4 {
		r.Net = netRights4
	}
	if abi >= 6 {
		r.Scoped = scopedRights6
	}
	if abi < 1 || emptyRoot {
		return r
	}
	r.FS = fsRights(abi)
	r.Rules = []landlockRule{
		{binary, accessExecute | accessReadFile},
		{"/proc", accessReadFile | accessReadDir},
		{"/sys", accessReadFile | accessReadDir},
	}
	return r
}

// fsRights are all rights to files that a version knows.
func fsRights(abi int) uint64 {
	fs := fsRights1
	switch {
	case abi >= 5:
		fs = fsRights5
	case abi >= 3:
		fs = fsRights3
	case abi >= 2:
		fs = fsRights2
	}
	return 1<<fs - 1
}

// empty says that the ruleset would restrict nothing.
func (r *landlockRuleset) empty() bool { return r.FS|r.Net|r.Scoped == 0 }

// attrSize is the length of the kernel's struct landlock_ruleset_attr that
// holds all that r handles: it grew with the versions, and an older kernel
// refuses a longer one than it knows.
func (r *landlockRuleset) attrSize() uintptr {
	switch {
	case r.Scoped != 0:
		return 24
	case r.Net != 0:
		return 16
	}
	return 8
}
