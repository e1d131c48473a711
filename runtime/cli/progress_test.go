// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/images"
)

// someEvents is a pull of three layers: one there, one converted, one that
// never ends.
func someEvents() []images.Event {
	a, b, c := digest.FromString("a"), digest.FromString("b"), digest.FromString("c")
	return []images.Event{
		{Status: images.StatusResolving, Ref: "docker.io/library/x:1"},
		{Status: images.StatusFallback, Host: "mirror.example", Err: errors.New("refused")},
		{Status: images.StatusWaiting, Layer: a, Total: 10},
		{Status: images.StatusWaiting, Layer: b, Total: 1000},
		{Status: images.StatusWaiting, Layer: c},
		{Status: images.StatusExists, Layer: a, Current: 10, Total: 10},
		{Status: images.StatusConverting, Layer: b, Current: 400, Total: 1000},
		{Status: images.StatusConverting, Layer: b, Current: 1000, Total: 1000},
		{Status: images.StatusScanning, Current: 5, Total: 9},
		{Status: images.StatusDone, Layer: b, Current: 1000, Total: 1000},
		{Status: images.StatusConverting, Layer: c, Current: 7},
	}
}

// TestBarsEnd: a display that waits for its bars must end with all of them,
// also those whose layers failed.
func TestBarsEnd(t *testing.T) {
	for n := range len(someEvents()) + 1 {
		var out bytes.Buffer
		b := newBars(&out)
		for _, e := range someEvents()[:n] {
			b.Event(e)
		}
		b.Close()
		if n == len(someEvents()) {
			for _, want := range []string{shortDigest(digest.FromString("a")) + ":", "mirror.example failed", "done"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("display lacks %q:\n%s", want, out.String())
				}
			}
		}
	}
}

func TestProgressModes(t *testing.T) {
	for mode, want := range map[string]string{progressAuto: "", progressNone: "", progressPlain: "Pull complete", progressJSON: `"status":"Pull complete"`} {
		var out bytes.Buffer
		p, err := newProgress(mode, &out)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range someEvents() {
			p.Event(e)
		}
		p.Close()
		if want == "" && out.Len() > 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q", mode, out.String())
		}
	}
}
