// SPDX-License-Identifier: Apache-2.0

// Whose files are whose, where the process has one user's rights.

package gofer

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"

	"z.gfire.dev/gvx/runtime/api"
)

// keepID is lisafs' NoUID and NoGID.
const keepID = uint32(lisafs.NoUID)

// nobody owns, for the guest, what is neither the host user's nor mapped.
const nobody = 65534

// owner translates owners between host and guest. Its zero value is for root,
// and changes nothing.
type owner struct {
	// mapped says that there is one user.
	mapped bool
	host   api.HostUser
	// guestUser is what the guest sees host as.
	guestUser api.HostUser
}

// newOwner is for a process that has the rights of a user only, or all if nil.
func newOwner(u *api.HostUser) owner {
	if u == nil {
		return owner{}
	}
	return owner{mapped: true, host: *u}
}

// setGuest takes the sandbox' word for who the host's user is inside: a matter of
// display, since all rights are the process'.
func (o *owner) setGuest(h *api.GoferHello) { o.guestUser = api.HostUser{UID: h.UID, GID: h.GID} }

// toGuest translates a file's owner.
func (o *owner) toGuest(uid, gid uint32) (uint32, uint32) {
	if !o.mapped {
		return uid, gid
	}
	guestUID, guestGID := uint32(nobody), uint32(nobody)
	if uid == o.host.UID {
		guestUID = o.guestUser.UID
	}
	if gid == o.host.GID {
		guestGID = o.guestUser.GID
	}
	return guestUID, guestGID
}

// forNew returns the owner to give a new file, which is the process' own so far;
// -1 leaves a part as it is. A user's new files are his, whoever made them in the
// guest: any other owner is one that the host would refuse.
func (o *owner) forNew(uid lisafs.UID, gid lisafs.GID) (int, int) {
	if o.mapped {
		return -1, -1
	}
	return idOrKeep(uint32(uid)), idOrKeep(uint32(gid))
}

// toHost returns the owner that a guest asks for. A user can give his files to
// nobody but himself, and an id of the guest must not be taken for the host's of
// the same number.
func (o *owner) toHost(uid, gid uint32) (int, int, error) {
	if !o.mapped {
		return idOrKeep(uid), idOrKeep(gid), nil
	}
	u, err := ownOrKeep(uid, o.guestUser.UID, o.host.UID)
	if err != nil {
		return -1, -1, err
	}
	g, err := ownOrKeep(gid, o.guestUser.GID, o.host.GID)
	return u, g, err
}

// ownOrKeep translates the one id that has a translation.
func ownOrKeep(id, guest, host uint32) (int, error) {
	switch id {
	case keepID:
		return -1, nil
	case guest:
		return int(host), nil
	}
	return -1, unix.EPERM
}

// idOrKeep makes chown's "leave it" of lisafs'.
func idOrKeep(id uint32) int {
	if id == keepID {
		return -1
	}
	return int(id)
}
