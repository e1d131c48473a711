// SPDX-License-Identifier: Apache-2.0

// Package layer turns one layer of an OCI image, a tar stream, into a file
// tree that an overlay file system can stack.
//
// It owns two things: undoing a layer's compression while checking its diff ID
// ([Decompress]), and replaying the tar stream into a tree ([Convert]), with
// OCI's whiteout names translated into overlayfs' device nodes and extended
// attributes. The tree goes to a [Sink], normally an EROFS builder, which reads
// file data straight from the stream and keeps runs of zeros as holes.
//
// It never touches a host file system: a layer's paths, links, owners and
// devices exist only in the sink, so nothing in a hostile layer can point out
// of it. It never opens an image, a registry or a store either; those hand it
// readers. What a layer may cost is bounded by [Limits].
//
// # What a layer becomes
//
//	.wh.NAME            character device 0/0 called NAME, unless NAME is in this layer
//	.wh..wh..opq        trusted.overlay.opaque=y on its directory
//	.wh.NAME and NAME/  a directory NAME that is opaque
//	.wh..wh.*           nothing: bookkeeping of AUFS
//	a name given twice  the last one; two directories merge
//	a missing parent    a directory, root's, 0755 (or as [Converter.Lower] says)
//	a symlink as parent is resolved inside the tree, as containerd does
//	a file as parent    an error
//	a hard link         an error unless its target is in this layer
//	/a, ./a, b/../a     a
//	../a                an error, as with docker
//	trusted.overlay.*   dropped, but for opaque: they instruct the stack
package layer

import (
	"z.gfire.dev/gvx/runtime/api"
)

// Limits bound what one layer may cost. Zero fields mean the default.
type Limits struct {
	// Entries bounds the entries of the tar stream.
	Entries int
	// Bytes bounds the uncompressed stream, and, separately, the sum of all
	// file sizes with their holes.
	Bytes int64
	// Ratio bounds uncompressed bytes for each compressed byte, once more than
	// RatioFloor bytes came out.
	Ratio int64
	// RatioFloor is how much any compressed layer may expand to.
	RatioFloor int64
	// Depth bounds the components of a path.
	Depth int
	// XattrBytes bounds names and values of one entry's extended attributes.
	XattrBytes int
}

// The defaults of [Limits], and bounds that are not for callers to choose.
const (
	// DefaultEntries is several times the largest images known (whole
	// distributions, package caches); a million entries cost the EROFS builder
	// some hundred megabytes.
	DefaultEntries = 1 << 20
	// DefaultBytes holds model weights and CUDA many times over, and is less
	// than common disks.
	DefaultBytes = 64 << 30
	// DefaultRatio is far above real layers (2 to 20) and below what a
	// decompression bomb needs to be worth it (gzip reaches 1032, zstd more).
	DefaultRatio = 200
	// DefaultRatioFloor lets small layers be as compressible as they like: a
	// gigabyte of zeros is not yet an attack.
	DefaultRatioFloor = 1 << 30
	// DefaultDepth is several times the deepest real trees (nested
	// node_modules), and keeps a walk cheap.
	DefaultDepth = 256
	// DefaultXattrBytes is Linux' XATTR_LIST_MAX, and one value's maximum.
	DefaultXattrBytes = 64 << 10

	// maxNameBytes is Linux' NAME_MAX.
	maxNameBytes = 255
	// maxPathBytes is Linux' PATH_MAX without its NUL.
	maxPathBytes = 4095
	// maxSteps bounds the directories that all path walks of a layer pass,
	// about a minute of work; a layer of a million files needs some millions.
	// Deep paths and chains of symlinks multiply otherwise.
	maxSteps = 1 << 30
	// headerBytes is what archive/tar allows for PAX records, long names and
	// sparse maps of one entry.
	headerBytes = 1 << 20
	// maxSymlinks is Linux' own bound on symlinks in one path walk.
	maxSymlinks = 40
	// maxID is the largest owner: the one above means "none" to Linux.
	maxID = 1<<32 - 2
)

// withDefaults fills what the caller left zero.
func (l Limits) withDefaults() Limits {
	setDefault(&l.Entries, DefaultEntries)
	setDefault(&l.Bytes, DefaultBytes)
	setDefault(&l.Ratio, DefaultRatio)
	setDefault(&l.RatioFloor, DefaultRatioFloor)
	setDefault(&l.Depth, DefaultDepth)
	setDefault(&l.XattrBytes, DefaultXattrBytes)
	return l
}

func setDefault[T int | int64](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// errLimit says which limit was reached, in the words of [Limits].
func errLimit(limit string, value int64, format string, args ...any) error {
	return api.Errorf(api.KindLimit, format+" (limit %s: %d)", append(args, limit, value)...)
}
