// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"reflect"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

// erofsMounts are the mounts of an image's layers, topmost first, as the snapshotter
// lists them.
func erofsMounts(names ...string) []Mount {
	var list []Mount
	for _, name := range names {
		list = append(list, Mount{Type: "erofs", Source: "/snapshots/" + name + "/layer.erofs", Options: []string{"ro", "loop"}})
	}
	return list
}

var rwlayer = Mount{Type: "mkfs/ext4", Source: "/snapshots/9/rwlayer.img",
	Options: []string{"X-containerd.mkfs.fs=ext4", "X-containerd.mkfs.size=1073741824", "rw", "loop"}}

func TestMountsOfSnapshotters(t *testing.T) {
	volume := &Volume{Path: "/snapshots/9/rwlayer.img", SizeBytes: 1 << 30, Directory: "upper"}
	two := []string{"/snapshots/1/layer.erofs", "/snapshots/2/layer.erofs"}
	for name, test := range map[string]struct {
		mounts []Mount
		want   *Plan
	}{
		"erofs with directories": {
			append(erofsMounts("2", "1"), Mount{Type: "format/mkdir/overlay", Source: "overlay", Options: []string{
				"workdir=/snapshots/9/work", "upperdir=/snapshots/9/fs", "lowerdir={{ overlay 0 1 }}"}}),
			&Plan{Layers: two, Upper: "/snapshots/9/fs", Work: "/snapshots/9/work"},
		},
		"erofs with a volume": {
			append(append([]Mount{rwlayer}, erofsMounts("2", "1")...), Mount{Type: "format/mkdir/overlay", Source: "overlay", Options: []string{
				"X-containerd.mkdir.path={{ mount 0 }}/upper:0755", "X-containerd.mkdir.path={{ mount 0 }}/work:0755",
				"workdir={{ mount 0 }}/work", "upperdir={{ mount 0 }}/upper", "lowerdir={{ overlay 1 2 }}"}}),
			&Plan{Layers: two, Volume: volume},
		},
		"erofs, one layer and a volume": {
			append(append([]Mount{rwlayer}, erofsMounts("1")...), Mount{Type: "format/mkdir/overlay", Source: "overlay", Options: []string{
				"upperdir={{ mount 0 }}/upper", "workdir={{ mount 0 }}/work", "lowerdir={{ mount 1 }}"}}),
			&Plan{Layers: two[:1], Volume: volume},
		},
		"erofs, a view": {
			append(erofsMounts("2", "1"), Mount{Type: "format/mkdir/overlay", Source: "overlay", Options: []string{"lowerdir={{ overlay 0 1 }}"}}),
			&Plan{Layers: two, ReadOnly: true},
		},
		"erofs, a view of one layer":        {erofsMounts("1"), &Plan{Layers: two[:1], ReadOnly: true}},
		"erofs, one lower without an upper": {append(erofsMounts("1"), Mount{Type: "format/bind", Source: "{{ mount 0 }}", Options: []string{"ro", "rbind"}}), &Plan{Layers: two[:1], ReadOnly: true}},
		"erofs, a volume without layers": {
			[]Mount{rwlayer, {Type: "format/mkdir/bind", Source: "{{ mount 0 }}/upper", Options: []string{"X-containerd.mkdir.path={{ mount 0 }}/upper:0755", "rw", "rbind"}}},
			&Plan{Volume: volume},
		},
		"native": {
			[]Mount{{Type: "bind", Source: "/snapshots/7", Options: []string{"rw", "rbind"}}}, &Plan{Directory: "/snapshots/7"},
		},
		"native, a view": {
			[]Mount{{Type: "bind", Source: "/snapshots/7", Options: []string{"rbind", "ro"}}}, &Plan{Directory: "/snapshots/7", ReadOnly: true},
		},
		"overlayfs": {
			[]Mount{{Type: "overlay", Source: "overlay", Options: []string{"index=off", "workdir=/s/3/work", "upperdir=/s/3/fs", "lowerdir=/s/2/fs:/s/1/fs"}}},
			&Plan{Host: &Stack{Lowers: []string{"/s/2/fs", "/s/1/fs"}, Upper: "/s/3/fs", Work: "/s/3/work", Options: []string{"index=off"}}},
		},
		"overlayfs, a view": {
			[]Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=/s/2/fs:/s/1/fs"}}},
			&Plan{Host: &Stack{Lowers: []string{"/s/2/fs", "/s/1/fs"}}, ReadOnly: true},
		},
	} {
		got, err := Parse(test.mounts)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, test.want)
		}
	}
}

func TestOtherMountsAreErrors(t *testing.T) {
	overlay := func(options ...string) []Mount {
		return append(erofsMounts("2", "1"), Mount{Type: "format/mkdir/overlay", Options: options})
	}
	for name, mounts := range map[string][]Mount{
		"none":                nil,
		"unknown type":        {{Type: "nfs", Source: "host:/x"}},
		"relative bind":       {{Type: "bind", Source: "x"}},
		"relative layer":      {{Type: "erofs", Source: "x"}},
		"lower out of range":  overlay("lowerdir={{ overlay 0 2 }}", "upperdir=/u", "workdir=/w"),
		"lower reversed":      overlay("lowerdir={{ overlay 1 0 }}", "upperdir=/u", "workdir=/w"),
		"lower negative":      overlay("lowerdir={{ overlay -1 0 }}"),
		"lower missing":       overlay("upperdir=/u", "workdir=/w"),
		"lower literal":       overlay("lowerdir=/etc"),
		"upper without work":  overlay("lowerdir={{ overlay 0 1 }}", "upperdir=/u"),
		"upper in a layer":    overlay("lowerdir={{ overlay 0 1 }}", "upperdir={{ mount 0 }}/upper", "workdir={{ mount 0 }}/work"),
		"upper no mount":      overlay("lowerdir={{ overlay 0 1 }}", "upperdir={{ mount 9 }}/upper"),
		"upper leads out":     append([]Mount{rwlayer}, Mount{Type: "format/bind", Source: "{{ mount 0 }}/../x"}),
		"unknown option":      overlay("lowerdir={{ overlay 0 1 }}", "mode=0777"),
		"layer of many files": append([]Mount{{Type: "erofs", Source: "/m", Options: []string{"device=/x"}}}, Mount{Type: "format/bind", Source: "{{ mount 0 }}"}),
		"volume without size": {{Type: "mkfs/ext4", Source: "/v"}, {Type: "format/mkdir/bind", Source: "{{ mount 0 }}/upper"}},
		"volume of xfs":       {{Type: "mkfs/xfs", Source: "/v", Options: []string{"X-containerd.mkfs.size=1g"}}, {Type: "format/bind", Source: "{{ mount 0 }}"}},
		"volume too large":    {{Type: "mkfs/ext4", Source: "/v", Options: []string{"X-containerd.mkfs.size=1000000t"}}, {Type: "format/bind", Source: "{{ mount 0 }}"}},
		"stack relative":      {{Type: "overlay", Options: []string{"lowerdir=a:b"}}},
		"stack without lower": {{Type: "overlay", Options: []string{"upperdir=/u", "workdir=/w"}}},
	} {
		if plan, err := Parse(mounts); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
	if _, err := Parse(make([]Mount, maxMounts+1)); api.KindOf(err) != api.KindLimit {
		t.Errorf("too many mounts: %v", err)
	}
}

// FuzzParse: whatever the mounts, no panic, and no plan that names what was not
// given as an absolute path.
func FuzzParse(f *testing.F) {
	f.Add("format/mkdir/overlay", "overlay", "lowerdir={{ overlay 0 0 }}", "upperdir={{ mount 0 }}/upper")
	f.Add("format/bind", "{{ mount 0 }}", "ro", "")
	f.Add("overlay", "overlay", "lowerdir=/a:/b", "upperdir=/c")
	f.Fuzz(func(t *testing.T, kind, source, a, b string) {
		for _, below := range [][]Mount{nil, erofsMounts("1"), {rwlayer}} {
			p, err := Parse(append(below, Mount{Type: kind, Source: source, Options: []string{a, b}}))
			if err != nil {
				continue
			}
			for _, path := range p.Layers {
				if !strings.HasPrefix(path, "/") {
					t.Errorf("layer %q", path)
				}
			}
			if p.Volume != nil && strings.Contains("/"+p.Volume.Directory+"/", "/../") {
				t.Errorf("volume directory %q", p.Volume.Directory)
			}
		}
	})
}
