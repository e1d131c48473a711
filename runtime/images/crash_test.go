// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Crashes and errors at every step of a write. The child's hook counts steps
// and, at one of them, kills the child or fails; the crash point moves on until
// the work survives.

package images

import (
	"archive/tar"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

func init() {
	roles["pull-and-die"] = func(a []string) error {
		s, err := openToDie(a[0], a[2])
		if err != nil {
			return err
		}
		_, err = s.Pull(context.Background(), a[1], PullOptions{})
		return err
	}
	roles["remove-and-die"] = func(a []string) error {
		s, err := openToDie(a[0], a[2])
		if err != nil {
			return err
		}
		_, err = s.Remove(context.Background(), a[1], false)
		return err
	}
	roles["prune-and-die"] = func(a []string) error {
		s, err := openToDie(a[0], a[2])
		if err != nil {
			return err
		}
		_, err = s.Prune(context.Background(), true)
		return err
	}
}

// openToDie opens a store whose process is killed at the given step.
func openToDie(root, step string) (*Store, error) {
	n, err := strconv.Atoi(step)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, opt: Options{Parallel: 1}}
	s.hook = func(string) error {
		if n--; n < 0 {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	if err := s.checkVersion(); os.IsNotExist(err) {
		err = s.create()
		return s, err
	} else if err != nil {
		return nil, err
	}
	return s, s.cleanTemps()
}

// maxSteps is more than any of the operations has.
const maxSteps = 200

// crashEverywhere runs role with a kill at step 0, 1, … and lets after look at
// the store each time, until the role survives.
func crashEverywhere(t *testing.T, role, ref string, before func() string, after func(root string, survived bool)) {
	t.Helper()
	for n := range maxSteps {
		root := before()
		out, err := child(t, role, root, ref, fmt.Sprint(n)).CombinedOutput()
		survived := err == nil
		if !survived && !killed(err) {
			t.Fatalf("%s, step %d: %v\n%s", role, n, err, out)
		}
		after(root, survived)
		if t.Failed() {
			t.Fatalf("%s: killed at step %d", role, n)
		}
		if survived {
			t.Logf("%s: %d steps", role, n)
			if n < 4 {
				t.Errorf("%s has only %d steps: are the hooks there?", role, n)
			}
			return
		}
	}
	t.Fatalf("%s does not end after %d steps", role, maxSteps)
}

func killed(err error) bool {
	e, ok := err.(interface{ Sys() any })
	if !ok {
		return false
	}
	ws, ok := e.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

func TestCrashPull(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	crashEverywhere(t, "pull-and-die", ref, func() string { return fastScratch(t) }, func(root string, survived bool) {
		s := open(t, root)
		check(t, s)
		if _, err := s.Get(ref); survived && err != nil {
			t.Error(err)
		}
		pull(t, s, ref)
		check(t, s)
	})
}

// TestCrashPullRepeatedly goes on in the same store: nothing piles up.
func TestCrashPullRepeatedly(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	root := fastScratch(t)
	crashEverywhere(t, "pull-and-die", ref, func() string { return root }, func(root string, survived bool) {
		check(t, open(t, root))
	})
	s := open(t, root)
	if _, err := s.Prune(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dirRefs, dirImages, dirBlobs, dirLayers, dirLocks, dirTmp} {
		if n := names(t, s.dir(d)); len(n) != 0 {
			t.Errorf("%s holds %v", d, n)
		}
	}
}

func TestCrashRemove(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	for _, role := range []string{"remove-and-die", "prune-and-die"} {
		crashEverywhere(t, role, ref, func() string {
			root := fastScratch(t)
			pull(t, open(t, root), ref)
			return root
		}, func(root string, survived bool) {
			s := open(t, root)
			check(t, s)
			if _, err := s.Get(ref); survived && err == nil {
				t.Error("the image is still there")
			}
			if _, err := s.Prune(context.Background(), true); err != nil {
				t.Error(err)
			}
			for _, d := range []string{dirRefs, dirImages, dirBlobs, dirLayers, dirLocks, dirTmp} {
				if n := names(t, s.dir(d)); len(n) != 0 {
					t.Errorf("%s holds %v", d, n)
				}
			}
		})
	}
}

// TestFailPull lets each step fail instead, in this process.
func TestFailPull(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	for fail := range maxSteps {
		s := open(t, fastScratch(t))
		s.opt.Parallel = 1
		n := fail
		s.hook = func(string) error {
			if n--; n == -1 {
				return unix.EIO
			}
			return nil
		}
		_, err := s.Pull(context.Background(), ref, PullOptions{})
		s.hook = nil
		check(t, s)
		if t.Failed() {
			t.Fatalf("failed at step %d", fail)
		}
		if err == nil {
			return
		}
		pull(t, s, ref)
		check(t, s)
	}
	t.Fatalf("no success after %d steps", maxSteps)
}

// TestFullDiskAtEveryWrite: whichever write of a pull is the first without
// space, the store is as it was before, unless the image is whole and lacks only
// its second name. The next pull works.
func TestFullDiskAtEveryWrite(t *testing.T) {
	reg := newRegistry(t)
	lower := []member{{name: "etc/", typ: tar.TypeDir}, {name: "etc/a", content: "a"}}
	for name, layers := range map[string][][]member{
		"layers that stand alone": {lower, {{name: "b", content: "b"}}},
		// The second is converted for the first, whose directory it lacks.
		"a layer without its directories": {lower, {{name: "etc/b", content: "b"}}},
	} {
		for _, moved := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, moved tag %t", name, moved), func(t *testing.T) {
				repository := fmt.Sprintf("test/full%d-%t:1", len(name), moved)
				fullDiskAtEveryWrite(t, func(s *Store) string {
					if moved {
						// The name is another image's by now.
						pull(t, s, reg.push(t, repository, twoLayers(t)))
					}
					return reg.push(t, repository, imageOf(t, name, tarOf(t, layers[0]...), tarOf(t, layers[1]...)))
				})
			})
		}
	}
}

// fullDiskAtEveryWrite pulls what prepare, which may use the store, has pushed.
func fullDiskAtEveryWrite(t *testing.T, prepare func(s *Store) (ref string)) {
	whole := 0
	for fail := range maxSteps {
		s := open(t, fastScratch(t))
		s.opt.Parallel = 1
		ref := prepare(s)
		before := everyFile(t, s)
		old, _ := s.Get(ref)
		n := fail
		s.hook = func(step string) error {
			if !strings.HasPrefix(step, "commit-") {
				return nil
			}
			if n--; n < 0 {
				return s.writeError("write", s.root, 0, unix.ENOSPC)
			}
			return nil
		}
		_, err := s.Pull(context.Background(), ref, PullOptions{Policy: PullAlways})
		s.hook = nil
		if err == nil {
			if fail < 10 || whole > 2 {
				t.Errorf("a pull of %d writes, of which %d failed with the image there", fail, whole)
			}
			return
		}
		if api.KindOf(err) != api.KindNoSpace {
			t.Errorf("%v", err)
		}
		if now, err := s.Get(ref); err == nil && (old == nil || now.ID != old.ID) {
			whole++
		} else if after := everyFile(t, s); !slices.Equal(after, before) {
			t.Errorf("full at write %d: the store has %v, and had %v", fail, after, before)
		}
		check(t, s)
		pull(t, s, ref)
		check(t, s)
	}
	t.Fatalf("no success after %d writes", maxSteps)
}

// everyFile are the names of all that a store holds.
func everyFile(t *testing.T, s *Store) []string {
	t.Helper()
	var all []string
	for _, d := range []string{dirRefs, dirImages, dirBlobs, dirLayers, dirLocks, dirTmp} {
		for _, n := range names(t, s.dir(d)) {
			all = append(all, d+"/"+n)
		}
	}
	slices.Sort(all)
	return all
}
