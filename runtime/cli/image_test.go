// SPDX-License-Identifier: Apache-2.0

// The image verbs, through the command line as a user types it, against a
// registry in this process and archives that skopeo made.

package cli

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"z.gfire.dev/gvx/runtime/api"
)

// imageBed is a registry and an empty store.
type imageBed struct {
	t    *testing.T
	host string
	root string
}

func newImageBed(t *testing.T) *imageBed {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	// Nothing of the present user's configuration decides a test.
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	return &imageBed{t: t, host: strings.TrimPrefix(srv.URL, "http://"), root: t.TempDir()}
}

// run is `rungv ARGS` with a standard input.
func (b *imageBed) run(stdin string, args ...string) (stdout string, err error) {
	b.t.Helper()
	root := newRootCommand(&globals{})
	var out, errOut bytes.Buffer
	root.SetArgs(append([]string{"--root", b.root}, args...))
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errOut)
	err = root.ExecuteContext(b.t.Context())
	return out.String(), err
}

// must is run that has to succeed.
func (b *imageBed) must(args ...string) string {
	b.t.Helper()
	out, err := b.run("", args...)
	if err != nil {
		b.t.Fatalf("rungv %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// fails is run that has to fail with a kind and a message.
func (b *imageBed) fails(kind api.Kind, message string, args ...string) {
	b.t.Helper()
	out, err := b.run("", args...)
	if api.KindOf(err) != kind || !strings.Contains(err.Error(), message) {
		b.t.Errorf("rungv %s: kind %q, %v, want %q, %q\n%s", strings.Join(args, " "), api.KindOf(err), err, kind, message, out)
	}
}

func rootfsTar(t *testing.T, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/sh", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// push puts an image of one layer into the registry; age is in hours.
func (b *imageBed) push(repository, content string, age int) (ref string, img v1.Image) {
	b.t.Helper()
	raw := rootfsTar(b.t, content)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
	if err != nil {
		b.t.Fatal(err)
	}
	if img, err = mutate.AppendLayers(empty.Image, layer); err != nil {
		b.t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		b.t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Author = "linux", "amd64", "somebody"
	cf.Created = v1.Time{Time: time.Now().UTC().Add(-time.Duration(age) * time.Hour)}
	cf.Config = v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"A=b"}, Labels: map[string]string{"tier": content},
		Healthcheck: &v1.HealthConfig{Test: []string{"NONE"}}}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		b.t.Fatal(err)
	}
	ref = b.host + "/" + repository
	n, err := name.ParseReference(ref)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := remote.Write(n, img); err != nil {
		b.t.Fatal(err)
	}
	return ref, img
}

func TestImagePull(t *testing.T) {
	b := newImageBed(t)
	ref, img := b.push("test/a:1", "one", 2)
	digest, _ := img.Digest()
	out := b.must("image", "pull", "--platform", "linux/amd64", ref)
	want := "1: Pulling from test/a\nDigest: " + digest.String() + "\nStatus: Downloaded newer image for " + ref + "\n" + ref + "\n"
	if out != want {
		t.Errorf("pull printed\n%s\nwant\n%s", out, want)
	}
	if out := b.must("pull", ref); !strings.Contains(out, "Status: Image is up to date for "+ref) {
		t.Errorf("second pull printed\n%s", out)
	}
	if out := b.must("pull", "-q", ref); out != ref+"\n" {
		t.Errorf("pull -q printed %q", out)
	}
	if out := b.must("pull", "--progress", "plain", ref); !regexp.MustCompile(`(?m)^[0-9a-f]{12}: Already exists$`).MatchString(out) {
		t.Errorf("plain progress:\n%s", out)
	}
	for _, line := range strings.Split(strings.TrimSpace(b.must("pull", "--progress", "json", ref)), "\n") {
		var e jsonEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Status == "" {
			t.Errorf("json progress: %q: %v", line, err)
		}
	}
	b.fails(api.KindInvalid, "--progress", "pull", "--progress", "blue", ref)
	b.fails(api.KindInvalid, "requires 1 argument", "pull")
	b.fails(api.KindInvalid, "lower case", "pull", "Debian")
	b.fails(api.KindInvalid, "platform", "pull", "--platform", "a/b/c/d", ref)
	b.fails(api.KindUnsupported, "linux/arm64", "pull", "--platform", "linux/arm64", ref)
	b.fails(api.KindNotFound, "", "pull", b.host+"/test/none:1")
}

func TestImageList(t *testing.T) {
	b := newImageBed(t)
	if out := b.must("images"); out != "REPOSITORY   TAG       IMAGE ID   CREATED   SIZE\n" {
		t.Errorf("empty list: %q", out)
	}
	refA, imgA := b.push("test/a:1", "one", 26)
	refB, _ := b.push("test/b:2", "two", 2)
	b.must("pull", "-q", refA)
	b.must("pull", "-q", refB)
	id, _ := imgA.ConfigName()
	digest, _ := imgA.Digest()
	repoA := strings.TrimSuffix(refA, ":1")

	lines := strings.Split(strings.TrimSpace(b.must("image", "ls")), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], strings.TrimSuffix(refB, ":2")) {
		t.Fatalf("list is not newest first:\n%s", strings.Join(lines, "\n"))
	}
	row := regexp.MustCompile(`^` + regexp.QuoteMeta(repoA) + ` +1 +` + id.Hex[:12] + ` +26 hours ago +[0-9.]+kB$`)
	if !row.MatchString(lines[2]) {
		t.Errorf("row %q does not match %s", lines[2], row)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-q", repoA}, id.Hex[:12] + "\n"},
		{[]string{"-q", "--no-trunc", repoA + ":1"}, id.String() + "\n"},
		{[]string{"--format", `{{.Repository}}:{{.Tag}} {{.ID}}`, repoA}, refA + " " + id.Hex[:12] + "\n"},
		{[]string{"--digests", "--format", `{{.Digest}}`, repoA}, digest.String() + "\n"},
		{[]string{"--filter", "label=tier=one", "-q"}, id.Hex[:12] + "\n"},
		{[]string{"--filter", "label=nothing", "-q"}, ""},
		{[]string{"--filter", "reference=" + b.host + "/*/a", "-q"}, id.Hex[:12] + "\n"},
		{[]string{"--filter", "before=" + refB, "-q"}, id.Hex[:12] + "\n"},
		{[]string{"--filter", "since=" + refB, "-q"}, ""},
		{[]string{"--filter", "dangling=true", "-q"}, ""},
		{[]string{"--format", `table {{.ID}}\t{{.Tag}}`, repoA}, "IMAGE ID       TAG\n" + id.Hex[:12] + "   1\n"},
	} {
		if got := b.must(append([]string{"image", "ls"}, c.args...)...); got != c.want {
			t.Errorf("image ls %q printed %q, want %q", c.args, got, c.want)
		}
	}
	var doc map[string]string
	if err := json.Unmarshal([]byte(b.must("images", "--format", "json", repoA)), &doc); err != nil || doc["Repository"] != repoA || doc["Tag"] != "1" {
		t.Errorf("json: %v, %v", doc, err)
	}
	b.fails(api.KindInvalid, "invalid filter", "images", "--filter", "colour=red")
	b.fails(api.KindInvalid, "KEY=VALUE", "images", "--filter", "red")
	b.fails(api.KindInvalid, "template", "images", "--format", "{{.Nope")
	b.fails(api.KindInvalid, "template", "images", "--format", "{{.Nope}}")
}

func TestImageInspect(t *testing.T) {
	b := newImageBed(t)
	ref, img := b.push("test/a:1", "one", 2)
	b.must("pull", "-q", ref)
	var docs []map[string]any
	if err := json.Unmarshal([]byte(b.must("image", "inspect", ref)), &docs); err != nil || len(docs) != 1 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	d := docs[0]
	id, _ := img.ConfigName()
	diffs := d["RootFS"].(map[string]any)["Layers"].([]any)
	config := d["Config"].(map[string]any)
	if d["Id"] != id.String() || d["RepoTags"].([]any)[0] != ref || d["Os"] != "linux" || d["Architecture"] != "amd64" || d["Author"] != "somebody" || len(diffs) != 1 {
		t.Errorf("document %v", d)
	}
	if config["Cmd"].([]any)[0] != "/bin/sh" || config["Healthcheck"] == nil {
		t.Errorf("config %v", config)
	}
	if out := b.must("image", "inspect", "-f", `{{.Os}} {{json .Config.Cmd}} {{index .Config.Labels "tier"}}`, id.Hex[:12]); out != `linux ["/bin/sh"] one`+"\n" {
		t.Errorf("template printed %q", out)
	}
	out, err := b.run("", "image", "inspect", "nothing")
	if strings.TrimSpace(out) != "[]" || api.KindOf(err) != api.KindNotFound || err.Error() != "No such image: nothing" {
		t.Errorf("unknown image: %q, %v", out, err)
	}
}

func TestImageRmAndPrune(t *testing.T) {
	b := newImageBed(t)
	ref, img := b.push("test/a:1", "one", 2)
	id, _ := img.ConfigName()
	b.must("pull", "-q", ref)
	out := b.must("rmi", ref)
	if !strings.Contains(out, "Untagged: "+ref+"\n") || !strings.Contains(out, "Deleted: "+id.String()+"\n") {
		t.Errorf("rmi printed\n%s", out)
	}
	b.fails(api.KindNotFound, "No such image: "+ref, "image", "rm", ref)
	if _, err := b.run("", "image", "rm", "-f", ref); err != nil {
		t.Errorf("rm -f of nothing: %v", err)
	}
	b.must("pull", "-q", ref)
	b.push("test/a:1", "moved", 1)
	b.must("pull", "-q", ref)
	if out, err := b.run("n\n", "image", "prune"); err == nil || !strings.Contains(out, "WARNING! This will remove all dangling images.") {
		t.Errorf("declined prune: %q, %v", out, err)
	}
	out, err := b.run("y\n", "image", "prune")
	if err != nil || !strings.Contains(out, "deleted: "+id.String()) || !strings.Contains(out, "Total reclaimed space: ") {
		t.Errorf("prune printed\n%s\n%v", out, err)
	}
	if out := b.must("image", "prune", "-f"); out != "Total reclaimed space: 0B\n" {
		t.Errorf("nothing to prune: %q", out)
	}
	b.must("image", "prune", "-a", "-f")
	if out := b.must("images", "-q"); out != "" {
		t.Errorf("after prune -a: %q", out)
	}
}

func TestImageSaveLoadImport(t *testing.T) {
	b := newImageBed(t)
	ref, img := b.push("test/a:1", "one", 2)
	id, _ := img.ConfigName()
	b.must("pull", "-q", ref)
	archive := filepath.Join(t.TempDir(), "a.tar")
	b.must("save", "-o", archive, ref)
	piped := b.must("image", "save", ref)
	if raw, err := os.ReadFile(archive); err != nil || string(raw) != piped {
		t.Errorf("save -o and save differ: %v", err)
	}
	b.must("image", "rm", ref)
	if out := b.must("load", "-i", archive); out != "Loaded image: "+ref+"\n" {
		t.Errorf("load printed %q", out)
	}
	if out := b.must("images", "-q", "--no-trunc"); out != id.String()+"\n" {
		t.Errorf("loaded %q, want %s", out, id)
	}
	if out, err := b.run(piped, "image", "load"); err != nil || out != "Loaded image: "+ref+"\n" {
		t.Errorf("load from a pipe: %q, %v", out, err)
	}
	if _, err := b.run("not a tar at all, but long enough to be looked at", "load"); api.KindOf(err) != api.KindImage {
		t.Errorf("load of garbage: %v", err)
	}
	b.fails(api.KindNotFound, "No such image", "save", "-o", archive, "nothing")

	out, err := b.run(string(rootfsTar(t, "imported")), "image", "import", "-", "my/box:3")
	if err != nil || !regexp.MustCompile(`^sha256:[0-9a-f]{64}\n$`).MatchString(out) {
		t.Fatalf("import: %q, %v", out, err)
	}
	if got := b.must("images", "--format", "{{.Repository}}:{{.Tag}}", "my/box"); got != "my/box:3\n" {
		t.Errorf("imported as %q", got)
	}
	file := filepath.Join(t.TempDir(), "rootfs.tar")
	if err := os.WriteFile(file, rootfsTar(t, "imported"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := b.must("import", file, "my/box:4"); again != out {
		t.Errorf("the same file imported is %q, want %q", again, out)
	}
	b.fails(api.KindInvalid, "lower case", "import", file, "My/Box")
	b.fails(api.KindNotFound, "no-such-file", "import", "/no-such-file.tar", "x")
}

// TestImageLoadSkopeo loads what skopeo writes, and lets skopeo read what save
// writes: it checks every digest.
func TestImageLoadSkopeo(t *testing.T) {
	skopeo, err := exec.LookPath("skopeo")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("skopeo is not installed")
		}
		t.Skip("skopeo is not installed")
	}
	b := newImageBed(t)
	ref, img := b.push("test/a:1", "one", 2)
	id, _ := img.ConfigName()
	copyImage := func(from, to string) {
		t.Helper()
		cmd := exec.Command(skopeo, "--insecure-policy", "copy", "--src-tls-verify=false", "--override-os", "linux", "--override-arch", "amd64", from, to)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("skopeo copy %s %s: %v\n%s", from, to, err, out)
		}
	}
	dir := t.TempDir()
	for _, c := range []struct{ to, want string }{
		{"docker-archive:" + filepath.Join(dir, "d.tar") + ":my/skopeo:1", "Loaded image: my/skopeo:1\n"},
		{"oci-archive:" + filepath.Join(dir, "o.tar") + ":my/oci:1", "Loaded image: my/oci:1\n"},
	} {
		copyImage("docker://"+ref, c.to)
		file := strings.Split(c.to, ":")[1]
		if out := b.must("load", "-i", file); out != c.want {
			t.Errorf("load %s printed %q, want %q", c.to, out, c.want)
		}
		// On its way to OCI, skopeo drops docker's health check, and the image
		// is another.
		if out := b.must("images", "-q", "--no-trunc", "my/skopeo"); out != id.String()+"\n" {
			t.Errorf("loaded %q, want %s", out, id)
		}
	}
	saved := filepath.Join(dir, "saved.tar")
	b.must("save", "-o", saved, "my/skopeo:1")
	for _, transport := range []string{"docker-archive:", "oci-archive:"} {
		copyImage(transport+saved, "dir:"+filepath.Join(dir, strings.TrimSuffix(transport, ":")))
	}
}

// TestImageListPassesOverDamage: one damaged record costs its own line, says
// on the standard error what to do, and goes by force.
func TestImageListPassesOverDamage(t *testing.T) {
	b := newImageBed(t)
	var ids []string
	for _, name := range []string{"whole:1", "bad:1"} {
		out, err := b.run(string(rootfsTar(t, name)), "import", "-", name)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, strings.TrimPrefix(strings.TrimSpace(out), "sha256:"))
	}
	record := filepath.Join(b.root, "images", "images", ids[1]+".json")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	if out := b.must("--log", log, "image", "ls", "-q"); out != ids[0][:12]+"\n" {
		t.Errorf("image ls printed %q", out)
	}
	if warned, err := os.ReadFile(log); err != nil || !strings.Contains(string(warned), record) || !strings.Contains(string(warned), "rungv image rm -f "+ids[1][:12]) {
		t.Errorf("warned %q, %v", warned, err)
	}
	b.fails(api.KindImage, record, "image", "rm", "bad:1")
	if out := b.must("image", "rm", "-f", ids[1][:12]); !strings.Contains(out, "Untagged: bad:1\n") {
		t.Errorf("image rm -f printed %q", out)
	}
	if _, err := os.Lstat(record); !os.IsNotExist(err) {
		t.Errorf("the damaged record is still there: %v", err)
	}
}
