// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"
)

// contentsByPath is a layer in memory.
type contentsByPath map[string]string

func (c contentsByPath) OpenFile(path string) (io.ReadCloser, int64, error) {
	s, ok := c[path]
	if !ok {
		return nil, 0, errors.New("no such file")
	}
	return io.NopCloser(strings.NewReader(s)), int64(len(s)), nil
}

// TestFramingsOfOthersAreAssembled: earlier converters, and tar-split itself,
// record a sum of each content, which ours do without.
func TestFramingsOfOthersAreAssembled(t *testing.T) {
	tar := tarOf(t, member{name: "a", content: "first"}, member{name: "d/b", content: "second"})
	var theirs, ours bytes.Buffer
	r, done, err := asm.NewInputTarStreamWithDone(bytes.NewReader(tar), storage.NewJSONPacker(&theirs), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := assemble(&ours, storage.NewJSONUnpacker(&theirs), contentsByPath{"a": "first", "d/b": "second"}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours.Bytes(), tar) {
		t.Error("the tar is not the one that was taken apart")
	}
}

// TestContentOfAnotherLengthIsNotAssembled keeps a damaged layer from making a
// tar in which everything after the damage is at another place.
func TestContentOfAnotherLengthIsNotAssembled(t *testing.T) {
	entry := `{"type":1,"name":"a","size":5,"position":0}` + "\n"
	for _, content := range []string{"long enough", "x", ""} {
		err := assemble(io.Discard, storage.NewJSONUnpacker(strings.NewReader(entry)), contentsByPath{"a": content})
		if err == nil {
			t.Errorf("%q was taken for 5 bytes", content)
		}
	}
}
