// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/oci/convert"
)

// TestViewOf: the host is shown what the guest has of it: sources as the guest's are
// found, whatever the mount's type says, and nothing writable that it cannot write.
func TestViewOf(t *testing.T) {
	spec := bundle.Example()
	spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/host", Type: "bind", Source: "/proc", Options: []string{"rbind"}},
		{Destination: "/a", Source: "/x", Options: []string{"rbind", "ro"}},
		{Destination: "/b", Type: "bind", Source: "y", Options: []string{"bind"}},
		{Destination: "/dev/shm", Type: "bind", Source: "/shm", Options: []string{"rbind"}},
	}
	for _, c := range []struct {
		readOnly bool
		mode     string
		want     string
	}{
		{false, "", "{/r false [{/x /a true false} {/b/y /b false true}]}"},
		{true, "", "{/r true [{/x /a true false} {/b/y /b false true}]}"},
		{false, convert.RootfsPrivate, "{/r true [{/x /a true false} {/b/y /b false true}]}"},
	} {
		spec.Root.Readonly, spec.Annotations = c.readOnly, map[string]string{convert.AnnotationRootfs: c.mode}
		oci, err := convert.FromOCI(convert.OCIInput{ID: "c", Spec: spec, Dir: "/b", Rootfs: "/r"})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(viewOf("/r", oci)); got != c.want {
			t.Errorf("read-only %t, %q: %s, want %s", c.readOnly, c.mode, got, c.want)
		}
	}
}
