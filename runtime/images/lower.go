// SPDX-License-Identifier: Apache-2.0

// The view of the layers below, for layers that do not bring the directories
// of their files along: a tar with just tmp/x must not turn /tmp into mode
// 0755, nor hide a symlink /lib behind a directory. Whoever unpacks layers one
// over the other gets that for free; we have to look.
//
// What such a layer converts to depends on the layers below it. It is stored
// under its chain ID, as others are under their diff ID, and is shared by
// images that have those layers in common.

package images

import (
	"context"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

const (
	opaqueXattr = "trusted.overlay.opaque"
	// maxXattrCount bounds the attributes of one directory that are taken
	// over; Linux lists at most 64 KiB of names.
	maxXattrCount = 1024
)

// layerJob is one layer of an image that is being stored.
type layerJob struct {
	*image.Layer
	// diffID is the layer's own, chainID that of the stack up to it; they are
	// equal for the lowest layer.
	diffID, chainID hexDigest
	below           []*layerJob
	// scan has converted the layer already, if it is not nil and whole.
	scan *scan
	// held is the result, valid when done is closed.
	held *heldLayer
	done chan struct{}
	// marked says that this pull has written the record that the layer depends on
	// those below it, where there was none.
	marked bool
}

// layerJobs computes the chain IDs of a stack.
func layerJobs(layers []image.Layer) ([]*layerJob, error) {
	if len(layers) > api.MaxLayers {
		return nil, api.Errorf(api.KindLimit, "%d layers, at most %d", len(layers), api.MaxLayers)
	}
	jobs := make([]*layerJob, len(layers))
	for i := range layers {
		h, err := hexOf(layers[i].DiffID)
		if err != nil {
			return nil, err
		}
		j := &layerJob{Layer: &layers[i], diffID: h, chainID: h, below: jobs[:i], done: make(chan struct{})}
		if i > 0 {
			chain := digest.FromString(string(jobs[i-1].chainID.digest()) + " " + string(layers[i].DiffID))
			j.chainID = hexDigest(chain.Encoded())
		}
		jobs[i] = j
	}
	return jobs, nil
}

// lower waits for the layers below and returns their view. It fails only with
// ctx: a layer that fails cancels it.
func (j *layerJob) lower(ctx context.Context) (*lowerView, error) {
	v := &lowerView{}
	for _, b := range j.below {
		select {
		case <-b.done:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		im, err := openImage(b.held.file)
		if err != nil {
			return nil, err
		}
		v.layers = append(v.layers, im)
	}
	return v, nil
}

func openImage(f *os.File) (*erofs.Image, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return erofs.Open(f, fi.Size())
}

// lowerView looks names up as an overlay of layers would.
type lowerView struct {
	layers []*erofs.Image // lowest first
	// err is the first failure to read a layer, which lookup cannot return.
	err error
}

// lookup finds the entry at path, following no symlink.
func (v *lowerView) lookup(path string) (erofs.Entry, bool) {
	parts := strings.Split(path, "/")
	for i := len(v.layers) - 1; i >= 0; i-- {
		e, found, stop, err := lookupIn(v.layers[i], parts)
		if err != nil {
			if v.err == nil {
				v.err = err
			}
			return erofs.Entry{}, false
		}
		if found || stop {
			return e, found
		}
	}
	return erofs.Entry{}, false
}

// lookupIn walks one layer. stop says that what lies below is hidden.
func lookupIn(im *erofs.Image, parts []string) (e erofs.Entry, found, stop bool, err error) {
	ino, err := im.Inode(im.Root())
	if err != nil {
		return e, false, false, err
	}
	for n, name := range parts {
		nid, _, err := im.Lookup(&ino, name)
		if isAbsent(err) {
			return e, false, stop, nil
		}
		if err != nil {
			return e, false, false, err
		}
		if ino, err = im.Inode(nid); err != nil {
			return e, false, false, err
		}
		kind := ino.Mode & erofs.ModeType
		if kind == erofs.ModeChar && ino.Major == 0 && ino.Minor == 0 {
			return e, false, true, nil // A whiteout.
		}
		if n == len(parts)-1 {
			break
		}
		if kind != erofs.ModeDir {
			return e, false, true, nil
		}
		opaque, err := isOpaque(im, &ino)
		if err != nil {
			return e, false, false, err
		}
		stop = stop || opaque
	}
	e, err = entryOf(im, &ino)
	return e, err == nil, false, err
}

// entryOf is the inode as a builder takes it, without content.
func entryOf(im *erofs.Image, ino *erofs.Inode) (erofs.Entry, error) {
	e := erofs.Entry{Mode: ino.Mode, UID: ino.UID, GID: ino.GID, Mtime: ino.Mtime, Major: ino.Major, Minor: ino.Minor}
	if ino.Mode&erofs.ModeType == erofs.ModeSymlink {
		target, err := im.Readlink(ino)
		e.Linkname = target
		return e, err
	}
	list, err := im.ListXattr(ino)
	if err != nil {
		return e, err
	}
	if len(list) > maxXattrCount {
		return e, api.Errorf(api.KindLimit, "directory with %d extended attributes, at most %d", len(list), maxXattrCount)
	}
	for _, name := range list {
		value, err := im.GetXattr(ino, name)
		if err != nil {
			return e, err
		}
		if e.Xattrs == nil {
			e.Xattrs = map[string]string{}
		}
		e.Xattrs[name] = string(value)
	}
	return e, nil
}

func isOpaque(im *erofs.Image, ino *erofs.Inode) (bool, error) {
	value, err := im.GetXattr(ino, opaqueXattr)
	if isAbsent(err) {
		return false, nil
	}
	return string(value) == "y", err
}
