// SPDX-License-Identifier: Apache-2.0

// Reading frames into memory of the stack's, without copying them.

package boot

import (
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
)

// frameViewBytes are the pieces that a frame is read into: most need the first
// alone, and all of them together hold the longest (64 KiB of IPv6 payload with
// its headers). What a frame did not need is there for the next.
var frameViewBytes = [...]int{2048, 4096, 8192, 16384, 32768, 4096}

// frameReader reads frames from a packet socket, one at a time.
type frameReader struct {
	vnet   [virtioHeaderBytes]byte
	views  [len(frameViewBytes)]*buffer.View
	iovecs [1 + len(frameViewBytes)]unix.Iovec
	// first is the index of the first piece that is used: 0 with a virtio header.
	first int
}

func newFrameReader(vnet bool) *frameReader {
	r := &frameReader{}
	r.iovecs[0] = unix.Iovec{Base: &r.vnet[0], Len: virtioHeaderBytes}
	if !vnet {
		r.first = 1
	}
	return r
}

// read reads one frame without waiting, and returns its length without the virtio
// header. Whatever is longer than all pieces is cut off, and the stack finds it
// too short.
func (r *frameReader) read(fd uintptr) (int, unix.Errno) {
	for i, v := range r.views {
		if v != nil {
			break // This one and all behind it are left from before.
		}
		v = buffer.NewViewSize(frameViewBytes[i])
		r.views[i] = v
		r.iovecs[1+i] = unix.Iovec{Base: v.BasePtr(), Len: uint64(v.Size())}
	}
	pieces := r.iovecs[r.first:]
	n, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, fd, uintptr(unsafe.Pointer(&pieces[0])), uintptr(len(pieces)), noOffset, noOffset, 0)
	if errno != 0 {
		return 0, errno
	}
	length := int(n)
	if r.first == 0 {
		length -= virtioHeaderBytes
	}
	return max(length, 0), 0
}

// pull takes the n bytes that were read out of the reader.
func (r *frameReader) pull(n int) buffer.Buffer {
	var b buffer.Buffer
	for i, v := range r.views {
		if n <= 0 {
			break
		}
		if v.Size() > n {
			v.CapLength(n)
		}
		n -= v.Size()
		r.views[i] = nil
		_ = b.Append(v)
	}
	return b
}
