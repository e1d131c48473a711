// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

func TestValidate(t *testing.T) {
	seconds := func(n int) *int { return &n }
	for name, h := range map[string]specs.Hook{
		"no path":       {},
		"relative path": {Path: "bin/true"},
		"no time":       {Path: "/bin/true", Timeout: seconds(0)},
		"negative time": {Path: "/bin/true", Timeout: seconds(-1)},
		"endless time":  {Path: "/bin/true", Timeout: seconds(1 << 62)},
		"zero byte":     {Path: "/bin/true", Args: []string{"a\x00"}},
	} {
		if err := Validate(&specs.Hooks{Poststop: []specs.Hook{h}}); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Validate(nil); err != nil {
		t.Errorf("none: %v", err)
	}
	good := specs.Hook{Path: "/bin/true", Timeout: seconds(1)}
	if err := Validate(&specs.Hooks{CreateRuntime: []specs.Hook{good}}); err != nil {
		t.Errorf("a good one: %v", err)
	}
	if err := Validate(&specs.Hooks{CreateRuntime: make([]specs.Hook, MaxHooks+1)}); api.KindOf(err) != api.KindLimit {
		t.Errorf("too many: %v", err)
	}
}

// TestOfKnowsEveryKind: each kind's hooks are those of its own field.
func TestOfKnowsEveryKind(t *testing.T) {
	h := &specs.Hooks{
		CreateRuntime:   []specs.Hook{{Path: "/createRuntime"}},
		CreateContainer: []specs.Hook{{Path: "/createContainer"}},
		StartContainer:  []specs.Hook{{Path: "/startContainer"}},
		Poststart:       []specs.Hook{{Path: "/poststart"}},
		Poststop:        []specs.Hook{{Path: "/poststop"}},
	}
	//lint:ignore SA1019 Deprecated by the specification; docker and podman use it.
	h.Prestart = []specs.Hook{{Path: "/prestart"}}
	for _, k := range Kinds() {
		if l := Of(h, k); len(l) != 1 || l[0].Path != "/"+string(k) {
			t.Errorf("%s: %+v", k, l)
		}
		if Of(nil, k) != nil {
			t.Errorf("%s of none", k)
		}
	}
}

func TestArgumentIsBounded(t *testing.T) {
	arg, err := Argument(specs.State{ID: "c"}, []specs.Hook{{Path: "/bin/true"}})
	if err != nil || !IsArgument(arg) {
		t.Errorf("got %q, %v", arg, err)
	}
	if _, err := Argument(specs.State{}, []specs.Hook{{Path: "/" + strings.Repeat("x", maxArgumentBytes)}}); api.KindOf(err) != api.KindLimit {
		t.Errorf("too long: %v", err)
	}
	if IsArgument("--") {
		t.Error("a separator is no argument of ours")
	}
}
