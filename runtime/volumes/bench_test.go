// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"testing"

	"z.gfire.dev/gvx/oci/convert"
)

// BenchmarkOpenUpper is what a writable layer adds to the start of a sandbox.
func BenchmarkOpenUpper(b *testing.B) {
	s := New(b.TempDir(), Options{})
	for b.Loop() {
		files, err := s.OpenUpper(0)
		if err != nil {
			b.Fatal(err)
		}
		closeAll(files)
	}
}

// BenchmarkOpenEphemeral is what a clone adds.
func BenchmarkOpenEphemeral(b *testing.B) {
	s := New(b.TempDir(), Options{})
	if err := s.Create(Ref{Name: "golden", Path: s.file("golden")}, CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		o, err := s.Open(&convert.VolumeMount{Source: "golden", Target: "/v", Clone: convert.CloneEphemeral})
		if err != nil {
			b.Fatal(err)
		}
		o.Close()
	}
}
