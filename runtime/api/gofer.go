// SPDX-License-Identifier: Apache-2.0

// What a gofer process is told, and what the sandbox tells it.

package api

import (
	"encoding/binary"
	"errors"
)

// GoferName is argv[0] of a gofer process.
const GoferName = "gvx-gofer"

// GoferConfigFD is the descriptor on which a gofer process finds its [Gofer], as
// JSON in a sealed memory file. Every other number is named in there.
const GoferConfigFD = 3

// Gofer is what a gofer process is told: the trees of one container.
type Gofer struct {
	// Version is SpecVersion.
	Version int `json:"version"`
	// Trees are served until the sandbox has closed the sockets of all.
	Trees []GoferTree `json:"trees"`
	// Lockdown says which outer layers the launcher has put around the process.
	Lockdown Lockdown `json:"lockdown"`
	// Capabilities are those that the process keeps.
	Capabilities []uint `json:"capabilities,omitempty"`
	// Owner, if not nil, is the one host user whose rights the process has: see
	// [GoferHello].
	Owner *HostUser `json:"owner,omitempty"`
	// LogLevel is "warning", "info" or "debug".
	LogLevel string `json:"logLevel,omitempty"`
}

// HostUser is a user of the host.
type HostUser struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// GoferTree is a directory or a file that a gofer serves.
type GoferTree struct {
	// RootFD is the directory or file, opened with O_PATH.
	RootFD FD `json:"rootFD"`
	// SocketFD is the gofer's end of [HostTree]'s socket.
	SocketFD FD `json:"socketFD"`
	// Detached says that RootFD is the root of a mount of its own, attached
	// nowhere: nothing lies above it.
	Detached bool `json:"detached,omitempty"`
	// Submounts says that what is mounted below the root belongs to the tree.
	Submounts bool `json:"submounts,omitempty"`
	// Follow lets what the host mounts there later appear: in a mount of the host's,
	// not in one of the tree's own.
	Follow bool `json:"follow,omitempty"`
	// ReadOnly refuses all changes.
	ReadOnly bool `json:"readOnly,omitempty"`
	// NoSUID keeps files from getting set-user-id and set-group-id bits and file
	// capabilities.
	NoSUID bool `json:"noSUID,omitempty"`
	// Name is what messages call it: its path on the host.
	Name string `json:"name"`
}

// MaxTrees bounds the trees of one container: all its mounts and its root.
const MaxTrees = MaxMounts + 1

// Validate checks the version and that descriptors are there. It returns an
// [Error] of KindInvalid or KindLimit.
func (g *Gofer) Validate() error {
	switch {
	case g.Version != SpecVersion:
		return Errorf(KindInvalid, "gofer: version %d, want %d: launcher and gofer are different builds", g.Version, SpecVersion)
	case len(g.Trees) == 0 || len(g.Trees) > MaxTrees:
		return Errorf(KindLimit, "gofer: %d trees, want 1 to %d", len(g.Trees), MaxTrees)
	}
	for _, t := range g.Trees {
		if t.RootFD <= GoferConfigFD || t.SocketFD <= GoferConfigFD || t.RootFD == t.SocketFD {
			return Errorf(KindInvalid, "gofer: tree %s: descriptors %d and %d", t.Name, t.RootFD, t.SocketFD)
		}
	}
	return nil
}

// GoferHello is the first thing that a sandbox sends on a tree's socket. A gofer
// that has the rights of one host user only shows this user's files as those of
// UID and GID, and everybody else's as those of nobody: the container's user is the
// host's. One that runs as root shows owners as they are.
type GoferHello struct {
	UID, GID uint32
}

// GoferHelloBytes is how long the message is: "gvxg", UID, GID, little endian.
const GoferHelloBytes = 12

// goferHelloMagic begins the message.
const goferHelloMagic = 0x67787667

// Marshal writes the message.
func (h *GoferHello) Marshal() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, GoferHelloBytes), goferHelloMagic)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, h.UID), h.GID)
}

// Unmarshal reads the message.
func (h *GoferHello) Unmarshal(b []byte) error {
	if len(b) != GoferHelloBytes || binary.LittleEndian.Uint32(b) != goferHelloMagic {
		return errors.New("no hello of a sandbox")
	}
	h.UID, h.GID = binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	return nil
}
