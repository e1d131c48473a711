// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestArchivesOfRealEngines reads what two engines have written: both saved
// tiny:1, an imported /etc with a file, a symbolic and a hard link, and tiny:2,
// which a build made of it with one more variable and a label. The ids are those
// that the engines printed.
func TestArchivesOfRealEngines(t *testing.T) {
	for _, c := range []struct{ file, one, two string }{
		{"docker-20.10-save.tar.gz", "sha256:36a5ab845bc927ecac166d69957e053bda1d19acad8fce3395853f509fc309fe", "sha256:05e354673102bef8f93e371c9587c52638669d3fed8557772fe20da04abc4753"},
		{"docker-29-save.tar.gz", "sha256:f3b0b70f0999351267e70d0bb5f77132713919090e74e0db0d5deec5a429c13f", "sha256:63a9b673e5acbfe57ea30d18e4fd5a559bf334cb98703a12a3f24e543e621638"},
	} {
		archive := gunzipped(t, filepath.Join("testdata", c.file))
		for ref, id := range map[string]string{"tiny:1": c.one, "tiny:2": c.two} {
			img := mustResolve(t, "docker-archive:"+archive+":"+ref, amd64())
			defer img.Close()
			if img.ConfigDigest.String() != id {
				t.Errorf("%s, %s: id %s, want %s", c.file, ref, img.ConfigDigest, id)
			}
			if env := img.Config.Config.Env; !slices.Contains(env, "A=b") || slices.Contains(env, "C=d") != (ref == "tiny:2") {
				t.Errorf("%s, %s: environment %q", c.file, ref, env)
			}
			names := layerNames(t, img.Layers[0])
			if want := []string{"etc/", "etc/hard", "etc/hello", "etc/link"}; !slices.Equal(names, want) {
				t.Errorf("%s, %s: layer holds %q, want %q", c.file, ref, names, want)
			}
		}
		// Two images in it: which one has to be said.
		if _, err := mustParse(t, "docker-archive:"+archive).Resolve(context.Background(), amd64()); err == nil {
			t.Errorf("%s: of two images, one was taken", c.file)
		}
	}
}

// gunzipped returns an uncompressed copy of a file.
func gunzipped(t *testing.T, name string) string {
	t.Helper()
	in, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "save.tar")
	if err := os.WriteFile(out, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// layerNames lists a layer, which is verified by reading it to its end.
func layerNames(t *testing.T, l Layer) []string {
	t.Helper()
	rc, err := l.Uncompressed(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	r := tar.NewReader(rc)
	var names []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if _, err := io.Copy(io.Discard, rc); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}
