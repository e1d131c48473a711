// SPDX-License-Identifier: Apache-2.0

// Archives out and in give the same tree; crafted names stay inside.

package ext4lite_test

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

func memVolume(t testing.TB) *ext4lite.FS {
	t.Helper()
	m := device.NewMem(64 << 20)
	must(t, ext4lite.Mkfs(m, ext4lite.MkfsOptions{}))
	fs, err := ext4lite.Open(m, ext4lite.Options{})
	must(t, err)
	return fs
}

func TestTarRoundTrip(t *testing.T) {
	a, b := memVolume(t), memVolume(t)
	work(t, a, newModel(), 300, 600)
	var buf bytes.Buffer
	must(t, a.Export(&buf, "/"))
	must(t, b.Import(&buf, "/", ext4lite.ImportOptions{}))
	compare(t, "exported and imported", (&ours{t, a}).dump(), (&ours{t, b}).dump())
	must(t, a.Close())
	must(t, b.Close())
}

func TestTarStaysInside(t *testing.T) {
	fs := memVolume(t)
	d, err := fs.MkdirAll("in", ext4lite.NewInode{Mode: 0o755})
	must(t, err)
	l, err := d.Symlink("out", "/", ext4lite.NewInode{})
	must(t, err)
	l.Release()
	d.Release()
	for _, name := range []string{"../evil", "a/../../evil", "out/evil"} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		must(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}))
		w.Write([]byte("x"))
		w.Close()
		if err := fs.Import(&buf, "in", ext4lite.ImportOptions{}); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
	for _, l := range (&ours{t, fs}).dump() {
		if strings.Contains(l, "evil") {
			t.Errorf("left outside: %s", l)
		}
	}
	must(t, fs.Close())
}
