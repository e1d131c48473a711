// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

// loseLayer removes the file of the image's lowest layer.
func loseLayer(t *testing.T, s *Store, img *Image) {
	t.Helper()
	if err := os.Remove(s.layerPath(img.keys[0])); err != nil {
		t.Fatal(err)
	}
}

// wantMissing checks that err names image and layer and says what to do.
func wantMissing(t *testing.T, what string, err error, name string, img *Image) {
	t.Helper()
	if api.KindOf(err) != api.KindImage {
		t.Fatalf("%s: kind %q, %v", what, api.KindOf(err), err)
	}
	for _, part := range []string{"image " + name, "layer " + string(img.LayerDiffIDs[0]), "import the image again", "rungv image rm -f " + shortID(img.ID)} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v: want %q in it", what, err, part)
		}
	}
}

func TestMissingLayerOfImportedImageAsksNoRegistry(t *testing.T) {
	reg := newRegistry(t)
	ctx := context.Background()
	s := open(t, scratch(t))
	// A registry that would answer, with another image of that name.
	name := reg.push(t, "tiny:1", twoLayers(t))
	img := importRoot(t, s, name)
	loseLayer(t, s, img)
	for _, policy := range []Policy{PullMissing, PullNever} {
		_, err := s.Pull(ctx, name, PullOptions{Policy: policy})
		wantMissing(t, string(policy), err, name, img)
	}
	for _, id := range []string{string(img.ID), shortID(img.ID)} {
		_, err := s.Pull(ctx, id, PullOptions{})
		wantMissing(t, "by ID", err, string(img.ID), img)
	}
	_, err := s.Pin(img)
	wantMissing(t, "pin", err, name, img)
	importRoot(t, s, name)
	if _, err := s.Pull(ctx, name, PullOptions{}); err != nil {
		t.Errorf("imported again: %v", err)
	}
	check(t, s)
	loseLayer(t, s, img)
	if _, err := s.Remove(ctx, name, true); err != nil {
		t.Errorf("rm -f: %v", err)
	}
	check(t, s)
}

func TestMissingLayerOfLoadedImageAsksNoRegistry(t *testing.T) {
	reg := newRegistry(t)
	ctx := context.Background()
	name := reg.push(t, "test/two:1", twoLayers(t))
	from, s := open(t, scratch(t)), open(t, scratch(t))
	pull(t, from, name)
	var archive bytes.Buffer
	if err := from.Save(ctx, []string{name}, &archive); err != nil {
		t.Fatal(err)
	}
	loaded, err := s.Load(ctx, &archive, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	loseLayer(t, s, loaded[0])
	_, err = s.Pull(ctx, name, PullOptions{})
	wantMissing(t, "loaded", err, name, loaded[0])
}

func TestMissingLayerOfPulledImageIsPulledAgain(t *testing.T) {
	reg := newRegistry(t)
	ctx := context.Background()
	s := open(t, scratch(t))
	name := reg.push(t, "test/two:1", twoLayers(t))
	img := pull(t, s, name)
	byDigest, err := s.Inspect(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{name, byDigest.RepoDigests[0]} {
		loseLayer(t, s, img)
		_, err := s.Pull(ctx, ref, PullOptions{Policy: PullNever})
		wantMissing(t, "never", err, ref, img)
		if _, err := s.Pull(ctx, ref, PullOptions{}); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		check(t, s)
	}
}
