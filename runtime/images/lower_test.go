// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"sync"
	"testing"

	"z.gfire.dev/gvx/oci/erofs"
)

// lookupFile finds an entry of one converted layer.
func lookupFile(t *testing.T, f *os.File, path string) (erofs.Entry, bool) {
	t.Helper()
	im, err := openImage(f)
	if err != nil {
		t.Fatal(err)
	}
	v := &lowerView{layers: []*erofs.Image{im}}
	e, ok := v.lookup(path)
	if v.err != nil {
		t.Fatal(v.err)
	}
	return e, ok
}

// TestLayerWithoutItsDirectories: directories that an upper layer needs and
// does not bring are as below it, and a directory that is a symlink there
// stays one.
func TestLayerWithoutItsDirectories(t *testing.T) {
	reg := newRegistry(t)
	base := tarOf(t, member{name: "tmp/", typ: tar.TypeDir, mode: 0o1777}, member{name: "usr/lib/", typ: tar.TypeDir, mode: 0o711},
		member{name: "lib", typ: tar.TypeSymlink, link: "usr/lib"}, member{name: "gone/", typ: tar.TypeDir, mode: 0o700})
	middle := tarOf(t, member{name: ".wh.gone"})
	bare := tarOf(t, member{name: "tmp/x", content: "1"}, member{name: "lib/y", content: "2"}, member{name: "gone/z", content: "3"})
	ref := reg.push(t, "test/bare:1", imageOf(t, "bare", base, middle, bare))
	s := open(t, scratch(t))
	img := pull(t, s, ref)
	check(t, s)
	pin, err := s.Pin(img)
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Close()
	top := pin.Layers()[2]
	for path, mode := range map[string]uint32{"tmp": 0o1777, "usr/lib": 0o711, "gone": 0o755} {
		if e, ok := lookupFile(t, top, path); !ok || e.Mode&0o7777 != mode {
			t.Errorf("%s: mode %#o, %v, want %#o", path, e.Mode, ok, mode)
		}
	}
	if _, ok := lookupFile(t, top, "lib"); ok {
		t.Error("the upper layer hides the symlink /lib")
	}
	if got := content(t, top, "usr/lib/y"); got != "2" {
		t.Errorf("usr/lib/y holds %q", got)
	}
	// The same layer as the lowest of another image stands alone.
	alone := pull(t, s, reg.push(t, "test/alone:1", imageOf(t, "alone", bare)))
	pin2, err := s.Pin(alone)
	if err != nil {
		t.Fatal(err)
	}
	defer pin2.Close()
	if e, ok := lookupFile(t, pin2.Layers()[0], "lib"); !ok || e.Mode&erofs.ModeType != erofs.ModeDir {
		t.Errorf("lib alone: %#o, %v", e.Mode, ok)
	}
	var archive bytes.Buffer
	if err := s.Save(context.Background(), []string{ref}, &archive); err != nil {
		t.Fatal(err)
	}
	to := open(t, scratch(t))
	if got, err := to.Load(context.Background(), &archive, PullOptions{}); err != nil || got[0].ID != img.ID {
		t.Errorf("load: %v, %v", got, err)
	}
	check(t, to)
}

// TestLayersInOtherOrder: two images with the same layers in opposite order,
// each of which needs the other, are pulled at once. Waiting for one another
// would never end.
func TestLayersInOtherOrder(t *testing.T) {
	reg := newRegistry(t)
	a, b := tarOf(t, member{name: "x/a", content: "1"}), tarOf(t, member{name: "x/b", content: "2"})
	refs := []string{
		reg.push(t, "test/ab:1", imageOf(t, "ab", a, b)), reg.push(t, "test/ba:1", imageOf(t, "ba", b, a)),
	}
	for range 5 {
		s := open(t, scratch(t))
		var wg sync.WaitGroup
		for _, ref := range refs {
			wg.Go(func() {
				if _, err := s.Pull(context.Background(), ref, PullOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		check(t, s)
		if _, err := s.Prune(context.Background(), true); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{dirLayers, dirLocks, dirTmp} {
			if n := names(t, s.dir(d)); len(n) != 0 {
				t.Errorf("%s holds %v", d, n)
			}
		}
	}
}
