// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// newManager makes a manager in a bundle of its own, and returns what Remove was
// called for.
func newManager(t *testing.T, fail error) (m *Manager, bundle string, removed *[]string) {
	t.Helper()
	bundle = filepath.Join(t.TempDir(), "c")
	if err := os.Mkdir(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(bundle)
	removed = new([]string)
	return New(Options{
		Name: "io.containerd.test.v2", Version: "1.2", Revision: "r",
		Features: func() *features.Features { return &features.Features{OCIVersionMax: "1.3.0"} },
		Remove: func(_ context.Context, bundle, id string) error {
			*removed = append(*removed, bundle+" "+id)
			return fail
		},
	}), bundle, removed
}

func TestInfo(t *testing.T) {
	m, _, _ := newManager(t, nil)
	info, err := m.Info(t.Context(), strings.NewReader(""))
	if err != nil || info.Name != m.Name() || info.Version.Version != "1.2" || info.Annotations[allowedMountsAnnotation] != allowedMounts {
		t.Errorf("Info = %v, %v", info, err)
	}
	v, err := typeurl.UnmarshalAny(info.Features)
	if f, ok := v.(*features.Features); err != nil || !ok || f.OCIVersionMax != "1.3.0" {
		t.Errorf("features %v, %v", v, err)
	}
	for body, ok := range map[string]bool{"debug = true": true, "debgu = true": false} {
		value, err := proto.Marshal(&runtimeoptions.Options{ConfigBody: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		data, err := proto.Marshal(&anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: value})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Info(t.Context(), bytes.NewReader(data)); (err == nil) != ok {
			t.Errorf("with options %q: %v", body, err)
		}
	}
	if _, err := m.Info(t.Context(), strings.NewReader("\xff")); err == nil {
		t.Error("broken options: no error")
	}
}

// TestStop tells how the container ended, as far as that is known, whatever goes
// wrong with what is left of it.
func TestStop(t *testing.T) {
	for _, fail := range []error{nil, errors.New("busy")} {
		m, bundle, removed := newManager(t, fail)
		s, err := m.Stop(t.Context(), "c")
		if err != nil || s.ExitStatus != 137 || s.ExitedAt.IsZero() || len(*removed) != 1 || (*removed)[0] != bundle+" c" {
			t.Errorf("Stop = %+v, %v, removed %q", s, err, *removed)
		}
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for text, want := range map[string]int{`{"pid": 9, "status": 3, "at": "2026-01-02T03:04:05Z"}`: 3, `{"status": 900}`: 137, "broken": 137} {
			if err := os.WriteFile("gvx-exit.json", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := m.Stop(t.Context(), "c")
			if err != nil || s.ExitStatus != want || want == 3 && (s.Pid != 9 || !s.ExitedAt.Equal(at)) {
				t.Errorf("%s: Stop = %+v, %v", text, s, err)
			}
		}
	}
}

// TestSocketOfADeadServer is removed, one that is served stays.
func TestSocketOfADeadServer(t *testing.T) {
	m, _, _ := newManager(t, nil)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.WriteFile("address", []byte("unix://"+path), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, alive := range []bool{true, false} {
		if !alive {
			l.Close()
		}
		if _, err := m.Stop(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); (err == nil) != alive {
			t.Errorf("served: %v; the socket: %v", alive, err)
		}
	}
}

// TestOneServerForAGroup finds the one that runs, and takes a dead one's place.
func TestOneServerForAGroup(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), "test")
	dir := t.TempDir()
	first, address, err := listen(ctx, dir, "/run/c.sock", "group")
	if err != nil || first == nil {
		t.Fatalf("listen = %v, %v", first, err)
	}
	for group, want := range map[string]bool{"group": false, "another": true} {
		l, again, err := listen(ctx, dir, "/run/c.sock", group)
		if err != nil || (l != nil) != want || (again == address) == want {
			t.Errorf("%s: listen = %v, %s, %v", group, l, again, err)
		}
		if l != nil {
			l.Close()
		}
	}
	first.Close()
	l, again, err := listen(ctx, dir, "/run/c.sock", "group")
	if err != nil || l == nil || again != address {
		t.Errorf("after a server has died: listen = %v, %s, %v", l, again, err)
	}
	l.Close()
}
