// SPDX-License-Identifier: Apache-2.0

package sandboxes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/shim/options"
	"z.gfire.dev/gvx/shim/task"
)

func TestCgroupNames(t *testing.T) {
	for path, want := range map[string]bool{
		"":                       false,
		"/k8s.io/abc":            false,
		"/kubepods/burstable/x":  false,
		"kubepods.slice:cri:abc": true,
		"a:b:c":                  false,
	} {
		if got := systemdPath(&specs.Spec{Linux: &specs.Linux{CgroupsPath: path}}); got != want {
			t.Errorf("systemdPath(%q) = %v", path, got)
		}
	}
	if systemdPath(&specs.Spec{}) {
		t.Error("systemdPath without a section for Linux")
	}
}

func TestWithoutNetwork(t *testing.T) {
	s := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
		{Type: specs.PIDNamespace, Path: "/proc/7/ns/pid"}, {Type: specs.NetworkNamespace, Path: "/run/netns/x"},
	}}}
	withoutNetwork(s)
	if n := s.Linux.Namespaces; n[0].Path == "" || n[1].Path != "" {
		t.Errorf("namespaces %+v", n)
	}
	withoutNetwork(&specs.Spec{})
}

func TestPlaces(t *testing.T) {
	t.Setenv(rootVariable, "/some/where")
	if p := DefaultPlaces(); p.Run != "/some/where/run" || p.Data != "/some/where/data" {
		t.Errorf("places %+v", p)
	}
	t.Setenv(rootVariable, "relative")
	if p := DefaultPlaces(); strings.Contains(p.Run, "relative") {
		t.Errorf("places %+v", p)
	}
	p := Places{Run: "/run/x"}
	if a, b := New(p, "/bundles/a"), New(p, "/bundles/b"); a.root == b.root || filepath.Dir(a.root) != "/run/x" || len(a.root) > 40 {
		t.Errorf("roots %s, %s", a.root, b.root)
	}
}

// TestContainersOfADeadShimAreRemovedAtOnce: whichever of them comes last removes what
// they had in common.
func TestContainersOfADeadShimAreRemovedAtOnce(t *testing.T) {
	places := Places{Run: t.TempDir(), Data: t.TempDir()}
	for round := range 200 {
		dir := filepath.Join(t.TempDir(), "pod")
		root := New(places, dir).root
		if _, err := runner(places, root, options.Default()); err != nil {
			t.Fatal(err)
		}
		bundles := make([]string, 4)
		for i := range bundles {
			bundles[i] = fmt.Sprint(dir, i)
			if err := errors.Join(os.Mkdir(bundles[i], 0o700), os.Symlink(root, filepath.Join(bundles[i], rootLink))); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for _, bundle := range bundles {
			all.Go(func() {
				if err := Remove(t.Context(), places, bundle, "none"); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		all.Wait()
		if left, err := os.ReadDir(places.Run); err != nil || len(left) > 0 {
			t.Fatalf("round %d: %v, %v are left", round, err, left)
		}
	}
}

func TestLogs(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		o    options.Options
		file string
	}{
		{options.Options{}, ""},
		{options.Options{DebugLog: dir + "/quiet.log"}, ""},
		{options.Options{Debug: true, DebugLog: dir + "/one.log"}, "one.log"},
		{options.Options{Debug: true, DebugLog: dir + "/sub/"}, "sub/id.log"},
	} {
		l := logFile(test.o, "id")
		w, err := l.open()
		if err != nil || (w != nil) != (test.file != "") {
			t.Errorf("%+v: %v, %v", test.o, w, err)
		}
		l.close()
		if _, err := os.Stat(filepath.Join(dir, test.file)); err != nil {
			t.Errorf("%+v: %v", test.o, err)
		}
	}
}

// TestWhatNeverCameFar: containerd's "delete" of a bundle in which nothing was begun,
// and calls that fail before anything is made.
func TestWhatNeverCameFar(t *testing.T) {
	places := Places{Run: t.TempDir(), Data: t.TempDir()}
	bundle := t.TempDir()
	if err := Remove(t.Context(), places, bundle, "c"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	r := New(places, bundle)
	if _, err := r.Create(t.Context(), task.CreateOptions{ID: "c", Bundle: bundle}); api.KindOf(err) != api.KindNotFound {
		t.Errorf("Create without a document: %v", err)
	}
	if _, err := r.Create(t.Context(), task.CreateOptions{ID: "c", Bundle: bundle, OptionsType: "another.Options"}); api.KindOf(err) != api.KindInvalid {
		t.Errorf("Create with another runtime's options: %v", err)
	}
	if left, err := os.ReadDir(bundle); err != nil || len(left) > 0 {
		t.Errorf("left in the bundle: %v, %v", left, err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
