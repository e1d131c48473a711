// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

const program = "/usr/local/bin/rungv"

// both adds and takes back, and checks that nothing else has changed.
func both(t *testing.T, doc string, add, remove func([]byte) ([]byte, bool, error)) []byte {
	t.Helper()
	out, changed, err := add([]byte(doc))
	if err != nil || !changed {
		t.Fatalf("add to %q: %t, %v", doc, changed, err)
	}
	again, changed, err := add(out)
	if err != nil || changed || !bytes.Equal(again, out) {
		t.Errorf("added twice: %t, %v:\n%s", changed, err, again)
	}
	back, changed, err := remove(out)
	if err != nil || !changed {
		t.Fatalf("remove from %q: %t, %v", out, changed, err)
	}
	if twice, changed, err := remove(back); err != nil || changed || !bytes.Equal(twice, back) {
		t.Errorf("removed twice: %t, %v", changed, err)
	}
	return back
}

func TestDocker(t *testing.T) {
	add := func(doc []byte) ([]byte, bool, error) { return AddDocker(doc, "gvx", program) }
	remove := func(doc []byte) ([]byte, bool, error) { return RemoveDocker(doc, "gvx", program) }
	for _, doc := range []string{
		"", "{}", "{\n  \"zeta\": 1,\n  \"alpha\": {\n    \"b\": 1e3,\n    \"a\": [\n      1\n    ]\n  }\n}\n",
		"{\n  \"runtimes\": {\n    \"other\": {\n      \"path\": \"/x\",\n      \"runtimeArgs\": [\n        \"a\"\n      ]\n    }\n  },\n  \"debug\": true\n}\n",
	} {
		back := both(t, doc, add, remove)
		if len(doc) > 2 && string(back) != doc {
			t.Errorf("%q is %q again", doc, back)
		}
		out, _, _ := add([]byte(doc))
		var parsed struct{ Runtimes map[string]dockerRuntime }
		if err := json.Unmarshal(out, &parsed); err != nil || parsed.Runtimes["gvx"].Path != program {
			t.Errorf("%s: %v", out, err)
		}
	}
	for _, doc := range []string{"null", `{"runtimes":null}`} {
		out, changed, err := add([]byte(doc))
		if err != nil || !changed || !bytes.Contains(out, []byte(program)) {
			t.Errorf("%s: %s, %t, %v", doc, out, changed, err)
		}
	}
	if _, _, err := add([]byte(`{"runtimes":[]}`)); err == nil || !strings.HasSuffix(err.Error(), "runtimes: not a JSON object, but [") {
		t.Errorf("a list of runtimes: %v", err)
	}
	for doc, kind := range map[string]api.Kind{
		"[]": api.KindInvalid, "{": api.KindInvalid, "{} x": api.KindInvalid, `{"a":1,"a":2}`: api.KindInvalid, `{"runtimes":3}`: api.KindInvalid,
		`{"runtimes":{"gvx":{"path":"/other"}}}`: api.KindExists,
	} {
		if _, _, err := add([]byte(doc)); api.KindOf(err) != kind {
			t.Errorf("%s: %v", doc, err)
		}
	}
	if _, _, err := remove([]byte(`{"runtimes":{"gvx":{"path":"/other"}}}`)); api.KindOf(err) != api.KindExists {
		t.Errorf("somebody else's: %v", err)
	}
}

func TestContainerd(t *testing.T) {
	add := func(doc []byte) ([]byte, bool, error) { return AddContainerd(doc, "gvx", program) }
	remove := func(doc []byte) ([]byte, bool, error) { return RemoveContainerd(doc, "gvx") }
	for doc, plugin := range map[string]string{
		"version = 2\n": criVersion2,
		"version = 3\n# a word\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n[grpc]\n  address = '/x' # why\n": criVersion3,
		"version = 4\n": criVersion3,
	} {
		if back := both(t, doc, add, remove); string(back) != doc {
			t.Errorf("%q is %q again", doc, back)
		}
		out, _, _ := add([]byte(doc))
		file, err := parseContainerd(out)
		if err != nil || file.Plugins[plugin].Containerd.Runtimes["gvx"].Type != ShimRuntime {
			t.Errorf("%s: %v", out, err)
		}
	}
	if back := both(t, "", add, remove); string(back) != "version = 3\n" {
		t.Errorf("of nothing there is left: %q", back)
	}
	// A program that has moved takes its entry along.
	out, _, _ := add([]byte("version = 3\n"))
	moved, changed, err := AddContainerd(out, "gvx", "/elsewhere")
	if err != nil || !changed || strings.Count(string(moved), "runtime_type") != 1 || !strings.Contains(string(moved), "/elsewhere") {
		t.Errorf("moved: %t, %v:\n%s", changed, err, moved)
	}
	for doc, kind := range map[string]api.Kind{
		"version = 1\n": api.KindUnsupported, "version = ": api.KindInvalid, "x = 1\n": api.KindUnsupported,
		"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvx]\n  runtime_type = 'x'\n": api.KindExists,
		"version = 3\n# gvx: begin of runtime \"gvx\", added by rungv install\n":                                api.KindInvalid,
	} {
		if _, _, err := add([]byte(doc)); api.KindOf(err) != kind {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"gvx": true, "a-b1": true, "": false, "-a": false, "a-": false, "A": false, "a.b": false, "a'b": false, strings.Repeat("a", 64): false,
	} {
		if (CheckName(name) == nil) != ok {
			t.Errorf("%q", name)
		}
	}
}

// FuzzConfigurations: whatever the files hold, what was added can be taken back.
func FuzzConfigurations(f *testing.F) {
	f.Add([]byte(`{"runtimes":{"other":{"path":"/x"}}}`))
	f.Add([]byte("version = 3\n[grpc]\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if out, changed, err := AddDocker(doc, "gvx", program); err == nil && changed {
			if _, changed, err := RemoveDocker(out, "gvx", program); err != nil || !changed {
				t.Errorf("%q: %v", out, err)
			}
		}
		if out, changed, err := AddContainerd(doc, "gvx", program); err == nil && changed {
			if _, changed, err := RemoveContainerd(out, "gvx"); err != nil || !changed {
				t.Errorf("%q: %v", out, err)
			}
		}
	})
}
