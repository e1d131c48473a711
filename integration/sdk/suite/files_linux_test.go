// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"z.gfire.dev/gvx/pkg/gvx"
)

// TestFilesOfASandbox are written, read, listed, described and removed.
func TestFilesOfASandbox(t *testing.T) {
	sb := sleeper(t)
	ctx := t.Context()
	big := bytes.Repeat([]byte("0123456789abcdef"), 300_000)
	if err := sb.MkdirAll(ctx, "/repo/a b/c"); err != nil {
		t.Fatal(err)
	}
	if err := sb.WriteFile(ctx, "/repo/a b/big", big, 0o640); err != nil {
		t.Fatal(err)
	}
	if data, err := sb.ReadFile(ctx, "/repo/a b/big"); err != nil || !bytes.Equal(data, big) {
		t.Errorf("read %d bytes, %v", len(data), err)
	}
	if out, err := sb.Output(ctx, "sh", "-c", `cd "/repo/a b" && wc -c <big && stat -c "%a %U" big && ln -s big link && touch "$(printf 'odd\nname\377')"`); err != nil || string(out) != "4800000\n640 root\n" {
		t.Errorf("the guest sees %q, %v", out, err)
	}
	list, err := sb.ReadDir(ctx, "/repo/a b")
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	if want := []string{"big", "c", "link", "odd\nname\xff"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("list %q, %v; want %q", names, err, want)
	}
	if info, err := sb.Stat(ctx, "/repo/a b/big"); err != nil || info.Mode != 0o640 || info.SizeBytes != int64(len(big)) || info.ModTime.IsZero() {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := sb.Stat(ctx, "/repo/a b/link"); err != nil || info.Mode.Type() != fs.ModeSymlink || info.Target != "big" {
		t.Errorf("%+v, %v", info, err)
	}
	if data, err := sb.ReadFile(ctx, "/repo/a b/link"); err != nil || !bytes.Equal(data, big) {
		t.Errorf("through a link: %d bytes, %v", len(data), err)
	}
	if err := sb.RemoveAll(ctx, "/repo/a b"); err != nil {
		t.Error(err)
	}
	if _, err := sb.Stat(ctx, "/repo/a b"); !errors.Is(err, gvx.ErrNotFound) {
		t.Errorf("what was removed: %v", err)
	}
	if err := sb.RemoveAll(ctx, "/repo/none"); err != nil {
		t.Errorf("remove what is not there: %v", err)
	}
}

// TestArchivesGoInAndOut keep owners and modes.
func TestArchivesGoInAndOut(t *testing.T) {
	sb := sleeper(t)
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o600, Uid: 7, Gid: 8, Size: 3},
		{Typeflag: tar.TypeLink, Name: "d/hard", Linkname: "d/f"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(w, strings.Repeat("x", int(h.Size)))
	}
	w.Close()
	if err := sb.CopyIn(t.Context(), "/srv", &in); err != nil {
		t.Fatal(err)
	}
	if have, err := sb.Output(t.Context(), "stat", "-c", "%a %u %g %h", "/srv/d/hard"); err != nil || string(have) != "600 7 8 2\n" {
		t.Errorf("%q, %v", have, err)
	}
	if err := sb.CopyOut(t.Context(), "/srv/d", &out); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		found[h.Name] = h.Uid
	}
	if len(found) != 3 || found["d/f"] != 7 {
		t.Errorf("%v", found)
	}
}

// TestFileErrorsAreTyped.
func TestFileErrorsAreTyped(t *testing.T) {
	sb := sleeper(t)
	ctx := t.Context()
	for name, test := range map[string]struct {
		err  func() error
		want error
	}{
		"read what is not there": {func() error { _, err := sb.ReadFile(ctx, "/none"); return err }, gvx.ErrNotFound},
		"read a directory":       {func() error { _, err := sb.ReadFile(ctx, "/etc"); return err }, gvx.ErrInvalid},
		"relative":               {func() error { _, err := sb.ReadFile(ctx, "etc"); return err }, gvx.ErrInvalid},
		"write to no directory":  {func() error { return sb.WriteFile(ctx, "/none/x", nil, 0o600) }, gvx.ErrNotFound},
		"list a file":            {func() error { _, err := sb.ReadDir(ctx, "/etc/passwd"); return err }, gvx.ErrInvalid},
		"list what is not there": {func() error { _, err := sb.ReadDir(ctx, "/none"); return err }, gvx.ErrNotFound},
	} {
		if err := test.err(); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	sb.Close()
	if _, err := sb.ReadFile(ctx, "/etc/passwd"); !errors.Is(err, gvx.ErrState) {
		t.Errorf("after close: %v", err)
	}
}
