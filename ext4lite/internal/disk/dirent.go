// SPDX-License-Identifier: Apache-2.0

// Directory blocks: entries, the checksum tail, and edits within one block.

package disk

// File types in directory entries.
const (
	FtUnknown = 0
	FtReg     = 1
	FtDir     = 2
	FtChar    = 3
	FtBlock   = 4
	FtFifo    = 5
	FtSocket  = 6
	FtLink    = 7
	ftTail    = 0xDE
)

// MaxNameLen is the longest name in bytes.
const MaxNameLen = 255

const (
	dirHeader   = 8
	dirTailSize = 12
)

// FtOfMode is the directory file type of a mode.
func FtOfMode(mode uint16) uint8 {
	switch mode & ModeType {
	case ModeReg:
		return FtReg
	case ModeDir:
		return FtDir
	case ModeChar:
		return FtChar
	case ModeBlock:
		return FtBlock
	case ModeFifo:
		return FtFifo
	case ModeSocket:
		return FtSocket
	case ModeLink:
		return FtLink
	}
	return FtUnknown
}

// Dirent is one directory entry in a block. Name points into the block.
type Dirent struct {
	Ino    uint32
	Type   uint8
	Name   []byte
	Offset int // of the entry in its block
	RecLen int
}

// DirentLen is the space a name needs.
func DirentLen(nameLen int) int { return (dirHeader + nameLen + 3) &^ 3 }

func recLen(p []byte, bs int) int {
	v := int(le.Uint16(p[4:]))
	if bs == MaxBlockSize && (v == 0 || v == MaxBlockSize-1) {
		return MaxBlockSize
	}
	return v
}

func putRecLen(p []byte, n int) {
	if n == MaxBlockSize {
		n = MaxBlockSize - 1 // the field has 16 bits
	}
	le.PutUint16(p[4:], uint16(n))
}

// DirEnd is where the entries of a directory block end: the checksum tail,
// where there is one, is not an entry.
func (g *Geometry) DirEnd() int {
	if g.Csum {
		return g.BlockSize - dirTailSize
	}
	return g.BlockSize
}

// NextDirent decodes the entry at off in a directory block whose entries end
// at end. The answer's Offset plus RecLen is where the next one begins.
func NextDirent(block []byte, off, end int, g *Geometry) (Dirent, error) {
	bad := func(format string, args ...any) (Dirent, error) {
		return Dirent{}, Corrupt("directory block", format, args...)
	}
	if off+dirHeader > end {
		return bad("entry at %d crosses the end", off)
	}
	p := block[off:]
	d := Dirent{Ino: le.Uint32(p), Type: p[7], Offset: off, RecLen: recLen(p, g.BlockSize)}
	n := int(p[6])
	switch {
	case d.RecLen < dirHeader || d.RecLen%4 != 0 || d.RecLen > end-off:
		return bad("entry at %d has length %d", off, d.RecLen)
	case d.Ino != 0 && (n == 0 || DirentLen(n) > d.RecLen):
		return bad("entry at %d has a name of %d bytes in %d", off, n, d.RecLen)
	case d.Ino > g.Inodes:
		return bad("entry at %d names inode %d of %d", off, d.Ino, g.Inodes)
	}
	if d.Ino != 0 {
		d.Name = p[dirHeader : dirHeader+n]
	}
	return d, nil
}

// EachDirent calls fn for every used entry until fn answers false.
func EachDirent(block []byte, g *Geometry, fn func(Dirent) bool) error {
	for off, end := 0, g.DirEnd(); off < end; {
		d, err := NextDirent(block, off, end, g)
		if err != nil {
			return err
		}
		if d.Ino != 0 && !fn(d) {
			return nil
		}
		off += d.RecLen
	}
	return nil
}

// FindDirent looks for a name in a directory block. It is where lookups spend
// their time, so entries that cannot be the name are only stepped over.
func FindDirent(block []byte, name string, g *Geometry) (Dirent, bool, error) {
	end := g.DirEnd()
	for off := 0; off+dirHeader <= end; {
		p := block[off:end]
		n := recLen(p, g.BlockSize)
		if n < dirHeader || n > len(p) || n%4 != 0 {
			break
		}
		if int(p[6]) == len(name) && dirHeader+len(name) <= n && string(p[dirHeader:dirHeader+len(name)]) == name && le.Uint32(p) != 0 {
			d, err := NextDirent(block, off, end, g)
			return d, err == nil, err
		}
		if off += n; off == end {
			return Dirent{}, false, nil
		}
	}
	return Dirent{}, false, Corrupt("directory block", "entries do not fill it")
}

// PutDirent writes an entry of length n at off.
func PutDirent(block []byte, off, n int, ino uint32, ft uint8, name string) {
	p := block[off:]
	le.PutUint32(p, ino)
	putRecLen(p, n)
	p[6], p[7] = byte(len(name)), ft
	copy(p[dirHeader:], name)
}

// AddDirent puts an entry where a directory block has room. It answers false
// where there is none.
func AddDirent(block []byte, ino uint32, ft uint8, name string, g *Geometry) (bool, error) {
	need, end := DirentLen(len(name)), g.DirEnd()
	for off := 0; off+dirHeader <= end; {
		p := block[off:end]
		n := recLen(p, g.BlockSize)
		if n < dirHeader || n > len(p) || n%4 != 0 {
			break
		}
		used := 0
		if le.Uint32(p) != 0 {
			if used = DirentLen(int(p[6])); used > n {
				break
			}
		}
		if n-used >= need {
			if used > 0 {
				putRecLen(p, used)
			}
			PutDirent(block, off+used, n-used, ino, ft, name)
			return true, nil
		}
		if off += n; off == end {
			return false, nil
		}
	}
	return false, Corrupt("directory block", "entries do not fill it")
}

// RemoveDirent takes away the entry at off by joining it to the one before.
func RemoveDirent(block []byte, at int, g *Geometry) error {
	prev := -1
	for off, end := 0, g.DirEnd(); off < end; {
		d, err := NextDirent(block, off, end, g)
		if err != nil {
			return err
		}
		if off == at {
			if prev >= 0 {
				putRecLen(block[prev:], off+d.RecLen-prev)
			} else {
				le.PutUint32(block[off:], 0)
			}
			return nil
		}
		prev = off
		off += d.RecLen
	}
	return Corrupt("directory block", "no entry at %d", at)
}

// SetDirentIno changes what an entry points at.
func SetDirentIno(block []byte, off int, ino uint32, ft uint8) {
	le.PutUint32(block[off:], ino)
	block[off+7] = ft
}

// InitDirBlock makes an empty directory block, tail included.
func InitDirBlock(block []byte, g *Geometry) {
	clear(block)
	putRecLen(block, g.DirEnd())
	InitDirTail(block, g)
}

// InitDirTail writes the checksum tail's fixed part.
func InitDirTail(block []byte, g *Geometry) {
	if !g.Csum {
		return
	}
	p := block[g.BlockSize-dirTailSize:]
	clear(p)
	le.PutUint16(p[4:], dirTailSize)
	p[7] = ftTail
}

// SetDirSum stores a directory block's checksum.
func SetDirSum(block []byte, seed uint32, g *Geometry) {
	at := g.BlockSize - dirTailSize
	le.PutUint32(block[at+8:], CRC32C(seed, block[:at]))
}

// CheckDirSum verifies a directory block's tail and checksum.
func CheckDirSum(block []byte, ino, seed uint32, g *Geometry) error {
	at := g.BlockSize - dirTailSize
	p := block[at:]
	if le.Uint32(p) != 0 || le.Uint16(p[4:]) != dirTailSize || p[6] != 0 || p[7] != ftTail {
		return Corrupt("directory inode "+utoa(ino), "block has no checksum")
	}
	if got, want := CRC32C(seed, block[:at]), le.Uint32(p[8:]); got != want {
		return Corrupt("directory inode "+utoa(ino), "block checksum %#08x, computed %#08x", want, got)
	}
	return nil
}
