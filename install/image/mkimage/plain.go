// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// plainLayer is a tar file as a layer without compression: digest and diff ID
// are the same. The library's own tarball layers always compress.
type plainLayer struct {
	name string
	hash v1.Hash
	size int64
}

var _ v1.Layer = (*plainLayer)(nil)

// newPlainLayer reads the file once, for its digest.
func newPlainLayer(name string) (*plainLayer, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	hash, size, err := v1.SHA256(file)
	if err != nil {
		return nil, err
	}
	return &plainLayer{name: name, hash: hash, size: size}, nil
}

func (l *plainLayer) Digest() (v1.Hash, error)             { return l.hash, nil }
func (l *plainLayer) DiffID() (v1.Hash, error)             { return l.hash, nil }
func (l *plainLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.name) }
func (l *plainLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.name) }
func (l *plainLayer) Size() (int64, error)                 { return l.size, nil }
func (l *plainLayer) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }
