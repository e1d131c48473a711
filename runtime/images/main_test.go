// SPDX-License-Identifier: Apache-2.0

// What all tests of the package share: a registry in this process, images for
// it, the check that a store is consistent, and this binary as another process.

package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"

	"z.gfire.dev/gvx/oci/erofs"
)

// envRole makes the test binary do something else than test: see roles.
const envRole = "GVX_IMAGES_TEST_ROLE"

// roles are what a child process can be; each gets its arguments.
var roles = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is this binary in a role.
func child(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), envRole+"="+role)
	return cmd
}

// testRegistry serves images and counts the blobs that are fetched.
type testRegistry struct {
	host string
	mu   sync.Mutex
	gets map[string]int
	// slow delays each blob.
	slow time.Duration
}

func newRegistry(t testing.TB) *testRegistry {
	t.Helper()
	r := &testRegistry{gets: map[string]int{}}
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			r.mu.Lock()
			r.gets[filepath.Base(req.URL.Path)]++
			r.mu.Unlock()
			time.Sleep(r.slow)
		}
		h.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// fetched is how often the blob was fetched.
func (r *testRegistry) fetched(d v1.Hash) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gets[d.String()]
}

// push stores an image under repository:tag and returns the reference.
func (r *testRegistry) push(t testing.TB, repository string, img v1.Image) string {
	t.Helper()
	ref := r.host + "/" + repository
	n, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(n, img); err != nil {
		t.Fatal(err)
	}
	return ref
}

// member is one entry of a layer.
type member struct {
	name, content string
	typ           byte
	link          string
	mode          int64
}

// tarOf writes members as a tar.
func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Typeflag: m.typ, Linkname: m.link, Mode: 0o644, Size: int64(len(m.content)), ModTime: time.Unix(1700000000, 0)}
		if m.typ == 0 {
			h.Typeflag = tar.TypeReg
		}
		if m.typ == tar.TypeDir {
			h.Mode = 0o755
		}
		if m.mode != 0 {
			h.Mode = m.mode
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// imageOf makes an image of layers, each a tar, for linux on this machine.
func imageOf(t testing.TB, label string, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", "amd64"
	cf.Created = v1.Time{Time: time.Unix(1700000000, 0).UTC()}
	cf.Config.Cmd = []string{"/bin/sh"}
	cf.Config.Labels = map[string]string{"test": label}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

// twoLayers is the image most tests use.
func twoLayers(t testing.TB) v1.Image {
	return imageOf(t, "two",
		tarOf(t, member{name: "etc/", typ: tar.TypeDir}, member{name: "etc/os-release", content: "ID=test\n"},
			member{name: "big", content: strings.Repeat("0123456789abcdef", 64<<10)}),
		tarOf(t, member{name: "etc/", typ: tar.TypeDir}, member{name: "etc/issue", content: "hello\n"}, member{name: "lnk", typ: tar.TypeSymlink, link: "etc/issue"}))
}

// open opens a store that the test owns.
func open(t testing.TB, root string) *Store {
	t.Helper()
	s, err := Open(root, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// scratch is a new store's root.
func scratch(t testing.TB) string { return filepath.Join(t.TempDir(), "images") }

// fastScratch is scratch in memory where there is such a place: hundreds of
// stores that are killed and looked at need no disk that survives.
func fastScratch(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "gvx-images-*")
	if err != nil {
		return scratch(t)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "images")
}

// pull pulls or fails the test.
func pull(t testing.TB, s *Store, ref string) *Image {
	t.Helper()
	img, err := s.Pull(context.Background(), ref, PullOptions{Policy: PullAlways})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// check verifies that nothing in the store is half: names lead to images,
// images to layers and documents, layers are valid, and there is no debris.
func check(t testing.TB, s *Store) {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, img := range list {
		ids[string(img.ID)] = true
		if _, err := s.RawConfig(img); err != nil {
			t.Errorf("image %s: %v", img.ID, err)
		}
		pin, err := s.Pin(img)
		if err != nil {
			t.Errorf("image %s: %v", img.ID, err)
			continue
		}
		pin.Close()
	}
	refs, err := s.refs()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refs {
		if !ids[string(r.Image)] {
			t.Errorf("name %s leads to no image", r.Name)
		}
	}
	layers, err := listHex(s.dir(dirLayers), extLayer)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range layers {
		checkLayer(t, s, h)
	}
	if n := len(names(t, s.dir(dirTmp))); n != 0 {
		t.Errorf("%d temporary files are left", n)
	}
}

func checkLayer(t testing.TB, s *Store, h hexDigest) {
	t.Helper()
	f, err := openShared(s.layerPath(h))
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := erofs.Verify(context.Background(), f, fi.Size()); err != nil {
		t.Errorf("layer %s: %v", h, err)
	}
	if _, err := s.readLayer(h); err != nil {
		t.Errorf("layer %s: %v", h, err)
	}
}

// names lists a directory.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
