// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"encoding/json"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// Limits of a document.
const (
	// MaxDocumentBytes is what the arguments and environment of a process may
	// take in Linux (2 MiB), escaped, and the rest: docker's seccomp profile has
	// 20 KiB, all the devices of a large host some 100.
	MaxDocumentBytes = 8 << 20
	// MaxDocumentValues bounds the members of all objects and arrays. An empty
	// object of three bytes becomes a structure of two hundred.
	MaxDocumentValues = 1 << 18
	// MaxDocumentDepth is far above what the specification nests.
	MaxDocumentDepth = 64
)

// Parse reads a bundle's document and checks it. Unknown members are ignored, as
// the specification has it.
func Parse(data []byte) (*specs.Spec, error) {
	var spec *specs.Spec
	if err := decode(data, &spec); err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, api.Errorf(api.KindInvalid, "config cannot be null")
	}
	if err := Validate(spec); err != nil {
		return nil, err
	}
	return spec, nil
}

// ParseProcess reads the document of an additional process and checks it.
func ParseProcess(data []byte) (*specs.Process, error) {
	var p *specs.Process
	if err := decode(data, &p); err != nil {
		return nil, err
	}
	if err := ValidateProcess(p); err != nil {
		return nil, err
	}
	return p, nil
}

// decode reads the first value of a document; what follows it is no more looked
// at than in runc.
func decode(data []byte, into any) error {
	if err := measure(data); err != nil {
		return err
	}
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(into); err != nil {
		return api.Errorf(api.KindInvalid, "decode JSON: %w", err)
	}
	return nil
}

// measure refuses documents that would become much larger in memory. It need not
// understand them: what is no JSON at all is told by who decodes it.
func measure(data []byte) error {
	if len(data) > MaxDocumentBytes {
		return api.Errorf(api.KindLimit, "document of %d bytes, at most %d", len(data), MaxDocumentBytes)
	}
	values, depth := 0, 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = stringEnd(data, i)
		case '{', '[':
			values++
			depth++
		case '}', ']':
			depth--
		case ',':
			values++
		}
		if values > MaxDocumentValues {
			return api.Errorf(api.KindLimit, "document of more than %d values", MaxDocumentValues)
		}
		if depth > MaxDocumentDepth {
			return api.Errorf(api.KindLimit, "document nested more than %d deep", MaxDocumentDepth)
		}
	}
	return nil
}

// stringEnd is the place of the quote that ends the string beginning at start,
// or the document's end.
func stringEnd(data []byte, start int) int {
	for i := start + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(data)
}
