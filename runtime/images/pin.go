// SPDX-License-Identifier: Apache-2.0

// Pins: what keeps the files of a running sandbox.

package images

import (
	"errors"
	"io/fs"
	"os"
)

// Pin keeps an image. While it is open, in this process or by a descriptor of
// Layers donated to another, no collector removes the layers; and while this
// process has it open, the image itself is not removed without force.
type Pin struct {
	record *os.File
	layers []*os.File
}

// Pin opens the image's layers and locks them against removal. The lock is the
// kernel's and ends with the last descriptor, however its holders die.
func (s *Store) Pin(img *Image) (*Pin, error) {
	h, err := hexOf(img.ID)
	if err != nil {
		return nil, err
	}
	p := &Pin{layers: make([]*os.File, 0, len(img.LayerDiffIDs))}
	if p.record, err = openShared(s.imagePath(h)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, notFound(string(img.ID))
		}
		return nil, err
	}
	for n, key := range img.keys {
		f, err := openShared(s.layerPath(key))
		if err != nil {
			p.Close()
			if errors.Is(err, fs.ErrNotExist) {
				return nil, missingLayer(img, n)
			}
			return nil, err
		}
		p.layers = append(p.layers, f)
	}
	return p, nil
}

// Layers are the EROFS files, open read-only, lowest first. They belong to the
// pin: duplicate or donate them, and close the pin.
func (p *Pin) Layers() []*os.File { return p.layers }

// Close ends the pin of this process. It may be called twice.
func (p *Pin) Close() {
	for _, f := range p.layers {
		f.Close()
	}
	p.layers = nil
	if p.record != nil {
		p.record.Close()
		p.record = nil
	}
}
