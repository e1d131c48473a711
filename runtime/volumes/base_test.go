// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Bases and those who would change them, at the same moment; commits cut short.

package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// elsewhere is a file that only a note tells of: it is neither in the store nor
// beside its base.
func (b *bed) elsewhere(name string) Ref { return b.ref(filepath.Join(b.TempDir(), name)) }

// TestANoteWaitsForItsClone: whoever looks for clones while one is being made
// does not take its note away.
func TestANoteWaitsForItsClone(t *testing.T) {
	b := newBed(t)
	golden, ep := b.make("golden"), b.elsewhere("ep.delta")
	b.s.remember(golden.Path, ep.Path)
	if got := b.s.Clones(golden.Path); len(got) > 0 {
		t.Errorf("clones that are not there: %v", got)
	}
	b.ok(delta.Create(ep.Path, golden.Path, delta.Options{}))
	if got := b.s.Clones(golden.Path); !slices.Equal(got, []string{ep.Path}) {
		t.Errorf("clones: %v", got)
	}
	_, err := b.s.OpenFS(golden, true)
	b.fails(err, api.KindState, ep.Path)

	b.ok(os.Remove(ep.Path))
	b.s.Clones(golden.Path)
	if left, _ := filepath.Glob(filepath.Join(b.s.Root(), dirClones, "*", "*")); len(left) != 1 {
		t.Errorf("notes after a look: %v", left)
	}
	b.open(convert.VolumeMount{Source: "golden", Target: "/v"}).Close()
	if left, _ := filepath.Glob(filepath.Join(b.s.Root(), dirClones, "*")); len(left) != 0 {
		t.Errorf("notes about clones that are gone: %v", left)
	}
}

// TestNotesOfClonesThatOthersRemovedGo, but neither those of clones that are there nor
// young ones, when a prune asks for it and now and then when clones are made.
func TestNotesOfClonesThatOthersRemovedGo(t *testing.T) {
	b := newBed(t)
	golden, dir := b.make("golden"), b.TempDir()
	kept := Ref{Path: filepath.Join(dir, "kept.delta")}
	b.ok(b.s.CloneDelta(golden, kept))
	notes := func() []string {
		left, _ := filepath.Glob(filepath.Join(b.s.Root(), dirClones, "*", "*"))
		return left
	}
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("gone-%d.delta", i)) }
	for i := range 20 {
		b.s.remember(golden.Path, name(i))
	}
	then := time.Now().Add(-2 * noteGrace)
	for _, n := range notes() {
		b.ok(os.Chtimes(n, then, then))
	}
	// The next one that sweeps.
	next := 20
	for !strings.HasPrefix(pathKey(name(next)), sweepPrefix) {
		next++
	}
	b.s.remember(golden.Path, name(next))
	if left := notes(); len(left) != 2 {
		t.Errorf("after a sweep: %d notes, want those of a clone that is there and of a young one", len(left))
	}
	b.s.remember(golden.Path, filepath.Join(dir, "young.delta"))
	b.ok(b.s.ForgetGone())
	if left := notes(); len(left) != 3 {
		t.Errorf("after a prune: %d notes, want those of a clone that is there and of two young ones", len(left))
	}
	for _, n := range notes() {
		b.ok(os.Chtimes(n, then, then))
	}
	b.ok(b.s.ForgetGone())
	if left := notes(); len(left) != 1 {
		t.Errorf("after a prune: %d notes, want that of a clone that is there", len(left))
	}
}

// TestANoteThatIsWrittenAgainStays: between a look at an old note and its removal the
// same clone may have been made again.
func TestANoteThatIsWrittenAgainStays(t *testing.T) {
	b := newBed(t)
	golden, ep := b.make("golden"), b.elsewhere("ep.delta")
	b.s.remember(golden.Path, ep.Path)
	note := filepath.Join(b.s.Root(), dirClones, pathKey(golden.Path), pathKey(ep.Path))
	then := time.Now().Add(-2 * noteGrace)
	b.ok(os.Chtimes(note, then, then))
	b.ok(b.s.CloneDelta(golden, ep)) // After the look.
	forgetOld(note)
	if got := b.s.rememberedClones(golden.Path, false); !slices.Equal(got, []string{ep.Path}) {
		t.Errorf("clones: %v", got)
	}
	b.ok(os.Chtimes(note, then, then))
	forgetOld(note)
	if left, _ := filepath.Glob(filepath.Join(b.s.Root(), dirClones, "*", "*")); len(left) != 0 {
		t.Errorf("an old note is still there: %v", left)
	}
}

// TestWhatIsNoNote in a directory of notes is neither read nor waited for.
func TestWhatIsNoNote(t *testing.T) {
	b := newBed(t)
	golden, ep := b.make("golden"), b.elsewhere("ep.delta")
	b.ok(b.s.CloneDelta(golden, ep))
	dir := filepath.Join(b.s.Root(), dirClones, pathKey(golden.Path))
	huge := filepath.Join(dir, "huge")
	b.ok(os.WriteFile(huge, nil, 0o600))
	b.ok(os.Truncate(huge, 1<<40))
	b.ok(os.Mkdir(filepath.Join(dir, "dir"), 0o700))
	b.ok(os.Symlink("/dev/zero", filepath.Join(dir, "link")))
	then := time.Now().Add(-2 * noteGrace)
	b.ok(os.Chtimes(huge, then, then))
	b.ok(b.s.ForgetGone())
	if got := b.s.rememberedClones(golden.Path, true); !slices.Equal(got, []string{ep.Path}) {
		t.Errorf("clones: %v", got)
	}
}

// TestARemovedCloneLeavesNoNote, whose base stays as it was.
func TestARemovedCloneLeavesNoNote(t *testing.T) {
	b := newBed(t)
	golden, one, two := b.make("golden"), b.elsewhere("one.delta"), b.elsewhere("two.delta")
	b.ok(b.s.CloneDelta(golden, one))
	b.ok(b.s.CloneDelta(golden, two))
	for left, clone := range []Ref{two, one} {
		_, err := b.s.Remove(clone)
		b.ok(err)
		if notes, _ := filepath.Glob(filepath.Join(b.s.Root(), dirClones, "*", "*")); len(notes) != 1-left {
			t.Errorf("%d clones are left, and notes %q", 1-left, notes)
		}
	}
	if dirs, _ := filepath.Glob(filepath.Join(b.s.Root(), dirClones, "*")); len(dirs) != 0 {
		t.Errorf("directories of notes are left: %q", dirs)
	}
}

// TestAChangeOfABaseSeesClonesMadeWhileItWaits: who makes a clone holds its
// base's lock, and what waits for the lock looks for clones afterwards.
func TestAChangeOfABaseSeesClonesMadeWhileItWaits(t *testing.T) {
	for what, change := range map[string]func(b *bed, golden, ep Ref) error{
		"remove": func(b *bed, golden, _ Ref) error { _, err := b.s.Remove(golden); return err },
		"resize": func(b *bed, golden, _ Ref) error { return b.s.Resize(golden, 4*testSize) },
		"commit": func(b *bed, _, ep Ref) error { _, err := b.s.Commit(ep, nil); return err },
		"write": func(b *bed, golden, _ Ref) error {
			fs, err := b.s.OpenFS(golden, true)
			if err == nil {
				fs.Close()
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBed(t)
			golden, ep, late := b.make("golden"), b.ref("ep"), b.elsewhere("late.delta")
			if what == "commit" {
				b.ok(b.s.CloneDelta(golden, ep))
			}
			maker, err := device.OpenFile(golden.Path, device.ReadOnly)
			b.ok(err)
			done := make(chan error)
			go func() { done <- change(b, golden, ep) }()
			time.Sleep(lockWait / 5) // it has begun to wait, most likely
			b.s.remember(golden.Path, late.Path)
			b.ok(delta.Create(late.Path, golden.Path, delta.Options{}))
			b.ok(maker.Close())
			b.fails(<-done, api.KindState)
			b.open(convert.VolumeMount{Source: "golden", Target: "/v", Clone: late.Path}).Close()
		})
	}
}

func TestABaseHalfCommittedIsKeptForTheCommit(t *testing.T) {
	b := newBed(t)
	golden, ep := b.make("golden"), b.elsewhere("ep.delta")
	b.ok(b.s.CloneDelta(golden, ep))
	b.write(ep, "/g", "delta's")
	killed := errors.New("killed")
	func() {
		defer func() {
			if v := recover(); v != killed {
				panic(v)
			}
		}()
		_, _ = b.s.Commit(ep, func(int64, int64) { panic(killed) })
	}()
	_, err := b.s.Open(&convert.VolumeMount{Source: "golden", Target: "/v"})
	b.fails(err, api.KindState, "volume commit", "ep.delta")
	_, err = b.s.Open(&convert.VolumeMount{Source: "golden", Target: "/v", Clone: convert.CloneEphemeral})
	b.fails(err, api.KindState, "volume commit", "ep.delta")
	_, err = b.s.OpenFS(golden, true)
	b.fails(err, api.KindState, "volume commit", "ep.delta")
	_, err = b.s.Remove(golden)
	b.fails(err, api.KindState, ep.Path)
	in, err := b.s.Inspect(golden)
	b.ok(err)
	if in.Problem == "" {
		t.Error("inspect sees nothing")
	}
	_, err = b.s.Commit(ep, nil)
	b.ok(err)
	if b.read(golden, "/f")+b.read(golden, "/g") != "firstdelta's" || ep.Exists() {
		t.Error("the commit is not finished")
	}
}

// TestARefusedResizeLeavesTheBase: a clone that no note tells of stays good.
func TestARefusedResizeLeavesTheBase(t *testing.T) {
	b := newBed(t)
	golden, ep := b.make("golden"), b.ref("ep")
	b.ok(delta.Create(ep.Path, golden.Path, delta.Options{}))
	b.fails(b.s.Resize(golden, 4*testSize), api.KindState, ep.Path)
	b.open(convert.VolumeMount{Source: "golden", Target: "/v", Clone: ep.Path}).Close()
}

func TestANewVolumeHasNoLabelsOfAFormerOne(t *testing.T) {
	b := newBed(t)
	v := b.ref("data")
	b.ok(b.s.Create(v, CreateOptions{SizeBytes: testSize, Labels: map[string]string{"tier": "gold"}}))
	b.ok(os.Remove(v.Path))
	b.ok(b.s.Create(v, CreateOptions{SizeBytes: testSize}))
	in, err := b.s.Inspect(v)
	b.ok(err)
	if len(in.Labels) != 0 {
		t.Errorf("labels %v", in.Labels)
	}
}

func TestNamesInAStoreOfAnyName(t *testing.T) {
	s := New(filepath.Join(t.TempDir(), "a[b"), Options{})
	if got := s.Names(); len(got) != 0 {
		t.Errorf("no store has %v", got)
	}
	r, err := s.Resolve("data")
	if err == nil {
		err = s.Create(r, CreateOptions{SizeBytes: testSize})
	}
	if got := s.Names(); err != nil || !slices.Equal(got, []string{"data"}) {
		t.Errorf("names %v, %v", got, err)
	}
}
