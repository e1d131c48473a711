// SPDX-License-Identifier: Apache-2.0

// What went wrong with a volume, in kinds and with advice.

package volumes

import (
	"errors"
	"io/fs"
	"strings"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/runtime/api"
)

// hostError gives an error of the host its kind.
func hostError(op string, err error) error {
	switch {
	case isNoSpace(err):
		return api.Errorf(api.KindNoSpace, "%s: %w: free some space, or choose another place", op, err)
	case errors.Is(err, fs.ErrPermission):
		return api.Errorf(api.KindPermission, "%s: %w: choose a place of your own", op, err)
	case errors.Is(err, fs.ErrExist):
		return api.Errorf(api.KindExists, "%s: %w", op, err)
	case errors.Is(err, fs.ErrNotExist):
		return api.Errorf(api.KindNotFound, "%s: %w", op, err)
	}
	return api.Errorf(api.KindInternal, "%s: %w", op, err)
}

// volumeError explains what an operation on a volume ran into.
func (s *Store) volumeError(op string, r Ref, err error) error {
	if err == nil {
		return nil
	}
	var known *api.Error
	if errors.As(err, &known) {
		return err
	}
	switch no := ext4lite.ErrnoOf(err); {
	case errors.Is(err, device.ErrLocked):
		return s.inUse(op, r)
	case errors.Is(err, fs.ErrNotExist) && isMissing(r.Path):
		return noSuchVolume(r)
	case isNoSpace(err):
		return api.Errorf(api.KindNoSpace, "%s %s: %w: free some space on the host", op, r, err)
	case errors.Is(err, fs.ErrPermission):
		return api.Errorf(api.KindPermission, "%s %s: %w: a volume is opened as the user who asks for it", op, r, err)
	case errors.Is(err, delta.ErrCommitCut):
		return api.Errorf(api.KindState, "%s %s: %w: 'rungv volume commit' finishes it", op, r, err)
	case no == ext4lite.EBUSY:
		return api.Errorf(api.KindState, "%s %s: %w: 'rungv volume fsck --replay' closes it", op, r, err)
	case no == ext4lite.ESTALE:
		return api.Errorf(api.KindState, "%s %s: %w: clone the base anew", op, r, err)
	case no == ext4lite.ELOOP:
		return api.Errorf(api.KindLimit, "%s %s: %w: 'rungv volume flatten' makes a plain volume of one", op, r, err)
	case no == ext4lite.EOPNOTSUPP:
		return api.Errorf(api.KindUnsupported, "%s %s: %w", op, r, err)
	case no == ext4lite.EUCLEAN:
		return api.Errorf(api.KindVolume, "%s %s: the volume is damaged: %w: see 'rungv volume fsck', and e2fsck to mend it", op, r, err)
	case no == ext4lite.EROFS:
		return api.Errorf(api.KindPermission, "%s %s: %w", op, r, err)
	case errors.Is(err, fs.ErrNotExist):
		return api.Errorf(api.KindNotFound, "%s %s: %w", op, r, err)
	case no == ext4lite.EINVAL: // The file is no volume: see argumentError.
		return api.Errorf(api.KindVolume, "%s %s: %w", op, r, err)
	}
	return api.Errorf(api.KindInvalid, "%s %s: %w", op, r, err)
}

// noSuchVolume is docker's word for a volume that is not there.
func noSuchVolume(r Ref) error {
	return api.Errorf(api.KindNotFound, "get %s: no such volume", r)
}

// inUse names who has a volume.
func (s *Store) inUse(op string, r Ref) error {
	holder := ""
	if s.opt.Holder != nil {
		holder = s.opt.Holder(r.Path)
	}
	if holder == "" {
		holder = "a process of another user"
	}
	return api.Errorf(api.KindState, "%s %s: the volume is in use by %s: stop it, or use a clone (clone=ephemeral) of a volume that nobody writes", op, r, holder)
}

// hasClones refuses a change of a base.
func hasClones(op string, r Ref, clones []string) error {
	const most = 4
	list := strings.Join(clones[:min(len(clones), most)], ", ")
	if len(clones) > most {
		list += ", …"
	}
	return api.Errorf(api.KindState, "%s %s: it is the base of %s, which a change would make useless: remove or flatten them first, or work on a clone", op, r, list)
}

// argumentError is volumeError where what is invalid is what the caller asks for,
// not the file.
func (s *Store) argumentError(op string, r Ref, err error) error {
	if ext4lite.ErrnoOf(err) == ext4lite.EINVAL {
		return api.Errorf(api.KindInvalid, "%s %s: %w", op, r, err)
	}
	return s.volumeError(op, r, err)
}
