// SPDX-License-Identifier: Apache-2.0

package run

import (
	"archive/tar"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"z.gfire.dev/gvx/integration/testbed"
)

// refusal is what one bad input has to give.
type refusal struct {
	name string
	args []string
	code int
	say  []string // words that the message must hold, lower case
}

// check runs rungv and compares: the exit code, the words, one message and no
// stack trace, and that nothing is left behind.
func (r refusal) check(t *testing.T, h *testbed.Home) {
	t.Helper()
	left := h.NothingLeft(t)
	result := h.Rungv(t, strings.NewReader(""), r.args...)
	if result.Code != r.code {
		t.Errorf("want exit code %d: %v", r.code, result)
	}
	message := strings.ToLower(result.Stderr)
	for _, word := range r.say {
		if !strings.Contains(message, strings.ToLower(word)) {
			t.Errorf("the message does not say %q: %v", word, result)
		}
	}
	for _, word := range []string{"goroutine ", "panic:", "sigsegv"} {
		if strings.Contains(message, word) {
			t.Errorf("the message is a crash: %v", result)
		}
	}
	if result.Stdout != "" && len(r.args) > 0 && r.args[0] == "run" {
		t.Errorf("a refused run wrote to standard output: %v", result)
	}
	left()
}

// TestBadFlags checks flags with values that cannot be.
func TestBadFlags(t *testing.T) {
	h := getHome(t)
	for _, test := range []struct {
		flags []string
		say   string
	}{
		{[]string{"-m", "lots"}, "lots"},
		{[]string{"-m", "-5m"}, "-5m"},
		{[]string{"-m", "1"}, "memory"},
		{[]string{"--cpus", "-1"}, "cpus"},
		{[]string{"--cpus", "many"}, "many"},
		{[]string{"--pids-limit", "x"}, "pids-limit"},
		{[]string{"--ulimit", "nofile"}, "nofile"},
		{[]string{"--ulimit", "nosuch=1"}, "nosuch"},
		{[]string{"--tmpfs", "relative/path"}, "relative/path"},
		{[]string{"--tmpfs", "/t:size=big"}, "big"},
		{[]string{"--shm-size", "x"}, "shm-size"},
		{[]string{"--rootfs-size", "x"}, "rootfs-size"},
		{[]string{"-e", "=value"}, "=value"},
		{[]string{"--env-file", "/no/such/file"}, "/no/such/file"},
		{[]string{"--cap-add", "NO_SUCH"}, "NO_SUCH"},
		{[]string{"--add-host", "nocolon"}, "nocolon"},
		{[]string{"--dns", "not-an-ip"}, "not-an-ip"},
		{[]string{"--sysctl", "novalue"}, "novalue"},
		{[]string{"--network", "nosuch"}, "nosuch"},
		{[]string{"--name", "../escape"}, "../escape"},
		{[]string{"--name", ""}, ""},
		{[]string{"--stop-signal", "SIGNOPE"}, "SIGNOPE"},
		{[]string{"--platform", "a/b/c/d"}, "a/b/c/d"},
		{[]string{"--pull", "sometimes"}, "sometimes"},
		{[]string{"-w", "relative"}, "relative"},
		{[]string{"--hostname", strings.Repeat("h", 300)}, "hostname"},
	} {
		if test.say == "" {
			continue // docker takes an empty name as none
		}
		t.Run(strings.Join(test.flags, " "), func(t *testing.T) {
			args := append(append([]string{"run", "--rm"}, test.flags...), image, "true")
			refusal{args: args, code: 125, say: []string{test.say}}.check(t, h)
		})
	}
}

// TestBadRuns checks inputs that are only found wrong against the image or the
// host.
func TestBadRuns(t *testing.T) {
	h := getHome(t)
	// A port that nobody listens on: taken and given back.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	listener.Close()
	run := func(args ...string) []string { return append([]string{"run", "--rm", "--network", "none"}, args...) }
	commandless := h.WriteLayout(t, "commandless", testbed.NewImage(t, testbed.Tar(t, &tar.Header{Name: "x", Typeflag: tar.TypeReg})))
	h.MustRungv(t, "image", "import", "--progress", "none", "oci:"+commandless+":latest", "commandless")
	for _, test := range []refusal{
		{"unknown image", run("--pull", "never", "no-such-image:3", "true"), 125, []string{"no-such-image:3"}},
		{"no registry", run(nobody+"/image:1", "true"), 125, []string{nobody}},
		{"bad reference", run("UPPER//case", "true"), 125, []string{"UPPER//case"}},
		{"no layout", run("oci:/no/such/folder:latest", "true"), 125, []string{"/no/such/folder"}},
		{"no tag in layout", run("oci:"+h.Layout(t, image)+":nosuch", "true"), 125, []string{"nosuch"}},
		{"no such user", run("-u", "nosuchuser", image, "true"), 125, []string{"nosuchuser"}},
		{"no such group", run("-u", "root:nosuchgroup", image, "true"), 125, []string{"nosuchgroup"}},
		{"user of no number", run("-u", "99999999999", image, "true"), 125, []string{"99999999999"}},
		{"workdir is a file", run("-w", "/etc/passwd/x", image, "true"), 125, []string{"/etc/passwd"}},
		{"no command", run("oci:" + h.WriteLayout(t, "empty", testbed.NewImage(t, testbed.Tar(t, &tar.Header{Name: "x", Typeflag: tar.TypeReg}))) + ":latest"), 125, []string{"command"}},
		{"inspect of nothing", []string{"inspect", "nothing"}, 1, []string{"nothing"}},
		{"kill of nothing", []string{"kill", "nothing"}, 1, []string{"nothing"}},
		{"unknown verb", []string{"nosuchverb"}, 125, []string{"nosuchverb"}},
	} {
		t.Run(test.name, func(t *testing.T) { test.check(t, h) })
	}
}

// TestBadImages imports images that are broken, hostile, or for elsewhere.
func TestBadImages(t *testing.T) {
	h := getHome(t)
	file := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg} }
	good := testbed.Tar(t, file("etc/hello"))
	imports := func(dir string) []string {
		return []string{"image", "import", "--progress", "none", "oci:" + dir + ":latest", "bad"}
	}
	for _, test := range []struct {
		name  string
		image v1.Image
		spoil func(t *testing.T, dir string)
		say   []string
	}{
		{name: "wrong platform", image: testbed.WithPlatform(t, testbed.NewImage(t, good), "linux", "s390x"), say: []string{"s390x", testbed.Architecture}},
		{name: "wrong system", image: testbed.WithPlatform(t, testbed.NewImage(t, good), "windows", testbed.Architecture), say: []string{"windows"}},
		{name: "digest mismatch", image: testbed.NewImage(t, good), spoil: flipLayer, say: []string{"sha256:"}},
		{name: "layer cut short", image: testbed.NewImage(t, good), spoil: cutLayer, say: []string{"sha256:"}},
		{name: "layer missing", image: testbed.NewImage(t, good), spoil: removeLayer, say: []string{"sha256:"}},
		{name: "not a tar", image: testbed.NewImage(t, []byte(strings.Repeat("this is not a tar ", 1000))), say: []string{"tar"}},
		{name: "tar cut short", image: testbed.NewImage(t, testbed.Tar(t, &tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: 1 << 20})[:1<<19]), say: []string{"unexpected EOF"}},
		{name: "path traversal", image: testbed.NewImage(t, testbed.Tar(t, file("../../escaped"))), say: []string{"../../escaped"}},
		{name: "hard link to nowhere", image: testbed.NewImage(t, testbed.Tar(t, &tar.Header{Name: "link", Typeflag: tar.TypeLink, Linkname: "../../../etc/passwd"})), say: []string{"link"}},
		{name: "name too long", image: testbed.NewImage(t, testbed.Tar(t, file(strings.Repeat("n", 300)))), say: []string{"255"}},
		{name: "path too deep", image: testbed.NewImage(t, testbed.Tar(t, file(strings.Repeat("d/", 1000)+"f"))), say: []string{"components"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := h.WriteLayout(t, "bad", test.image)
			if test.spoil != nil {
				test.spoil(t, dir)
			}
			refusal{args: imports(dir), code: 1, say: test.say}.check(t, h)
		})
	}
}

// TestOddImages imports images that look like attacks and are legal: what they
// mean stays inside.
func TestOddImages(t *testing.T) {
	h := getHome(t)
	headers := []*tar.Header{
		{Name: "/absolute", Typeflag: tar.TypeReg},
		{Name: "./dotted/./path//x", Typeflag: tar.TypeReg},
		{Name: "outside", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "../../../../tmp"},
		{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666},
		{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666},
		{Name: "pipe", Typeflag: tar.TypeFifo},
	}
	for i := range 2000 {
		headers = append(headers, &tar.Header{Name: fmt.Sprintf("devices/d%d", i), Typeflag: tar.TypeChar, Devmajor: 1, Devminor: int64(i % 200), Mode: 0o666})
	}
	odd := testbed.NewImage(t, testbed.Tar(t, headers...), testbed.Tar(t,
		// Through a link that leads out: it must land inside or be refused.
		&tar.Header{Name: "outside/written-through", Typeflag: tar.TypeReg}))
	dir := h.WriteLayout(t, "odd", odd)
	result := h.Rungv(t, nil, "image", "import", "--progress", "none", "oci:"+dir+":latest", "odd")
	if _, err := os.Lstat("/etc/written-through"); err == nil {
		t.Fatal("an image wrote to the host's /etc")
	}
	if result.Code != 0 {
		// Refusing it is right as well, if it says why.
		if !strings.Contains(result.Stderr, "outside") {
			t.Errorf("import of an odd image: %v", result)
		}
		return
	}
	h.MustRungv(t, "image", "rm", "odd")
}

// layerBlob returns the largest blob's path, which is the layer's in images
// with one, unless that is tiny.
func layerBlob(t *testing.T, dir string) string {
	t.Helper()
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil || len(blobs) == 0 {
		t.Fatalf("no blobs in %s: %v", dir, err)
	}
	for _, blob := range blobs {
		head := make([]byte, 2)
		file, err := os.Open(blob)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.Read(head)
		file.Close()
		if err == nil && head[0] == 0x1f && head[1] == 0x8b {
			return blob
		}
	}
	t.Fatalf("no gzip blob in %s", dir)
	return ""
}

func flipLayer(t *testing.T, dir string) {
	blob := layerBlob(t, dir)
	data, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 0x40
	if err := os.WriteFile(blob, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func cutLayer(t *testing.T, dir string) {
	blob := layerBlob(t, dir)
	info, err := os.Stat(blob)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(blob, info.Size()/2); err != nil {
		t.Fatal(err)
	}
}

func removeLayer(t *testing.T, dir string) {
	if err := os.Remove(layerBlob(t, dir)); err != nil {
		t.Fatal(err)
	}
}

// TestFullDisk imports into a store on a disk that is too small: a clear message
// and no debris.
func TestFullDisk(t *testing.T) {
	testbed.NeedRoot(t, "mounting a small disk")
	h := getHome(t)
	small := h.Path("small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=16m,mode=0777"); err != nil {
		testbed.Missing(t, "mounts on this host: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
		os.Remove(small)
	})
	root := filepath.Join(small, "root")
	result := h.Rungv(t, nil, "--root", root, "image", "import", "--progress", "none", "oci:"+h.Layout(t, image)+":latest", "big")
	if result.Code != 1 || !strings.Contains(result.Stderr, "no space left") {
		t.Errorf("import onto a full disk: %v", result)
	}
	var used int64
	err := filepath.Walk(small, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			used += info.Size()
		}
		return err
	})
	if err != nil || used > 1<<20 {
		t.Errorf("%d bytes of debris on the full disk (%v)", used, err)
	}
}

// TestBadStores uses stores that cannot be used.
func TestBadStores(t *testing.T) {
	h := getHome(t)
	layout := "oci:" + h.Layout(t, image) + ":latest"
	t.Run("unwritable", func(t *testing.T) {
		testbed.NeedRoot(t, "a folder that the tests' user cannot write")
		dir := h.Path("closed")
		if err := os.Mkdir(dir, 0o555); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dir)
		refusal{args: []string{"--root", filepath.Join(dir, "root"), "image", "import", layout, "x"}, code: 1, say: []string{dir, "permission denied"}}.check(t, h)
	})
	t.Run("newer version", func(t *testing.T) {
		root := h.Path("tmp", "newer")
		h.MustRungv(t, "--root", root, "image", "ls")
		var version string
		err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.Name() == "version" {
				version = path
			}
			return err
		})
		if err != nil || version == "" {
			t.Skipf("an empty store has no version file yet (%v)", err)
		}
		defer os.RemoveAll(root)
		data, err := os.ReadFile(version)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(string(data), " ")
		if err := os.WriteFile(version, []byte(name+" 999\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		refusal{args: []string{"--root", root, "image", "ls"}, code: 1, say: []string{"999", "newer"}}.check(t, h)
	})
	t.Run("not a store", func(t *testing.T) {
		refusal{args: []string{"--root", "/proc/1/nope", "image", "ls"}, code: 1, say: []string{"/proc/1"}}.check(t, h)
	})
}

// TestBombs imports images made to eat the disk or the memory; the limits are
// named in the messages.
func TestBombs(t *testing.T) {
	if !testbed.Nightly() {
		t.Skip("long: runs nightly (GVX_NIGHTLY=1)")
	}
	h := getHome(t)
	t.Run("decompression", func(t *testing.T) {
		data := testbed.Tar(t, &tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 3 << 29})
		dir := h.WriteLayout(t, "bomb", testbed.NewImage(t, data))
		refusal{args: []string{"image", "import", "--progress", "none", "oci:" + dir + ":latest", "bomb"}, code: 1, say: []string{"200"}}.check(t, h)
	})
	t.Run("entries", func(t *testing.T) {
		headers := make([]*tar.Header, 1<<20+10)
		for i := range headers {
			headers[i] = &tar.Header{Name: fmt.Sprintf("d%d/f%d", i%1000, i), Typeflag: tar.TypeSymlink, Linkname: "x"}
		}
		dir := h.WriteLayout(t, "bomb", testbed.NewImage(t, testbed.Tar(t, headers...)))
		refusal{args: []string{"image", "import", "--progress", "none", "oci:" + dir + ":latest", "bomb"}, code: 1, say: []string{"1048576"}}.check(t, h)
	})
}
