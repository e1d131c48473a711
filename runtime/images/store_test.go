// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

func TestPullGetPin(t *testing.T) {
	reg := newRegistry(t)
	built := twoLayers(t)
	ref := reg.push(t, "test/two:1", built)
	s := open(t, scratch(t))
	if _, err := s.Get(ref); api.KindOf(err) != api.KindNotFound {
		t.Fatalf("Get before Pull: %v", err)
	}
	var events []Event
	img, err := s.Pull(context.Background(), ref, PullOptions{Progress: func(e Event) { events = append(events, e) }})
	if err != nil {
		t.Fatal(err)
	}
	check(t, s)
	want, _ := built.ConfigName()
	if string(img.ID) != want.String() {
		t.Errorf("ID %s, want %s", img.ID, want)
	}
	if last := events[len(events)-1]; last.Status != StatusNew || last.Digest == "" {
		t.Errorf("last event %+v", last)
	}
	digest, _ := built.Digest()
	for _, by := range []string{
		ref, string(img.ID), strings.TrimPrefix(string(img.ID), "sha256:"), strings.TrimPrefix(string(img.ID), "sha256:")[:12],
		string(img.ID)[:20], strings.TrimSuffix(ref, ":1") + "@" + digest.String(),
	} {
		got, err := s.Get(by)
		if err != nil || got.ID != img.ID || got.Config.Cmd[0] != "/bin/sh" || len(got.LayerDiffIDs) != 2 {
			t.Errorf("Get(%q) = %+v, %v", by, got, err)
		}
	}
	pin, err := s.Pin(img)
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Close()
	if got := content(t, pin.Layers()[0], "etc/os-release"); got != "ID=test\n" {
		t.Errorf("lowest layer holds %q", got)
	}
	if got := content(t, pin.Layers()[1], "etc/issue"); got != "hello\n" {
		t.Errorf("upper layer holds %q", got)
	}
	if _, err := pin.Layers()[0].WriteAt([]byte("x"), 0); err == nil {
		t.Error("a pinned layer is writable")
	}
}

// content reads a file of a layer.
func content(t testing.TB, f *os.File, path string) string {
	t.Helper()
	files, err := openLayerFiles(f)
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := files.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPullAgain(t *testing.T) {
	reg := newRegistry(t)
	built := twoLayers(t)
	ref := reg.push(t, "test/two:1", built)
	s := open(t, scratch(t))
	first := pull(t, s, ref)
	var last Event
	img, err := s.Pull(context.Background(), ref, PullOptions{Policy: PullAlways, Progress: func(e Event) { last = e }})
	if err != nil || img.ID != first.ID || last.Status != StatusUpToDate {
		t.Fatalf("second pull: %v, %v, %v", img, err, last)
	}
	layers, _ := built.Layers()
	for _, l := range layers {
		d, _ := l.Digest()
		if n := reg.fetched(d); n != 1 {
			t.Errorf("layer %s was fetched %d times", d, n)
		}
	}
	// The tag moves: the old image keeps its digest and loses its tag.
	reg.push(t, "test/two:1", imageOf(t, "other", tarOf(t, member{name: "a", content: "b"})))
	second := pull(t, s, ref)
	if second.ID == first.ID {
		t.Fatal("the moved tag was not followed")
	}
	old, err := s.Inspect(string(first.ID))
	if err != nil || !old.Dangling() || len(old.RepoDigests) != 1 {
		t.Errorf("old image %+v, %v", old, err)
	}
	gone, err := s.Prune(context.Background(), false)
	if err != nil || len(gone.Deleted) != 3 || gone.Freed == 0 {
		t.Errorf("prune: %+v, %v", gone, err)
	}
	check(t, s)
	if _, err := s.Get(ref); err != nil {
		t.Error(err)
	}
}

func TestPolicies(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	s := open(t, scratch(t))
	ctx := context.Background()
	if _, err := s.Pull(ctx, ref, PullOptions{Policy: PullNever}); api.KindOf(err) != api.KindNotFound {
		t.Errorf("never, absent: %v", err)
	}
	pull(t, s, ref)
	for _, p := range []Policy{PullNever, PullMissing} {
		if _, err := s.Pull(ctx, ref, PullOptions{Policy: p}); err != nil {
			t.Errorf("%s, present: %v", p, err)
		}
	}
	arm := image.Platform{OS: "linux", Architecture: "arm64"}
	if _, err := s.Pull(ctx, ref, PullOptions{Policy: PullNever, Platform: arm}); api.KindOf(err) != api.KindNotFound {
		t.Errorf("never, other platform: %v", err)
	}
	if _, err := s.Pull(ctx, ref, PullOptions{Platform: arm}); api.KindOf(err) != api.KindUnsupported {
		t.Errorf("missing, other platform: %v", err)
	}
	if _, err := s.Pull(ctx, ref, PullOptions{Policy: "sometimes"}); api.KindOf(err) != api.KindInvalid {
		t.Errorf("unknown policy: %v", err)
	}
	if _, err := s.Pull(ctx, "sha256:"+strings.Repeat("0", 64), PullOptions{}); api.KindOf(err) != api.KindNotFound || !strings.HasPrefix(err.Error(), "No such image") {
		t.Errorf("unknown ID: %v", err)
	}
	if _, err := s.Pull(ctx, reg.host+"/nothing:1", PullOptions{}); err == nil {
		t.Error("pull of an unknown repository succeeded")
	}
	check(t, s)
}

func TestSaveLoad(t *testing.T) {
	reg := newRegistry(t)
	twice := imageOf(t, "twice", tarOf(t, member{name: "f", content: "first"}, member{name: "./f", content: "second"}))
	refs := []string{reg.push(t, "test/two:1", twoLayers(t)), reg.push(t, "test/twice:1", twice)}
	from := open(t, scratch(t))
	var ids []string
	for _, r := range refs {
		ids = append(ids, string(pull(t, from, r).ID))
	}
	if n := len(globbed(t, from, "*"+extTar)); n != 1 {
		t.Errorf("%d tars kept, want the one with a name given twice", n)
	}
	var archive bytes.Buffer
	if err := from.Save(context.Background(), refs, &archive); err != nil {
		t.Fatal(err)
	}
	to := open(t, scratch(t))
	loaded, err := to.Load(context.Background(), bytes.NewReader(archive.Bytes()), PullOptions{})
	if err != nil || len(loaded) != 2 {
		t.Fatalf("%d loaded, %v", len(loaded), err)
	}
	check(t, to)
	for i, r := range refs {
		img, err := to.Get(r)
		if err != nil || string(img.ID) != ids[i] {
			t.Errorf("%s: %v, %v, want %s", r, img, err, ids[i])
		}
	}
	var again bytes.Buffer
	if err := to.Save(context.Background(), refs, &again); err != nil || !bytes.Equal(again.Bytes(), archive.Bytes()) {
		t.Errorf("a second generation differs: %d and %d bytes, %v", again.Len(), archive.Len(), err)
	}
}

func globbed(t *testing.T, s *Store, pattern string) []string {
	t.Helper()
	m, err := filepath.Glob(filepath.Join(s.dir(dirLayers), pattern))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestImport(t *testing.T) {
	s := open(t, scratch(t))
	ctx := context.Background()
	rootfs := tarOf(t, member{name: "bin/", typ: tar.TypeDir}, member{name: "bin/sh", content: "#!"})
	img, err := s.Import(ctx, bytes.NewReader(rootfs), PullOptions{Name: "My/Box"})
	if api.KindOf(err) != api.KindInvalid {
		t.Fatalf("upper case name: %v, %v", img, err)
	}
	if img, err = s.Import(ctx, bytes.NewReader(rootfs), PullOptions{Name: "my/box"}); err != nil {
		t.Fatal(err)
	}
	check(t, s)
	if got, err := s.Get("my/box:latest"); err != nil || got.ID != img.ID || got.Names[0] != "docker.io/my/box:latest" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.Import(ctx, strings.NewReader("this is no tar"), PullOptions{}); api.KindOf(err) != api.KindImage {
		t.Errorf("garbage: %v", err)
	}
	check(t, s)
}

func TestRemove(t *testing.T) {
	reg := newRegistry(t)
	built := twoLayers(t)
	one, two := reg.push(t, "test/two:1", built), reg.push(t, "test/two:2", built)
	s := open(t, scratch(t))
	img := pull(t, s, one)
	pull(t, s, two)
	ctx := context.Background()
	if _, err := s.Remove(ctx, string(img.ID), false); api.KindOf(err) != api.KindState {
		t.Errorf("by ID with two names: %v", err)
	}
	gone, err := s.Remove(ctx, one, false)
	if err != nil || len(gone.Untagged) != 1 || len(gone.Deleted) != 0 {
		t.Fatalf("first name: %+v, %v", gone, err)
	}
	pin, err := s.Pin(img)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, two, false); api.KindOf(err) != api.KindState {
		t.Errorf("in use: %v", err)
	}
	gone, err = s.Remove(ctx, two, true)
	if err != nil || len(gone.Untagged) != 2 || len(gone.Deleted) != 1 || gone.Kept != 2 {
		t.Fatalf("in use, forced: %+v, %v", gone, err)
	}
	if got := content(t, pin.Layers()[1], "etc/issue"); got != "hello\n" {
		t.Errorf("pinned layer holds %q", got)
	}
	pin.Close()
	gone, err = s.Prune(ctx, false)
	if err != nil || len(gone.Deleted) != 2 || gone.Kept != 0 {
		t.Errorf("prune: %+v, %v", gone, err)
	}
	for _, d := range []string{dirRefs, dirImages, dirBlobs, dirLayers, dirLocks, dirTmp} {
		if n := names(t, s.dir(d)); len(n) != 0 {
			t.Errorf("%s holds %v", d, n)
		}
	}
	if _, err := s.Remove(ctx, two, true); api.KindOf(err) != api.KindNotFound {
		t.Errorf("twice: %v", err)
	}
}

func TestVersionsAndStrangers(t *testing.T) {
	root := scratch(t)
	open(t, root)
	path := filepath.Join(root, fileVersion)
	for text, kind := range map[string]api.Kind{
		"gvx-images 2\n": api.KindUnsupported, "something else": api.KindInvalid, "gvx-images 0": api.KindInvalid, "": api.KindInvalid,
		strings.Repeat("x", 100): api.KindInvalid,
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		debris := filepath.Join(root, dirTmp, "debris")
		if err := os.WriteFile(debris, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(root, Options{}); api.KindOf(err) != kind {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := os.Stat(debris); err != nil {
			t.Errorf("%q: the refused store was changed: %v", text, err)
		}
	}
	stranger := t.TempDir()
	if err := os.WriteFile(filepath.Join(stranger, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(stranger, Options{}); api.KindOf(err) != api.KindInvalid {
		t.Errorf("a directory with other things: %v", err)
	}
	if _, err := Open("relative", Options{}); api.KindOf(err) != api.KindInvalid {
		t.Errorf("a relative root: %v", err)
	}
}

// TestVersionFileTellsNewerFromGarbage: what to do differs, so what the user is
// told does.
func TestVersionFileTellsNewerFromGarbage(t *testing.T) {
	root := scratch(t)
	open(t, root)
	for text, want := range map[string]struct {
		kind api.Kind
		says string
	}{
		"gvx-images 999\n":                  {api.KindUnsupported, "it has version 999, this program knows 1: a newer gvx wrote it; upgrade"},
		"999\n":                             {api.KindUnsupported, `says "999", this program writes "gvx-images 1": a newer gvx may have written it`},
		"gvx-images 2.1":                    {api.KindUnsupported, `says "gvx-images 2.1", this program writes "gvx-images 1": a newer gvx may have written it`},
		"gvx-images 99999999999999999999":   {api.KindUnsupported, "a newer gvx may have written it"},
		"1":                                 {api.KindInvalid, `says "1", no version of gvx writes that`},
		"-5":                                {api.KindInvalid, "damaged"},
		"gvx-images":                        {api.KindInvalid, "damaged"},
		"gvx-images -1":                     {api.KindInvalid, "damaged"},
		"thesis 999":                        {api.KindInvalid, `says "thesis 999", no version of gvx writes that`},
		"\x00\x1b[2J":                       {api.KindInvalid, `says "\x00\x1b[2J"`},
		"":                                  {api.KindInvalid, "says nothing that a version could be"},
		strings.Repeat("9", 2*maxNameBytes): {api.KindInvalid, "says nothing that a version could be"},
	} {
		if err := os.WriteFile(filepath.Join(root, fileVersion), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Open(root, Options{})
		if api.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.says) || !strings.Contains(err.Error(), "another --root") {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestDamagedFiles(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	for _, damage := range []struct {
		name string
		do   func(s *Store, img *Image) error
	}{
		{"layer truncated", func(s *Store, img *Image) error {
			h, _ := hexOf(img.LayerDiffIDs[0])
			os.Chmod(s.layerPath(h), 0o600)
			return os.Truncate(s.layerPath(h), 4096)
		}},
		{"layer record gone", func(s *Store, img *Image) error {
			h, _ := hexOf(img.LayerDiffIDs[0])
			return os.Remove(s.layerFile(h, extRecord))
		}},
		{"layer gone", func(s *Store, img *Image) error {
			h, _ := hexOf(img.LayerDiffIDs[0])
			return os.Remove(s.layerPath(h))
		}},
		{"image record garbage", func(s *Store, img *Image) error {
			h, _ := hexOf(img.ID)
			return os.WriteFile(s.imagePath(h), []byte("{"), 0o600)
		}},
		{"name garbage", func(s *Store, img *Image) error {
			n, _ := NormalizeName(ref)
			return os.WriteFile(s.refPath(n), []byte(`{"version":1,"name":"x"}`), 0o600)
		}},
	} {
		t.Run(damage.name, func(t *testing.T) {
			s := open(t, scratch(t))
			if err := damage.do(s, pull(t, s, ref)); err != nil {
				t.Fatal(err)
			}
			pull(t, s, ref)
			check(t, s)
		})
	}
}

func TestDigestMismatch(t *testing.T) {
	reg := newRegistry(t)
	img := twoLayers(t)
	// The configuration claims another diff ID than the layer has.
	cf, _ := img.ConfigFile()
	cf = cf.DeepCopy()
	cf.RootFS.DiffIDs[1].Hex = strings.Repeat("ab", 32)
	lying, err := mutate.ConfigFile(img, cf)
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, "test/lying:1", lying)
	s := open(t, scratch(t))
	if _, err := s.Pull(context.Background(), ref, PullOptions{}); api.KindOf(err) != api.KindImage {
		t.Errorf("wrong diff ID: %v", err)
	}
	check(t, s)
	if n := globbed(t, s, strings.Repeat("ab", 32)+"*"); len(n) != 0 {
		t.Errorf("left behind: %v", n)
	}
}
