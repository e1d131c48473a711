// SPDX-License-Identifier: Apache-2.0

// Package bundle reads OCI bundles and the documents in them: config.json, and
// the process of an exec. What it returns is well-formed as the runtime
// specification and runc have it; what it means for a guest is not its business:
// see package convert.
//
// A bundle is hostile: it is read up to a limit, taken apart up to a limit, and
// checked before anything acts on it. The package opens the documents and looks
// at the bundle's root, and nothing else; it writes nothing.
package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// ConfigName is the document of a bundle.
const ConfigName = "config.json"

// Bundle is a bundle that was read.
type Bundle struct {
	// Dir is the bundle's directory: absolute, without symbolic links.
	Dir string
	// Spec is its document, checked.
	Spec *specs.Spec
}

// Load reads and checks the bundle in a directory.
func Load(dir string) (*Bundle, error) {
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return nil, fileError("bundle", err)
	}
	data, err := readDocument(filepath.Join(abs, ConfigName), true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, api.Errorf(api.KindNotFound, "JSON specification file %s not found", ConfigName)
	}
	if err != nil {
		return nil, err
	}
	spec, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", abs, err)
	}
	return &Bundle{Dir: abs, Spec: spec}, nil
}

// LoadProcess reads and checks the document of an additional process.
func LoadProcess(file string) (*specs.Process, error) {
	data, err := readDocument(file, false)
	if err != nil {
		return nil, err
	}
	p, err := ParseProcess(data)
	if err != nil {
		return nil, fmt.Errorf("process %s: %w", file, err)
	}
	return p, nil
}

// Rootfs is the directory of the bundle's root: absolute, there, and reached by
// no symbolic link.
func (b *Bundle) Rootfs() (string, error) {
	root := b.Resolve(b.Spec.Root.Path)
	st, err := os.Stat(root)
	if err != nil {
		return "", fileError("invalid rootfs", err)
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", fileError("invalid rootfs", err)
	}
	if real != root {
		return "", api.Errorf(api.KindInvalid, "invalid rootfs: not an absolute path, or a symlink")
	}
	if !st.IsDir() {
		return "", api.Errorf(api.KindInvalid, "invalid rootfs: %s is not a directory", root)
	}
	return root, nil
}

// Resolve makes a path of the document absolute: relative ones are below the
// bundle.
func (b *Bundle) Resolve(p string) string {
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return filepath.Join(b.Dir, p)
}

// readDocument reads a document up to its limit. regular refuses what is no
// file: a pipe in a bundle would hold us up for ever.
func readDocument(file string, regular bool) ([]byte, error) {
	if regular {
		st, err := os.Stat(file)
		if err != nil {
			return nil, fileError("read", err)
		}
		if !st.Mode().IsRegular() {
			return nil, api.Errorf(api.KindInvalid, "read %s: not a regular file", file)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fileError("read", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxDocumentBytes+1))
	if err != nil {
		return nil, fileError("read", err)
	}
	if len(data) > MaxDocumentBytes {
		return nil, api.Errorf(api.KindLimit, "read %s: more than %d bytes", file, MaxDocumentBytes)
	}
	return data, nil
}

// fileError gives an error of the host's files its kind. It keeps the chain.
func fileError(what string, err error) error {
	kind := api.KindInvalid
	switch {
	case errors.Is(err, fs.ErrNotExist):
		kind = api.KindNotFound
	case errors.Is(err, fs.ErrPermission):
		kind = api.KindPermission
	}
	return api.Errorf(kind, "%s: %w", what, err)
}
