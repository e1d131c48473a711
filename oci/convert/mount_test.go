// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"reflect"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

func TestParseMount(t *testing.T) {
	for s, want := range map[string]VolumeMount{
		"type=volume,src=data,dst=/v":                             {Source: "data", Target: "/v"},
		"source=data,target=/v/":                                  {Source: "data", Target: "/v"},
		"destination=/v":                                          {Target: "/v"},
		"type=volume,src=g.ext4,dst=/v,ro":                        {Source: "g.ext4", Target: "/v", ReadOnly: true},
		"src=g.ext4,dst=/v,readonly=false,volume-nocopy":          {Source: "g.ext4", Target: "/v", NoCopy: true},
		"src=/a/b,dst=/v,size=64g,durability=process":             {Source: "/a/b", Target: "/v", SizeBytes: 64 << 30, Durability: api.DurabilityProcess},
		"src=data,dst=/v,clone=ephemeral":                         {Source: "data", Target: "/v", Clone: CloneEphemeral},
		"src=data,dst=/v,clone=./ep":                              {Source: "data", Target: "/v", Clone: "./ep"},
		"src=data,dst=/v,uid=5,gid=6,volume-driver=local":         {Source: "data", Target: "/v", UID: 5, GID: 6},
		`src=data,dst=/v,"volume-label=a=b,c",consistency=cached`: {Source: "data", Target: "/v", Labels: map[string]string{"a": "b,c"}},
	} {
		m, err := ParseMount(s)
		if err != nil || m.Volume == nil || !reflect.DeepEqual(*m.Volume, want) {
			t.Errorf("%s: %+v, %v, want %+v", s, m, err, want)
		}
	}
	for s, want := range map[string]BindMount{
		"type=bind,src=/a,dst=/v":                                              {Source: "/a", Target: "/v"},
		"type=BIND,source=./a,destination=/v/,readonly":                        {Source: "./a", Target: "/v", ReadOnly: true},
		"type=bind,src=/a,dst=/v,bind-propagation=RSLAVE,bind-nonrecursive":    {Source: "/a", Target: "/v", Propagation: "rslave", NonRecursive: true},
		"type=bind,src=/g.ext4,dst=/v,bind-recursive=disabled":                 {Source: "/g.ext4", Target: "/v", NonRecursive: true},
		"type=bind,src=/a,dst=/v,exclusive,bind-create-src,consistency=cached": {Source: "/a", Target: "/v", Exclusive: true, Create: true},
		`type=bind,"src=/a,b",dst=/v,ro=false,bind-recursive=enabled,ro=0`:     {Source: "/a,b", Target: "/v"},
	} {
		m, err := ParseMount(s)
		if err != nil || m.Bind == nil || !reflect.DeepEqual(*m.Bind, want) {
			t.Errorf("%s: %+v, %v, want %+v", s, m, err, want)
		}
	}
	m, err := ParseMount("type=tmpfs,dst=/t,tmpfs-size=1m,tmpfs-mode=700,ro")
	if err != nil {
		t.Fatal(err)
	}
	tmpfs := m.Tmpfs
	if err != nil || tmpfs.Target != "/t" || tmpfs.SizeBytes != 1<<20 || tmpfs.Mode != 0o700 || !tmpfs.ReadOnly || !tmpfs.NoExec {
		t.Errorf("%+v, %v", tmpfs, err)
	}
	for s, say := range map[string]string{
		"": "EOF", "src=data": "target is required", "dst=v": "must be absolute", "dst=/": "can't be '/'", "type=,dst=/v": "type is required",
		"type=nfs,dst=/v": "unknown mount type", "type=bind,dst=/v": "field Source must not be empty", "type=bind,src=a,dst=/v": "mount path must be absolute",
		"type=bind,src=/a,dst=v": "must be absolute", "type=bind,src=/a,dst=/": "can't be '/'", "type=bind,src=/a,dst=/v,bind-propagation=x": "invalid propagation",
		"type=bind,src=/a,dst=/v,ro,bind-recursive=writable": "read-only too", "type=bind,src=/a,dst=/v,bind-recursive=x": "invalid value for bind-recursive", "type=bind,src=/a,dst=/v,volume-nocopy": "cannot mix",
		"type=bind,src=/a,dst=/v,tmpfs-size=1": "cannot mix", "src=data,dst=/v,exclusive": "cannot mix", "dst": "must be a key=value pair",
		"dst=/v,what=1": "unexpected key 'what'", "dst=/v,ro=maybe": "invalid value for ro", "src=d,dst=/v": "no volume name",
		"src=data,dst=/v,size=0": "no size", "src=data,dst=/v,size=x": "invalid size", "src=data,dst=/v,durability=x": "invalid durability",
		"src=data,dst=/v,clone=": "clone is empty", "dst=/v,clone=ephemeral": "needs src=", "src=data,dst=/v,clone=ep": "clone=ep",
		"src=data,dst=/v,clone=ephemeral,size=1g": "leave size out", "src=data,dst=/v,uid=-1": "no id", "src=data,dst=/v,volume-driver=nfs": "only local",
		"src=data,dst=/v,volume-opt=x": "not supported", "src=data,dst=/v,volume-subpath=x": "not supported", "src=data,dst=/v,tmpfs-size=1": "cannot mix",
		"src=data,dst=/v,bind-propagation=shared": "cannot mix", "type=tmpfs,dst=/v,clone=ephemeral": "cannot mix", "type=tmpfs,src=data,dst=/v": "no source",
		"type=tmpfs,dst=/v,tmpfs-mode=9": "invalid value", `src="da`: "parse error",
	} {
		if _, err := ParseMount(s); err == nil || !strings.Contains(err.Error(), say) || api.KindOf(err) == api.KindInternal {
			t.Errorf("%q: %v (%s), want %q", s, err, api.KindOf(err), say)
		}
	}
}

func TestParseVolume(t *testing.T) {
	for s, want := range map[string]VolumeMount{
		"/v": {Target: "/v"}, "data:/v": {Source: "data", Target: "/v"}, "data:/v:ro": {Source: "data", Target: "/v", ReadOnly: true},
		"/srv/g.ext4:/v:rw,nocopy,z": {Source: "/srv/g.ext4", Target: "/v", NoCopy: true}, "e.delta:/v": {Source: "e.delta", Target: "/v"},
	} {
		if m, err := ParseVolume(s); err != nil || m.Volume == nil || !reflect.DeepEqual(*m.Volume, want) {
			t.Errorf("%s: %+v, %v, want %+v", s, m, err, want)
		}
	}
	for s, want := range map[string]BindMount{
		"/etc:/v": {Source: "/etc", Target: "/v", Create: true}, "./x:/v/:ro,Z": {Source: "./x", Target: "/v", ReadOnly: true, Create: true},
		".:/v:rw,rslave,cached": {Source: ".", Target: "/v", Propagation: "rslave", Create: true}, "../a:/v": {Source: "../a", Target: "/v", Create: true},
	} {
		if m, err := ParseVolume(s); err != nil || m.Bind == nil || !reflect.DeepEqual(*m.Bind, want) {
			t.Errorf("%s: %+v, %v, want %+v", s, m, err, want)
		}
	}
	for s, say := range map[string]string{
		"": "a part is empty", ":/v": "a part is empty", "data:": "a part is empty", "a:b:c:d": "invalid volume specification", "data:/v:what": "invalid mode: what",
		"a/b:/v": "use absolute path", "/etc:/v:what": "invalid mode: what", "/etc:v": "must be absolute", "x:/v": "no volume name", "data:v": "must be absolute", "data:/": "can't be '/'",
	} {
		if _, err := ParseVolume(s); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v, want %q", s, err, say)
		}
	}
}

func FuzzParseMount(f *testing.F) {
	f.Add("type=volume,src=data,dst=/v,size=1g,clone=ephemeral")
	f.Add(`type=tmpfs,"dst=/a,b",tmpfs-mode=1777`)
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMount(s)
		if err != nil {
			return
		}
		is := 0
		if m.Tmpfs != nil {
			is++
		}
		if v := m.Volume; v != nil {
			is++
			if err := v.check(); err != nil {
				t.Errorf("%q was taken and is wrong: %v", s, err)
			}
		}
		if b := m.Bind; b != nil {
			is++
			if err := b.check(); err != nil {
				t.Errorf("%q was taken and is wrong: %v", s, err)
			}
		}
		if is != 1 {
			t.Errorf("%q: %+v", s, m)
		}
	})
}

// TestMountsOfASandbox: order, and what follows from a volume's nature.
func TestMountsOfASandbox(t *testing.T) {
	o := Options{
		Args:  []string{"x"},
		Tmpfs: []api.Mount{{Type: api.MountTmpfs, Target: "/a/b/c"}},
		Volumes: []VolumeMount{
			{Source: "data", Target: "/a/b"}, {Source: "g.ext4", Target: "/z", Clone: CloneEphemeral}, {Target: "/y"},
			{Source: "data2", Target: "/x", ReadOnly: true}, {Source: "g.ext4", Target: "/w", Clone: "k.delta", Durability: api.DurabilityProcess},
		},
	}
	s, err := Sandbox(Input{ID: strings.Repeat("a", 64), Image: ispec.ImageConfig{}, Layers: []string{"l"}, Cores: 1, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	type short struct {
		target     string
		ro, comp   bool
		durability api.Durability
	}
	var got []short
	for _, m := range s.Container.Mounts {
		e := short{target: m.Target, ro: m.ReadOnly}
		if m.Volume != nil {
			e.comp, e.durability = m.Volume.Compact, m.Volume.Durability
		}
		got = append(got, e)
	}
	want := []short{
		{"/z", false, false, api.DurabilityProcess}, {"/y", false, false, api.DurabilityProcess}, {"/x", true, false, api.DurabilityHost},
		{"/w", false, false, api.DurabilityProcess}, {"/a/b", false, true, api.DurabilityHost}, {"/a/b/c", false, false, ""},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("mounts %v, want %v", got, want)
	}
	o.Volumes[0].Target = "/z"
	_, err = Sandbox(Input{ID: "a", Layers: []string{"l"}, Cores: 1, Options: o})
	if err == nil || !strings.Contains(err.Error(), "Duplicate mount point: /z") {
		t.Error(err)
	}
}
