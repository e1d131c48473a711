// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

func TestCheckNamespaces(t *testing.T) {
	for _, c := range []struct {
		kind specs.LinuxNamespaceType
		path string
		says string
	}{
		{specs.NetworkNamespace, "/proc/self/ns/net", ""},
		{specs.MountNamespace, "/proc/self/ns/mnt", ""},
		{specs.UTSNamespace, "/proc/self/ns/uts", ""},
		{specs.CgroupNamespace, "/proc/self/ns/cgroup", ""},
		{specs.PIDNamespace, "/proc/self/ns/net", "of another type"},
		{specs.PIDNamespace, "/dev/null", "is no namespace"},
		{specs.PIDNamespace, "/proc/self/ns/nothing", "no such file"},
	} {
		b := &Bundle{Spec: &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: c.kind, Path: c.path}, {Type: specs.IPCNamespace}}}}}
		err := b.CheckNamespaces()
		switch {
		case c.says == "" && err != nil, c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s at %s: %v, want %q", c.kind, c.path, err, c.says)
		case err != nil && api.KindOf(err) == api.KindInternal:
			t.Errorf("%s at %s: %v has no kind", c.kind, c.path, err)
		}
	}
	if err := (&Bundle{Spec: &specs.Spec{}}).CheckNamespaces(); err != nil {
		t.Error(err)
	}
}
