// SPDX-License-Identifier: Apache-2.0

// A layer that is converted while it is read for the first time, before it has a
// name: root file systems in tar files come without a digest, and reading them
// twice would take twice as long.

package images

import (
	"context"
	"io"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/oci/layer"
)

// scan is such a conversion. What goes wrong in it is no error: the layer is then
// converted like any other, and fails where that fails.
type scan struct {
	s          *Store
	out, split *temp
	fr         *framer
	builder    *erofs.Builder
	stats      layer.Stats
	uuid       [16]byte
	// whole says that all of the layer has been converted.
	whole bool
}

// convert is an [image.Options.Scanned].
func (sc *scan) convert(ctx context.Context, tar io.Reader) {
	var err error
	if sc.out, err = sc.s.newTemp("layer"); err != nil {
		return
	}
	if sc.split, err = sc.s.newTemp("framing"); err != nil {
		return
	}
	sc.builder, err = erofs.NewBuilder(sc.out.File, erofs.BuilderOptions{FinalUUID: func() [16]byte { return sc.uuid }})
	if err != nil {
		return
	}
	sc.fr = newFramer(tar, sc.split)
	sc.stats, err = layer.Converter{Limits: sc.s.opt.Source.Limits}.Convert(ctx, sc.fr, sc.builder)
	if err != nil {
		sc.fr.abort()
		sc.discard()
		return
	}
	sc.whole = true
}

// finish completes the layer under its name.
func (sc *scan) finish(ctx context.Context, key hexDigest) (*framer, layer.Stats, error) {
	sc.whole = false // its framer is the caller's now
	sc.uuid = uuidOf(key)
	_, err := sc.builder.Finish(ctx)
	return sc.fr, sc.stats, err
}

// discard removes what was not committed. It may be called at any time, and more
// than once.
func (sc *scan) discard() {
	if sc.whole {
		sc.fr.abort() // a layer that was there already
		sc.whole = false
	}
	for _, t := range []*temp{sc.out, sc.split} {
		if t != nil {
			t.discard()
		}
	}
}
