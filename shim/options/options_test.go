// SPDX-License-Identifier: Apache-2.0

package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"

	"z.gfire.dev/gvx/runtime/api"
)

const typeURL = "runtimeoptions.v1.Options"

func message(t *testing.T, m *runtimeoptions.Options) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWithoutOptionsTheDefaultsHold(t *testing.T) {
	for _, value := range [][]byte{nil, message(t, &runtimeoptions.Options{})} {
		url := ""
		if value != nil {
			url = typeURL
		}
		if o, err := Parse(url, value); err != nil || o != Default() {
			t.Errorf("Parse = %+v, %v", o, err)
		}
	}
}

func TestDocumentFromBodyOrFile(t *testing.T) {
	const text = "TypeUrl = 'x'\ndebug = true\ndebug_log = '/var/log/gvx/'\nhost_network = true\ndurability = 'host'\noverlay = 'host'\nplatform = 'systrap'\n"
	path := filepath.Join(t.TempDir(), "gvx.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := Options{Debug: true, DebugLog: "/var/log/gvx/", Platform: "systrap", Network: NetworkNetns, HostNetwork: true, Durability: "host", Overlay: OverlayHost, TypeURL: "x"}
	for name, m := range map[string]*runtimeoptions.Options{
		"body": {ConfigBody: []byte(text)},
		// The path wins, as for every runtime.
		"file": {ConfigPath: path, ConfigBody: []byte("debug = 7")},
	} {
		o, err := Parse("types.example/"+typeURL, message(t, m))
		if err != nil || o != want {
			t.Errorf("%s: Parse = %+v, %v", name, o, err)
		}
	}
}

func TestWhatMeansNothingIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"debgu = true":                          `unknown key "debgu"`,
		"network = 'host'":                      "netns, none",
		"platform = 'kvm'":                      "systrap",
		"durability = ''":                       "host, process",
		"network = 'none'\nhost_network = true": "gives nobody a network",
		"overlay = 'x'":                         "private, host",
		"debug = 'yes'":                         "",
		"debug_log = 'relative'":                "absolute",
		"= broken":                              "",
		"[network]\nmode = 'bridge'":            "",
	} {
		_, err := Parse(typeURL, message(t, &runtimeoptions.Options{ConfigBody: []byte(text)}))
		if api.KindOf(err) != api.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for name, m := range map[string]*runtimeoptions.Options{
		"missing file": {ConfigPath: "/nonexistent/gvx.toml"},
		"too long":     {ConfigBody: []byte("debug = true # " + strings.Repeat("x", maxBytes))},
	} {
		if _, err := Parse(typeURL, message(t, m)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Parse("another.Options", nil); api.KindOf(err) != api.KindInvalid {
		t.Errorf("another runtime's options: %v", err)
	}
	if _, err := Parse(typeURL, []byte("\xff\xff")); api.KindOf(err) != api.KindInvalid {
		t.Errorf("broken message: %v", err)
	}
}

// TestWhatAClientAdds: containerd's client has runc's options for every runtime that
// has none.
func TestWhatAClientAdds(t *testing.T) {
	const url = "containerd.runc.v1.Options"
	for name, test := range map[string]struct {
		o    *runcoptions.Options
		kind api.Kind
	}{
		"nothing": {&runcoptions.Options{}, ""},
		//lint:ignore SA1019 Deprecated, and what containerd sends.
		"whom to ask":       {&runcoptions.Options{TaskApiAddress: "ttrpc+unix:///x", TaskApiVersion: 3}, ""},
		"owners of streams": {&runcoptions.Options{IoUid: 7, IoGid: 8}, ""},
		"the shim's cgroup": {&runcoptions.Options{ShimCgroup: "/shims"}, ""},
		"runc's own":        {&runcoptions.Options{IoUid: 7, BinaryName: "/usr/bin/runc"}, api.KindInvalid},
	} {
		data, err := proto.Marshal(test.o)
		if err != nil {
			t.Fatal(err)
		}
		o, err := Parse(url, data)
		if api.KindOf(err) != test.kind || err == nil && o != Default() {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
	if _, err := Parse(url, []byte{0xff}); api.KindOf(err) != api.KindInvalid {
		t.Errorf("damaged: %v", err)
	}
}

func TestOptionsThatABundleKeeps(t *testing.T) {
	dir := t.TempDir()
	if o, err := Kept(dir); err != nil || o != Default() {
		t.Errorf("without any: %+v, %v", o, err)
	}
	if err := Keep(dir, &runtimeoptions.Options{ConfigBody: []byte("debug = true")}); err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Debug = true
	if o, err := Kept(dir); err != nil || o != want {
		t.Errorf("Kept = %+v, %v", o, err)
	}
	if err := Keep(dir, &runtimeoptions.Options{ConfigBody: []byte("debgu = true")}); err != nil {
		t.Fatal(err)
	}
	if _, err := Kept(dir); api.KindOf(err) != api.KindInvalid {
		t.Errorf("an unknown key: %v", err)
	}
}
