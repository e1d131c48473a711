// SPDX-License-Identifier: Apache-2.0

package images

// A pipe between two goroutines that lets the writer run ahead: io.Pipe has both
// wait for each other at every write.

const (
	// sidelineBytes is the size of one piece, sidelinePieces how many may wait:
	// 2 MiB in all.
	sidelineBytes  = 256 << 10
	sidelinePieces = 8
)

// sideline is one such pipe. Its reader must read to the end.
type sideline struct {
	free, full chan []byte
	// err is what the reader gets at the end, set before full closes.
	err error
	// cur is what is left of the piece being read, piece all of it.
	cur, piece []byte
}

func newSideline() *sideline {
	s := &sideline{free: make(chan []byte, sidelinePieces), full: make(chan []byte, sidelinePieces)}
	for range sidelinePieces {
		s.free <- nil // made when it is needed
	}
	return s
}

// write copies p. It waits while all pieces are full.
func (s *sideline) write(p []byte) {
	for len(p) > 0 {
		b := <-s.free
		if b == nil {
			b = make([]byte, sidelineBytes)
		}
		n := copy(b[:sidelineBytes], p)
		s.full <- b[:n]
		p = p[n:]
	}
}

// close ends the stream: the reader gets err after what was written.
func (s *sideline) close(err error) {
	s.err = err
	close(s.full)
}

// Read implements io.Reader.
func (s *sideline) Read(p []byte) (int, error) {
	if len(s.cur) == 0 {
		if s.piece != nil {
			s.free <- s.piece
			s.piece = nil
		}
		b, ok := <-s.full
		if !ok {
			return 0, s.err
		}
		s.cur, s.piece = b, b
	}
	n := copy(p, s.cur)
	s.cur = s.cur[n:]
	return n, nil
}
