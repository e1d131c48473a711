// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

func TestRootfsTar(t *testing.T) {
	raw := tarOf(t, map[string]string{"bin/sh": "#!", "etc/x": "y"})
	for _, c := range []compression.Compression{compression.None, compression.GZip, compression.ZStd} {
		packed := raw
		if c != compression.None {
			packed = tarCompressed(t, raw, c)
		}
		file := filepath.Join(t.TempDir(), "rootfs")
		if err := os.WriteFile(file, packed, 0o644); err != nil {
			t.Fatal(err)
		}
		img := mustResolve(t, "rootfs-tar:"+file, amd64())
		checkImage(t, img)
		if l := img.Layers[0]; l.DiffID != digest.FromBytes(raw) || l.Digest != digest.FromBytes(packed) {
			t.Errorf("%s: layer %s, diff ID %s", c, l.Digest, l.DiffID)
		}
		if img.Config.Config.Cmd[0] != "/bin/sh" || img.Platform().String() != "linux/amd64" || img.Name != "rootfs-tar:"+file {
			t.Errorf("%s: %+v", img.Name, img.Config)
		}
		if err := os.WriteFile(file, append(packed[:len(packed)-1:len(packed)-1], 'x'), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := img.Layers[0].Uncompressed(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, s)
		s.Close()
		wantError(t, err, api.KindImage, "digest")
	}
}

func TestRootfsDir(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"bin", "empty"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	content := bytes.Repeat([]byte("shell"), 100_000)
	if err := os.WriteFile(filepath.Join(dir, "bin", "sh"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "bin", "out")); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		if err := os.Link(filepath.Join(dir, "bin", "sh"), filepath.Join(dir, "bin", "zsh")); err != nil {
			t.Fatal(err)
		}
	}
	img := mustResolve(t, "rootfs:"+dir, amd64())
	checkImage(t, img)
	if again := mustResolve(t, "rootfs:"+dir, amd64()); again.Digest != img.Digest {
		t.Errorf("the same directory gives %s and %s", img.Digest, again.Digest)
	}
	got := map[string]tar.Header{}
	tr := tar.NewReader(bytes.NewReader(uncompressed(t, img.Layers[0])))
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "bin/sh" {
			if b, err := io.ReadAll(tr); err != nil || !bytes.Equal(b, content) {
				t.Errorf("bin/sh: %d bytes, %v", len(b), err)
			}
		}
		got[h.Name] = *h
	}
	if got["bin/out"].Linkname != "/etc/passwd" || got["empty/"].Typeflag != tar.TypeDir || got["./"].Typeflag != tar.TypeDir {
		t.Errorf("entries: %v", got)
	}
	if runtime.GOOS != "windows" && (got["bin/zsh"].Typeflag != tar.TypeLink || got["bin/zsh"].Linkname != "bin/sh") {
		t.Errorf("hard link: %+v", got["bin/zsh"])
	}

	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := img.Layers[0].Uncompressed(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, s)
	s.Close()
	wantError(t, err, api.KindImage, "longer", "changed since")
	_, err = mustParse(t, "rootfs:"+filepath.Join(dir, "new")).Resolve(context.Background(), amd64())
	wantError(t, err, api.KindInvalid, "rootfs-tar:")
	_, err = mustParse(t, "rootfs:"+filepath.Join(dir, "none")).Resolve(context.Background(), amd64())
	wantError(t, err, api.KindNotFound, "none")
}
