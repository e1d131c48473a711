// SPDX-License-Identifier: Apache-2.0

package image

// Layouts and archives, written by the tools that users have: skopeo,
// go-containerregistry (crane), and docker's old formats by hand.

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ggcrlayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

// testLayout writes a layout with two images by go-containerregistry.
func testLayout(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	p, err := ggcrlayout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for tag, arch := range map[string]string{"one": "amd64", "two": "arm64"} {
		if err := p.AppendImage(testImage(t, arch), ggcrlayout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLayout(t *testing.T) {
	dir := testLayout(t)
	img := mustResolve(t, "oci:"+dir+":one", amd64())
	checkImage(t, img)
	if img.Name != "oci:"+dir+":one" {
		t.Errorf("name is %s", img.Name)
	}
	checkImage(t, mustResolve(t, "oci:"+dir+"@"+img.Digest.String(), amd64()))
	ctx := context.Background()
	_, err := mustParse(t, "oci:"+dir).Resolve(ctx, amd64())
	wantError(t, err, api.KindInvalid, "one, two")
	_, err = mustParse(t, "oci:"+dir+":three").Resolve(ctx, amd64())
	wantError(t, err, api.KindNotFound, "three", "one, two")
	_, err = mustParse(t, "oci:"+dir+":two").Resolve(ctx, amd64())
	wantError(t, err, api.KindUnsupported, "available: linux/arm64")
	_, err = mustParse(t, "oci:"+dir+"@"+digest.FromString("x").String()).Resolve(ctx, amd64())
	wantError(t, err, api.KindNotFound)
	_, err = mustParse(t, "oci:"+filepath.Join(dir, "none")).Resolve(ctx, amd64())
	wantError(t, err, api.KindNotFound, "none")
	_, err = mustParse(t, "oci:"+t.TempDir()).Resolve(ctx, amd64())
	wantError(t, err, api.KindNotFound, "not an OCI image layout")
}

// TestLayoutTampering changes one byte of each blob.
func TestLayoutTampering(t *testing.T) {
	dir := testLayout(t)
	img := mustResolve(t, "oci:"+dir+":one", amd64())
	flip := func(d digest.Digest) {
		t.Helper()
		p := filepath.Join(dir, "blobs", "sha256", d.Encoded())
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		os.Chmod(p, 0o644)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []digest.Digest{img.Digest, img.ConfigDigest} {
		flip(d)
		_, err := mustParse(t, "oci:"+dir+":one").Resolve(context.Background(), amd64())
		wantError(t, err, api.KindImage, "tampered", d.String())
		flip(d)
	}
	for _, l := range img.Layers {
		flip(l.Digest)
		s, err := l.Uncompressed(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, s)
		s.Close()
		wantError(t, err, api.KindImage, "tampered", l.Digest.String())
	}
	if err := os.Remove(filepath.Join(dir, "blobs", "sha256", img.ConfigDigest.Encoded())); err != nil {
		t.Fatal(err)
	}
	_, err := mustParse(t, "oci:"+dir+":one").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindImage, img.ConfigDigest.String())
}

// TestSkopeo reads what skopeo makes of a layout.
func TestSkopeo(t *testing.T) {
	skopeo := tool(t, "skopeo")
	dir := t.TempDir()
	// skopeo of Debian 12 puts no zstd layers into docker's formats.
	p, err := ggcrlayout.Write(filepath.Join(dir, "src"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(testImageOf(t, "amd64", compression.GZip, types.OCILayer)); err != nil {
		t.Fatal(err)
	}
	src := "oci:" + dir + "/src"
	want := mustResolve(t, src, amd64())
	for _, c := range []struct{ dst, ref, name string }{
		{"oci:" + dir + "/layout:x", "oci:" + dir + "/layout:x", ""},
		{"oci-archive:" + dir + "/a.tar:quay.io/a/b:1", "oci-archive:" + dir + "/a.tar", "quay.io/a/b:1"},
		{"docker-archive:" + dir + "/d.tar:quay.io/a/b:1", "docker-archive:" + dir + "/d.tar:quay.io/a/b:1", "quay.io/a/b:1"},
		{"docker-archive:" + dir + "/e.tar:alpine:3", "docker-archive:" + dir + "/e.tar:3", "docker.io/library/alpine:3"},
	} {
		run(t, skopeo, "--override-os", "linux", "--override-arch", "amd64", "--insecure-policy", "copy", "-q", src, c.dst)
		img := mustResolve(t, c.ref, amd64())
		checkImage(t, img)
		if len(img.Layers) != 3 || img.Layers[1].DiffID != want.Layers[1].DiffID || img.Config.Config.Cmd[0] != "/bin/amd64" {
			t.Errorf("%s: %d layers, command %q", c.ref, len(img.Layers), img.Config.Config.Cmd)
		}
		if c.name != "" && img.Name != c.name {
			t.Errorf("%s: name is %s, want %s", c.ref, img.Name, c.name)
		}
	}
}

// TestCrane reads go-containerregistry's archives, whose layers stay compressed.
func TestCrane(t *testing.T) {
	file := filepath.Join(t.TempDir(), "crane.tar")
	tags := map[name.Tag]v1.Image{}
	for _, ref := range []string{"a/b:1", "a/b:2"} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		tags[tag] = testImage(t, map[string]string{"a/b:1": "amd64", "a/b:2": "arm64"}[ref])
	}
	if err := tarball.MultiWriteToFile(file, tags); err != nil {
		t.Fatal(err)
	}
	img := mustResolve(t, "docker-archive:"+file+":a/b:1", amd64())
	checkImage(t, img)
	if img.Name != "docker.io/a/b:1" || img.Layers[0].Digest == img.Layers[0].DiffID {
		t.Errorf("%s, layer %s", img.Name, img.Layers[0].Digest)
	}
	_, err := mustParse(t, "docker-archive:"+file).Resolve(context.Background(), amd64())
	wantError(t, err, api.KindInvalid, "2 images", "a/b:1")
	_, err = mustParse(t, "docker-archive:"+file+":c").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindNotFound, "a/b:2")
}

// archiveOf writes a tar file; a value that begins with "->" is a symlink.
func archiveOf(t testing.TB, c compression.Compression, files ...[2]string) string {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}
		if to, ok := strings.CutPrefix(f[1], "->"); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, to, 0
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(tw, f[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	raw := b.Bytes()
	if c != compression.None {
		raw = tarCompressed(t, raw, c)
	}
	file := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(file, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestDockerOld reads the two formats that docker itself no longer writes.
func TestDockerOld(t *testing.T) {
	one, two := string(tarOf(t, map[string]string{"a": "1"})), string(tarOf(t, map[string]string{"b": "2"}))
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": "amd64", "config": map[string]any{"Cmd": []string{"sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []digest.Digest{digest.FromString(one), digest.FromString(two), digest.FromString(one)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := digest.FromBytes(config).Encoded()
	l1, l2, l3 := strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("3", 64)
	manifest := `[{"Config":"` + id + `.json","RepoTags":["x:1"],"Layers":["` + l1 + `/layer.tar","` + l2 + `/layer.tar","` + l3 + `/layer.tar"]}]`
	files := [][2]string{
		{l1 + "/layer.tar", one}, {l2 + "/layer.tar", two}, {l3 + "/layer.tar", "->../" + l1 + "/layer.tar"},
		{id + ".json", string(config)}, {"manifest.json", manifest}, {"repositories", "{}"},
	}
	for _, c := range []compression.Compression{compression.None, compression.GZip, compression.ZStd} {
		img := mustResolve(t, "docker-archive:"+archiveOf(t, c, files...), amd64())
		checkImage(t, img)
		if len(img.Layers) != 3 || img.Name != "docker.io/library/x:1" || img.ConfigDigest.Encoded() != id {
			t.Errorf("%d layers, name %s, ID %s", len(img.Layers), img.Name, img.ConfigDigest)
		}
	}

	legacy := archiveOf(t, compression.None,
		[2]string{"repositories", `{"old/app":{"v1":"` + l2 + `"}}`},
		[2]string{l2 + "/json", `{"parent":"` + l1 + `","os":"linux","architecture":"amd64","created":"2015-01-01T00:00:00Z","config":{"Cmd":["old"],"Env":["A=b"]}}`},
		[2]string{l1 + "/json", `{}`}, [2]string{l1 + "/layer.tar", one}, [2]string{l2 + "/layer.tar", two})
	img := mustResolve(t, "docker-archive:"+legacy+":old/app:v1", amd64())
	checkImage(t, img)
	if len(img.Layers) != 2 || img.Layers[0].DiffID != digest.FromString(one) || img.Config.Config.Cmd[0] != "old" || img.Name != "docker.io/old/app:v1" {
		t.Errorf("legacy: %d layers, %q, %s", len(img.Layers), img.Config.Config.Cmd, img.Name)
	}
}

func TestBadArchives(t *testing.T) {
	loop := strings.Repeat("1", 64)
	config := `{"rootfs":{"type":"layers","diff_ids":["` + digest.FromString("x").String() + `"]}}`
	wrong := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		files [][2]string
		kind  api.Kind
		text  string
	}{
		"nothing":       {nil, api.KindImage, "neither manifest.json nor repositories"},
		"no JSON":       {[][2]string{{"manifest.json", "{"}}, api.KindImage, "docker save"},
		"no images":     {[][2]string{{"manifest.json", "[]"}}, api.KindNotFound, "no image"},
		"no config":     {[][2]string{{"manifest.json", `[{"Config":"c"}]`}}, api.KindImage, "configuration"},
		"outside":       {[][2]string{{"manifest.json", `[{"Config":"../../../../etc/passwd"}]`}}, api.KindImage, "not exist"},
		"link loop":     {[][2]string{{"manifest.json", `[{"Config":"a"}]`}, {"a", "->b"}, {"b", "->a"}}, api.KindImage, "too many links"},
		"wrong config":  {[][2]string{{"manifest.json", `[{"Config":"` + wrong + `.json","Layers":["l"]}]`}, {wrong + ".json", config}}, api.KindImage, "tampered"},
		"layer count":   {[][2]string{{"manifest.json", `[{"Config":"c","Layers":[]}]`}, {"c", config}}, api.KindImage, "0 layers"},
		"layer missing": {[][2]string{{"manifest.json", `[{"Config":"c","Layers":["l"]}]`}, {"c", config}}, api.KindImage, "not exist"},
		"parent loop":   {[][2]string{{"repositories", `{"a":{"b":"` + loop + `"}}`}, {loop + "/json", `{"parent":"` + loop + `"}`}}, api.KindLimit, "loop"},
		"bad ID":        {[][2]string{{"repositories", `{"a":{"b":"../x"}}`}}, api.KindImage, "not an image ID"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mustParse(t, "docker-archive:"+archiveOf(t, compression.None, c.files...)).Resolve(context.Background(), amd64())
			wantError(t, err, c.kind, c.text)
		})
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("garbage "), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := mustParse(t, "oci-archive:"+garbage).Resolve(context.Background(), amd64())
	wantError(t, err, api.KindImage, "not a tar archive")
	_, err = mustParse(t, "docker-archive:"+garbage+"-none").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindNotFound)
	if runtime.GOOS == "linux" {
		_, err = mustParse(t, "docker-archive:/dev/zero").Resolve(context.Background(), amd64())
		wantError(t, err, api.KindInvalid, "regular")
	}
}

// TestSave writes images out and reads them by us and by skopeo.
func TestSave(t *testing.T) {
	src := testLayout(t)
	one := mustResolve(t, "oci:"+src+":one", amd64())
	again := *one
	one.Name, again.Name, again.closers = "docker.io/library/x:1", "quay.io/a/b:2", nil
	var out, twice bytes.Buffer
	if err := WriteArchive(context.Background(), &out, one, &again); err != nil {
		t.Fatal(err)
	}
	if err := WriteArchive(context.Background(), &twice, one, &again); err != nil || !bytes.Equal(out.Bytes(), twice.Bytes()) {
		t.Errorf("the same images give other bytes: %v", err)
	}
	dir := t.TempDir()
	file, layoutDir := filepath.Join(dir, "x.tar"), filepath.Join(dir, "layout")
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteLayout(context.Background(), layoutDir, one); err != nil {
		t.Fatal(err)
	}
	wantError(t, WriteLayout(context.Background(), layoutDir, one), api.KindExists, layoutDir)
	for ref, name := range map[string]string{
		"docker-archive:" + file + ":x:1":           "docker.io/library/x:1",
		"docker-archive:" + file + ":quay.io/a/b:2": "quay.io/a/b:2",
		"oci-archive:" + file + ":quay.io/a/b:2":    "quay.io/a/b:2",
		"oci:" + layoutDir:                          "docker.io/library/x:1",
	} {
		img := mustResolve(t, ref, amd64())
		checkImage(t, img)
		if img.Name != name || img.Digest != one.Digest || img.ConfigDigest != one.ConfigDigest {
			t.Errorf("%s: %s %s", ref, img.Name, img.Digest)
		}
	}
	skopeo := tool(t, "skopeo")
	for _, ref := range []string{"docker-archive:" + file + ":x:1", "oci:" + layoutDir + ":1"} {
		if got := run(t, skopeo, "--override-os", "linux", "--override-arch", "amd64", "inspect", "--config", ref); !strings.Contains(got, "/bin/amd64") {
			t.Errorf("skopeo sees %s as %s", ref, got)
		}
	}
}
