// SPDX-License-Identifier: Apache-2.0

// Feature bits of the superblock, their names, and which of them this
// implementation can read and write.

package disk

import "strings"

// Compatible features: a reader and a writer may ignore them.
const (
	CompatDirPrealloc   = 0x1
	CompatHasJournal    = 0x4
	CompatExtAttr       = 0x8
	CompatResizeInode   = 0x10
	CompatDirIndex      = 0x20
	CompatSparseSuper2  = 0x200
	CompatFastCommit    = 0x400
	CompatStableInodes  = 0x800
	CompatOrphanFile    = 0x1000
	compatLazyBG        = 0x40
	compatExcludeInode  = 0x80
	compatExcludeBitmap = 0x100
)

// Incompatible features: a reader must know each of them.
const (
	IncompatCompression = 0x1
	IncompatFiletype    = 0x2
	IncompatRecover     = 0x4
	IncompatJournalDev  = 0x8
	IncompatMetaBG      = 0x10
	IncompatExtents     = 0x40
	Incompat64Bit       = 0x80
	IncompatMMP         = 0x100
	IncompatFlexBG      = 0x200
	IncompatEAInode     = 0x400
	IncompatDirdata     = 0x1000
	IncompatCsumSeed    = 0x2000
	IncompatLargedir    = 0x4000
	IncompatInlineData  = 0x8000
	IncompatEncrypt     = 0x10000
	IncompatCasefold    = 0x20000
)

// Read-only compatible features: a writer must know each of them.
const (
	ROCompatSparseSuper   = 0x1
	ROCompatLargeFile     = 0x2
	ROCompatBtreeDir      = 0x4
	ROCompatHugeFile      = 0x8
	ROCompatGdtCsum       = 0x10
	ROCompatDirNlink      = 0x20
	ROCompatExtraIsize    = 0x40
	ROCompatHasSnapshot   = 0x80
	ROCompatQuota         = 0x100
	ROCompatBigalloc      = 0x200
	ROCompatMetadataCsum  = 0x400
	ROCompatReplica       = 0x800
	ROCompatReadonly      = 0x1000
	ROCompatProject       = 0x2000
	ROCompatSharedBlocks  = 0x4000
	ROCompatVerity        = 0x8000
	ROCompatOrphanPresent = 0x10000
)

// SupportedIncompat are the incompatible features this implementation reads
// and writes. inline_data, ea_inode, encrypt and casefold are not made by
// mkfs.ext4's defaults and change what a name or a file's bytes mean.
const SupportedIncompat = IncompatFiletype | IncompatRecover | IncompatMetaBG | IncompatExtents | Incompat64Bit |
	IncompatFlexBG | IncompatCsumSeed | IncompatLargedir

// SupportedROCompat are the features this implementation keeps true while
// writing. A volume with any other opens read-only.
const SupportedROCompat = ROCompatSparseSuper | ROCompatLargeFile | ROCompatBtreeDir | ROCompatHugeFile | ROCompatGdtCsum |
	ROCompatDirNlink | ROCompatExtraIsize | ROCompatMetadataCsum | ROCompatOrphanPresent

type featureName struct {
	bit  uint32
	name string
}

var compatNames = []featureName{
	{CompatDirPrealloc, "dir_prealloc"}, {0x2, "imagic_inodes"}, {CompatHasJournal, "has_journal"}, {CompatExtAttr, "ext_attr"},
	{CompatResizeInode, "resize_inode"}, {CompatDirIndex, "dir_index"}, {compatLazyBG, "lazy_bg"}, {compatExcludeInode, "exclude_inode"},
	{compatExcludeBitmap, "snapshot_bitmap"}, {CompatSparseSuper2, "sparse_super2"}, {CompatFastCommit, "fast_commit"},
	{CompatStableInodes, "stable_inodes"}, {CompatOrphanFile, "orphan_file"},
}

var incompatNames = []featureName{
	{IncompatCompression, "compression"}, {IncompatFiletype, "filetype"}, {IncompatRecover, "needs_recovery"}, {IncompatJournalDev, "journal_dev"},
	{IncompatMetaBG, "meta_bg"}, {IncompatExtents, "extent"}, {Incompat64Bit, "64bit"}, {IncompatMMP, "mmp"}, {IncompatFlexBG, "flex_bg"},
	{IncompatEAInode, "ea_inode"}, {IncompatDirdata, "dirdata"}, {IncompatCsumSeed, "metadata_csum_seed"}, {IncompatLargedir, "large_dir"},
	{IncompatInlineData, "inline_data"}, {IncompatEncrypt, "encrypt"}, {IncompatCasefold, "casefold"},
}

var roCompatNames = []featureName{
	{ROCompatSparseSuper, "sparse_super"}, {ROCompatLargeFile, "large_file"}, {ROCompatBtreeDir, "btree_dir"}, {ROCompatHugeFile, "huge_file"},
	{ROCompatGdtCsum, "uninit_bg"}, {ROCompatDirNlink, "dir_nlink"}, {ROCompatExtraIsize, "extra_isize"}, {ROCompatHasSnapshot, "snapshot"},
	{ROCompatQuota, "quota"}, {ROCompatBigalloc, "bigalloc"}, {ROCompatMetadataCsum, "metadata_csum"}, {ROCompatReplica, "replica"},
	{ROCompatReadonly, "read-only"}, {ROCompatProject, "project"}, {ROCompatSharedBlocks, "shared_blocks"}, {ROCompatVerity, "verity"},
	{ROCompatOrphanPresent, "orphan_present"},
}

// FeatureNames lists the names of the bits in one feature word, in bit order.
// Bits without a name are given in hexadecimal.
func FeatureNames(word uint32, table []featureName) []string {
	var out []string
	for _, f := range table {
		if word&f.bit != 0 {
			out = append(out, f.name)
			word &^= f.bit
		}
	}
	for b := uint32(1); word != 0; b <<= 1 {
		if word&b != 0 {
			out = append(out, "0x"+strings.TrimLeft(hex32(b), "0"))
			word &^= b
		}
	}
	return out
}

func hex32(v uint32) string {
	const digits = "0123456789abcdef"
	var b [8]byte
	for i := range b {
		b[i] = digits[v>>(28-4*i)&15]
	}
	return string(b[:])
}
