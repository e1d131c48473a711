// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"z.gfire.dev/gvx/ext4lite/device"
)

func isLocked(err error) bool { return errors.Is(err, device.ErrLocked) }

// lockWhole locks a volume's own file alone, whatever is in it.
func (s *Store) lockWhole(r Ref) (*device.File, error) {
	for end := time.Now().Add(lockWait); ; time.Sleep(lockStep) {
		d, err := device.OpenFile(r.Path, device.ReadWrite)
		if err == nil && !still([]*os.File{d.Host()}) {
			d.Close()
			continue
		}
		if err == nil || !isLocked(err) || time.Now().After(end) {
			return d, err
		}
	}
}

// samePath says whether two paths lead to one file.
func samePath(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
