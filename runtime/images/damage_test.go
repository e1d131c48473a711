// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

// damagedBed is a store with the images whole:1 and bad:1, which share no
// layer, and what it warned about.
type damagedBed struct {
	*Store
	whole, bad *Image
	warnings   []string
}

func newDamagedBed(t *testing.T) *damagedBed {
	t.Helper()
	b := &damagedBed{}
	s, err := Open(scratch(t), Options{Warn: func(format string, args ...any) {
		b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.Store, b.whole, b.bad = s, importRoot(t, s, "whole:1"), importRoot(t, s, "bad:1")
	return b
}

// importRoot imports a small file system that differs by name.
func importRoot(t *testing.T, s *Store, name string) *Image {
	t.Helper()
	img, err := s.Import(context.Background(), bytes.NewReader(tarOf(t, member{name: "name", content: name})), PullOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// recordDamages are the ways in which the bed's second image is damaged, and
// the file that then has to be named.
var recordDamages = map[string]struct {
	text string
	path func(b *damagedBed) string
}{
	"half a record":           {"{", (*damagedBed).recordPath},
	"a record of nothing":     {"{}", (*damagedBed).recordPath},
	"a record without end":    {strings.Repeat(" ", maxRecordBytes+1), (*damagedBed).recordPath},
	"a name of nothing":       {"{}", (*damagedBed).namePath},
	"a name that is not JSON": {"x", (*damagedBed).namePath},
}

func (b *damagedBed) recordPath() string {
	return b.imagePath(hexDigest(b.bad.ID.Encoded()))
}

func (b *damagedBed) namePath() string { return b.refPath("docker.io/library/bad:1") }

// eachDamage runs a test on a store for each damage.
func eachDamage(t *testing.T, test func(t *testing.T, b *damagedBed, path string)) {
	for name, d := range recordDamages {
		t.Run(name, func(t *testing.T) {
			b := newDamagedBed(t)
			path := d.path(b)
			if err := os.WriteFile(path, []byte(d.text), 0o600); err != nil {
				t.Fatal(err)
			}
			test(t, b, path)
		})
	}
}

// warnedOnce checks that the damaged file was named once, with what to do.
func (b *damagedBed) warnedOnce(t *testing.T, path string) {
	t.Helper()
	n := 0
	for _, w := range b.warnings {
		if strings.Contains(w, path) && strings.Contains(w, "rungv image prune") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d warnings name %s, want 1: %q", n, path, b.warnings)
	}
}

func TestDamagedRecordLeavesOthersUsable(t *testing.T) {
	eachDamage(t, func(t *testing.T, b *damagedBed, path string) {
		list, err := b.List()
		if err != nil || len(list) == 0 {
			t.Fatalf("list: %v, %v", list, err)
		}
		if got, err := b.Inspect("whole:1"); err != nil || len(got.Names) != 1 {
			t.Errorf("inspect: %+v, %v", got, err)
		}
		gone, err := b.Remove(context.Background(), "whole:1", false)
		if err != nil || len(gone.Untagged) != 1 || len(gone.Deleted) != 1 {
			t.Errorf("rm of the whole image: %+v, %v", gone, err)
		}
		b.warnedOnce(t, path)
		// What the damaged record refers to is not known, so nothing goes.
		for _, i := range []*Image{b.whole, b.bad} {
			if _, err := os.Lstat(b.layerPath(i.keys[0])); err != nil {
				t.Error(err)
			}
		}
		if _, err := b.Get("bad:1"); api.KindOf(err) != api.KindImage {
			t.Errorf("the damaged image: %v", err)
		}
	})
}

func TestForcedRemoveTakesDamagedRecord(t *testing.T) {
	eachDamage(t, func(t *testing.T, b *damagedBed, path string) {
		ctx := context.Background()
		if _, err := b.Remove(ctx, "bad:1", false); api.KindOf(err) != api.KindImage || !strings.Contains(err.Error(), path) {
			t.Errorf("without force: %v", err)
		}
		gone, err := b.Remove(ctx, "bad:1", true)
		if err != nil || len(gone.Untagged) != 1 {
			t.Fatalf("with force: %+v, %v", gone, err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the damaged file is still there: %v", err)
		}
		if _, err := b.Get("bad:1"); api.KindOf(err) != api.KindNotFound {
			t.Errorf("after the removal: %v", err)
		}
		check(t, b.Store)
	})
}

func TestForcedRemoveTakesDamagedRecordByID(t *testing.T) {
	b := newDamagedBed(t)
	if err := os.WriteFile(b.recordPath(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone, err := b.Remove(context.Background(), shortID(b.bad.ID), true)
	if err != nil || len(gone.Untagged) != 1 || len(gone.Deleted) != 2 {
		t.Errorf("%+v, %v", gone, err)
	}
	check(t, b.Store)
}

func TestPruneTakesDamagedRecords(t *testing.T) {
	eachDamage(t, func(t *testing.T, b *damagedBed, path string) {
		if _, err := b.Prune(context.Background(), false); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the damaged file is still there: %v", err)
		}
		if len(b.warnings) != 0 {
			t.Errorf("prune warned of what it removed: %q", b.warnings)
		}
		check(t, b.Store)
		// Nothing of the bad image is left, and all of the other.
		if n := globbed(t, b.Store, b.bad.LayerDiffIDs[0].Encoded()+"*"); len(n) != 0 {
			t.Errorf("left behind: %v", n)
		}
		if got, err := b.Get("whole:1"); err != nil || got.ID != b.whole.ID {
			t.Errorf("the other image: %+v, %v", got, err)
		}
	})
}

func TestPruneKeepsDamagedRecordInUse(t *testing.T) {
	b := newDamagedBed(t)
	pin, err := b.Pin(b.bad)
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Close()
	if err := os.WriteFile(b.recordPath(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Prune(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(b.recordPath()); err != nil {
		t.Error(err)
	}
	b.warnedOnce(t, b.recordPath())
}

func TestPruneTakesNamesOfAbsentRecords(t *testing.T) {
	b := newDamagedBed(t)
	if err := os.Remove(b.recordPath()); err != nil {
		t.Fatal(err)
	}
	gone, err := b.Prune(context.Background(), false)
	if err != nil || len(gone.Untagged) != 1 || gone.Untagged[0] != "docker.io/library/bad:1" {
		t.Errorf("%+v, %v", gone, err)
	}
	check(t, b.Store)
	if n := names(t, filepath.Join(b.Root(), dirRefs)); len(n) != 1 {
		t.Errorf("names left: %v", n)
	}
}
