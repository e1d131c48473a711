// SPDX-License-Identifier: Apache-2.0

// Commits that are cut short: what is left is of no use but to be finished.

package ext4lite_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
)

// cutCommit begins a commit and ends it at its nth report, as a kill would.
func cutCommit(t *testing.T, path string, n int) (cut bool) {
	t.Helper()
	type killed struct{}
	defer func() {
		if v := recover(); v != nil {
			if v != (killed{}) {
				panic(v)
			}
			cut = true
		}
	}()
	must(t, delta.Commit(path, func(int64, int64) {
		if n--; n < 0 {
			panic(killed{})
		}
	}))
	return false
}

// changedClone is a golden volume and a clone with changes of its own.
func changedClone(t *testing.T) (base, clone string, m *model) {
	t.Helper()
	base, _ = golden(t, 7)
	clone = filepath.Join(filepath.Dir(base), "ep.delta")
	must(t, delta.Create(clone, base, delta.Options{}))
	m = replayModel(t, 7, 300)
	fs := open(t, clone, ext4lite.Options{})
	work(t, fs, m, 100, 300)
	closeFS(t, fs)
	return base, clone, m
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	p, err := os.ReadFile(path)
	must(t, err)
	return p
}

// put gives a file back its bytes, as a host does that lost what was last done.
func put(t *testing.T, path string, p []byte) {
	t.Helper()
	must(t, os.WriteFile(path, p, 0o600))
}

func TestACommitCutShortIsFinishedAndNothingElse(t *testing.T) {
	base, clone, m := changedClone(t)
	plain := read(t, base)
	unmerged := read(t, clone)
	for n := 0; ; n = max(n+1, n*3/2) {
		put(t, base, plain)
		put(t, clone, unmerged)
		if !cutCommit(t, clone, n) {
			if n < 3 {
				t.Fatalf("a commit of %d steps: nothing was tested", n)
			}
			break
		}
		for _, p := range []string{base, clone} {
			if _, err := ext4lite.OpenFile(p, ext4lite.Options{ReadOnly: n%2 == 0}); !errors.Is(err, delta.ErrCommitCut) {
				t.Fatalf("cut at %d: %s was opened: %v", n, p, err)
			}
		}
		if err := delta.Create(clone+"2", base, delta.Options{}); !errors.Is(err, delta.ErrCommitCut) {
			t.Fatalf("cut at %d: the base was cloned: %v", n, err)
		}
		if n%2 == 1 { // the header reached the disk, and nothing of the base
			put(t, base, plain)
		}
		must(t, delta.Commit(clone, nil))
		check(t, base)
		fs := open(t, base, ext4lite.Options{ReadOnly: true})
		compare(t, "committed clone", m.dump(), (&ours{t, fs}).dump())
		closeFS(t, fs)
		if _, err := os.Stat(clone); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("cut at %d: the clone is still there: %v", n, err)
		}
	}
}

func TestACommitThatWasFinishedIsNotRepeated(t *testing.T) {
	base, clone, _ := changedClone(t)
	if !cutCommit(t, clone, 1) {
		t.Fatal("nothing was cut")
	}
	merging := read(t, clone)
	must(t, delta.Commit(clone, nil))
	done := read(t, base)

	put(t, clone, merging) // its removal was lost
	must(t, delta.Commit(clone, nil))
	if !bytes.Equal(read(t, base), done) {
		t.Fatal("a finished commit changed the base")
	}

	put(t, clone, merging)
	fs := open(t, base, ext4lite.Options{})
	root, err := fs.Root()
	must(t, err)
	i, err := root.Create("later", ext4lite.NewInode{Mode: 0o644})
	must(t, err)
	i.Release()
	root.Release()
	closeFS(t, fs)
	later := read(t, base)
	if err := delta.Commit(clone, nil); !errors.Is(err, ext4lite.ESTALE) || !bytes.Equal(read(t, base), later) {
		t.Fatalf("a base in use since its commit: %v", err)
	}
}

// TestAForgedCommitWritesNothing: the header of a clone is whatever somebody
// wrote, and names any file of the user who commits it.
func TestAForgedCommitWritesNothing(t *testing.T) {
	base, clone, _ := changedClone(t)
	if !cutCommit(t, clone, 1) {
		t.Fatal("nothing was cut")
	}
	size := len(read(t, base))
	for what, victim := range map[string][]byte{
		"zeros": make([]byte, size), "text": bytes.Repeat([]byte("diary "), size/6+1)[:size], "another size": []byte("notes"), "nothing": nil,
	} {
		put(t, base, victim)
		if err := delta.Commit(clone, nil); err == nil || !bytes.Equal(read(t, base), victim) {
			t.Errorf("%s was written to: %v", what, err)
		}
	}
}
