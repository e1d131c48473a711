// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

func TestSideline(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	sizes := rand.New(random)
	s := newSideline()
	want, got := new(bytes.Buffer), new(bytes.Buffer)
	done := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(got, struct{ io.Reader }{s}, make([]byte, 10_000))
		done <- err
	}()
	// More than fits, in pieces smaller and larger than its own.
	for want.Len() < 4*sidelineBytes*sidelinePieces {
		p := make([]byte, sizes.IntN(3*sidelineBytes))
		random.Read(p)
		want.Write(p)
		s.write(p)
	}
	cause := errors.New("cause")
	s.close(cause)
	if err := <-done; err != cause {
		t.Errorf("the reader ended with %v", err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes came out of %d, or others", got.Len(), want.Len())
	}
}
