// SPDX-License-Identifier: Apache-2.0

//go:build linux

// The volume verbs, through the command line as a user types it.

package cli

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

// code runs a command and returns its exit code.
func (b *imageBed) code(args ...string) int {
	b.t.Helper()
	_, err := b.run("", args...)
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	}
	return exitFailure
}

// newVolumeBed is a store without images.
func newVolumeBed(t *testing.T) *imageBed { return &imageBed{t: t, root: t.TempDir()} }

func TestVolumeCreateListInspect(t *testing.T) {
	b := newVolumeBed(t)
	if out := b.must("volume", "ls"); out != "DRIVER    VOLUME NAME\n" {
		t.Errorf("no volumes: %q", out)
	}
	if out := b.must("volume", "create", "--size", "64m", "--label", "tier=gold", "--fs-label", "root", "--uid", "5", "data"); out != "data\n" {
		t.Errorf("create printed %q", out)
	}
	// As docker: one that exists is what was asked for.
	b.must("volume", "create", "data")
	b.fails(api.KindExists, "volume resize", "volume", "create", "--size", "1g", "data")
	name := strings.TrimSpace(b.must("volume", "create", "-o", "size=64m"))
	if len(name) != 64 {
		t.Errorf("a volume without a name is called %q", name)
	}
	if out := b.must("volume", "ls", "-q"); !strings.Contains(out, "data\n") || !strings.Contains(out, name) {
		t.Errorf("ls -q: %q", out)
	}
	for filter, want := range map[string]string{
		"label=tier=gold": "data\n", "label=tier": "data\n", "label=tier=x": "", "name=dat": "data\n", "dangling=false": "", "driver=other": "",
	} {
		if out := b.must("volume", "ls", "-q", "--filter", filter); out != want {
			t.Errorf("--filter %s: %q", filter, out)
		}
	}
	out := b.must("volume", "ls", "--size", "--filter", "name=data")
	if !strings.HasPrefix(out, "DRIVER    VOLUME NAME   SIZE") || !strings.Contains(out, "67.1MB") {
		t.Errorf("ls --size:\n%s", out)
	}
	var row map[string]string
	if err := json.Unmarshal([]byte(b.must("volume", "ls", "--format", "json", "-f", "name=data")), &row); err != nil {
		t.Fatal(err)
	}
	if row["Name"] != "data" || row["Driver"] != "local" || row["Scope"] != "local" || row["Labels"] != "tier=gold" || row["Links"] != "0" {
		t.Errorf("%v", row)
	}
	var docs []volumeDocument
	if err := json.Unmarshal([]byte(b.must("volume", "inspect", "data")), &docs); err != nil {
		t.Fatal(err)
	}
	d := docs[0]
	if d.Name != "data" || d.Size != 64<<20 || d.DiskSize > 1<<20 || !d.Filesystem.Clean || d.Filesystem.Label != "root" ||
		d.Mountpoint != filepath.Join(b.root, "volumes", "data.ext4") || d.CreatedAt.IsZero() || d.Problem != "" {
		t.Errorf("%+v %+v", d, d.Filesystem)
	}
	if out := b.must("inspect", "-f", "{{.Name}}", "data"); out != "data\n" {
		t.Errorf("inspect of a volume: %q", out)
	}
	b.fails(api.KindNotFound, "get nothing: no such volume", "volume", "inspect", "nothing")
	b.fails(api.KindInvalid, "no volume name", "volume", "create", "a b")
	for _, bad := range [][]string{{"-d", "nfs"}, {"-o", "type=nfs"}, {"--size", "1k"}, {"--uuid", "x"}, {"--mode", "9"}, {"--block-size", "5"}, {"--size", "lots"}} {
		if code := b.code(append(append([]string{"volume", "create"}, bad...), "other")...); code == 0 {
			t.Errorf("create %v worked", bad)
		}
	}
	if out := b.must("volume", "ls", "-q", "-f", "name=other"); out != "" {
		t.Errorf("what failed left %q", out)
	}
	file := filepath.Join(t.TempDir(), "golden.ext4")
	if out := b.must("volume", "create", "--uuid", "00112233-4455-6677-8899-aabbccddeeff", file); out != file+"\n" {
		t.Errorf("%q", out)
	}
	if out := b.must("volume", "inspect", "-f", "{{.Filesystem.UUID}} {{.Size}}", file); out != "00112233-4455-6677-8899-aabbccddeeff 68719476736\n" {
		t.Errorf("%q", out)
	}
	b.fails(api.KindExists, "file already exists", "volume", "create", file)
}

func TestVolumeRmAndPrune(t *testing.T) {
	b := newVolumeBed(t)
	for _, v := range []string{"a1", "a2", "a3"} {
		b.must("volume", "create", "--size", "64m", v)
	}
	anonymous := strings.TrimSpace(b.must("volume", "create", "--size", "64m"))
	b.must("volume", "clone", "a1", "c1")
	b.must("volume", "clone", "c1", "c2")
	b.fails(api.KindState, "c1.ext4", "volume", "rm", "a1")
	if out := b.must("volume", "rm", "a2"); out != "a2\n" {
		t.Errorf("%q", out)
	}
	b.fails(api.KindNotFound, "get a2: no such volume", "volume", "rm", "a2")
	if out := b.must("volume", "rm", "-f", "a2"); out != "a2\n" {
		t.Errorf("rm -f: %q", out)
	}

	// A container that has a3, stopped as it is, keeps it.
	s, err := state.Open(filepath.Join(b.root, "state"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Create(state.Record{Image: "x"}, "web")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(b.root, "volumes", "a3.ext4")
	err = h.Update(func(rec *state.Record) error {
		rec.Mounts = []state.Mount{{Name: "a3", Source: path, Files: []string{path}, Target: "/data"}}
		rec.Exit = &api.ExitStatus{}
		return rec.SetState(api.StateStopped)
	})
	if err == nil {
		err = h.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	b.fails(api.KindState, "volume is in use - ["+h.ID()+"]", "volume", "rm", "a3")
	if out := b.must("volume", "ls", "-q", "-f", "dangling=false"); out != "a3\n" {
		t.Errorf("%q", out)
	}
	if out := b.must("ps", "-a", "--format", "{{.Names}} {{.Mounts}} {{.LocalVolumes}}", "--filter", "volume=a3"); out != "web a3 1\n" {
		t.Errorf("ps: %q", out)
	}
	if out := b.must("ps", "-aq", "--filter", "volume=/nowhere"); out != "" {
		t.Errorf("ps: %q", out)
	}
	out := b.must("inspect", "-f", "{{range .Mounts}}{{.Type}} {{.Name}} {{.Source}} {{.Destination}} {{.Driver}} {{.RW}}{{end}} {{.HostConfig.Binds}}", "web")
	if out != "volume a3 "+path+" /data local true [a3:/data]\n" {
		t.Errorf("inspect: %q", out)
	}

	if _, err := b.run("n\n", "volume", "prune"); err == nil {
		t.Error("prune went on without a yes")
	}
	out, err = b.run("y\n", "volume", "prune")
	if err != nil || !strings.Contains(out, warnVolumePrune) || !strings.Contains(out, "Deleted Volumes:\n"+anonymous+"\n") || !strings.Contains(out, "Total reclaimed space: ") {
		t.Errorf("%v\n%s", err, out)
	}
	b.must("volume", "prune", "--all", "--force")
	if out := b.must("volume", "ls", "-q"); out != "a3\n" {
		t.Errorf("after prune --all: %q", out)
	}
}

func TestVolumeClones(t *testing.T) {
	b := newVolumeBed(t)
	dir := t.TempDir()
	golden, ep := filepath.Join(dir, "golden.ext4"), filepath.Join(dir, "ep.delta")
	b.must("volume", "create", "--size", "64m", golden)
	if _, err := b.run("one", "volume", "put", golden+":/f"); err != nil {
		t.Fatal(err)
	}
	if out := b.must("volume", "clone", golden, ep); out != ep+"\n" {
		t.Errorf("%q", out)
	}
	if out := b.must("volume", "inspect", "-f", "{{.Bases}}", ep); out != "["+golden+"]\n" {
		t.Errorf("%q", out)
	}
	if out := b.must("volume", "inspect", "-f", "{{.Clones}}", golden); out != "["+ep+"]\n" {
		t.Errorf("%q", out)
	}
	if _, err := b.run("two", "volume", "put", ep+":/f"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.run("x", "volume", "put", golden+":/f"); api.KindOf(err) != api.KindState {
		t.Errorf("a base was written: %v", err)
	}
	b.must("volume", "clone", "--copy", "--progress", "plain", ep, "copy")
	if out := b.must("volume", "cat", golden+":/f", ep+":/f", "copy:/f"); out != "onetwotwo" {
		t.Errorf("%q", out)
	}
	b.fails(api.KindUnsupported, "not made smaller", "volume", "resize", "copy", "32m")
	b.must("volume", "resize", "copy", "+64m")
	if out := b.must("volume", "inspect", "-f", "{{.Size}}", "copy"); out != "134217728\n" {
		t.Errorf("%q", out)
	}
	b.must("volume", "flatten", ep, "flat")
	b.must("volume", "compact", "-q", "flat")
	if out := b.must("volume", "commit", ep); out != golden+"\n" {
		t.Errorf("%q", out)
	}
	if out := b.must("volume", "cat", golden+":/f"); out != "two" {
		t.Errorf("%q", out)
	}
	if code := b.code("volume", "clone", "--copy", "--reflink", "flat", "other"); code == 0 {
		t.Error("two ways of cloning at once")
	}
	if code := b.code("volume", "fsck", golden, "copy", "flat"); code != 0 {
		t.Errorf("fsck: exit code %d", code)
	}
}

func TestVolumeFsckCodes(t *testing.T) {
	b := newVolumeBed(t)
	b.must("volume", "create", "--size", "64m", "data")
	path := filepath.Join(b.root, "volumes", "data.ext4")
	if code := b.code("volume", "fsck", "data"); code != 0 {
		t.Errorf("clean: %d", code)
	}
	fs, err := ext4lite.OpenFile(path, ext4lite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fs.WriteFile("/f", []byte("x"), ext4lite.NewInode{Mode: 0o644}), fs.Sync(), fs.Abandon()); err != nil {
		t.Fatal(err)
	}
	if code := b.code("volume", "fsck", "data"); code != fsckDamaged {
		t.Errorf("not closed: %d", code)
	}
	out, err := b.run("", "volume", "fsck", "--replay", "data")
	if err == nil || !strings.Contains(out, "data: clean (replayed), 2 files") {
		t.Errorf("%v: %s", err, out)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The root's inode, in the first inode table: somewhere behind the bitmaps.
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table := int64(image[4096+8]) | int64(image[4096+9])<<8
	if _, err := f.WriteAt([]byte{0xff}, table*4096+256+4); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for args, want := range map[string]int{
		"data": fsckDamaged, "nothing": fsckFailed, "data nothing": fsckDamaged | fsckFailed, "": fsckUsage, "--nosuch data": fsckUsage,
	} {
		if code := b.code(append([]string{"volume", "fsck"}, strings.Fields(args)...)...); code != want {
			t.Errorf("fsck %s: exit code %d, want %d", args, code, want)
		}
	}
	if out, _ := b.run("", "volume", "fsck", "-q", "data"); out != "" {
		t.Errorf("-q printed %q", out)
	}
	if out, _ := b.run("", "volume", "fsck", "--format", "{{.Volume}} {{.Clean}} {{(index .Problems 0).Code}}", "data"); !strings.HasPrefix(out, "data false inode") {
		t.Errorf("--format printed %q", out)
	}
}

func TestVolumeFiles(t *testing.T) {
	b := newVolumeBed(t)
	dir := t.TempDir()
	b.must("volume", "create", "--size", "64m", "data")
	if err := os.MkdirAll(filepath.Join(dir, "site", "img"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "site", "index.html"), []byte("<p>"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.must("volume", "cp", filepath.Join(dir, "site"), "data:/www")
	b.must("volume", "cp", "data:/www/index.html", filepath.Join(dir, "back"))
	if p, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || string(p) != "<p>" {
		t.Errorf("%q, %v", p, err)
	}
	archive, err := b.run("", "volume", "cp", "data:/www", "-")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.run(archive, "volume", "cp", "--uid", "7", "-", "data:/"); err != nil {
		t.Fatal(err)
	}
	again, err := b.run("", "volume", "cp", "data:/www", "-")
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(strings.NewReader(again))
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 7 || !strings.HasPrefix(h.Name, "www/") {
			t.Errorf("%s belongs to %d", h.Name, h.Uid)
		}
	}
	if _, err := b.run("evil", "volume", "put", "data:/bad\x1b[31m\nname"); err != nil {
		t.Fatal(err)
	}
	want := "/\n├── bad\\x1b[31m\\nname\n└── www\n    ├── img\n    └── index.html\n\n2 directories, 2 files\n"
	if out := b.must("volume", "tree", "data"); out != want {
		t.Errorf("tree:\n%s", out)
	}
	if out := b.must("volume", "tree", "-d", "-L", "1", "data:/www"); out != "/www\n└── img\n\n1 directory\n" {
		t.Errorf("tree -d:\n%s", out)
	}
	if out := b.must("volume", "tree", "--long", "data:/www/index.html"); !strings.HasPrefix(out, "-rw-r--r--     7     0") {
		t.Errorf("tree --long:\n%s", out)
	}
	b.fails(api.KindUnsupported, "between volumes", "volume", "cp", "data:/www", "other:/")
	b.fails(api.KindInvalid, "at least one volume", "volume", "cp", "./a", "./b")
	b.fails(api.KindInvalid, "leave one out", "volume", "cp", "-a", "--uid", "1", dir, "data:/")
	b.fails(api.KindNotFound, "no such volume", "volume", "cat", "nothing:/x")
	b.fails(api.KindInvalid, "no file of a volume", "volume", "cat", "data")
	b.fails(api.KindInvalid, "invalid --mode", "volume", "put", "--mode", "999", "data:/x")
}

func TestSplitVolumePath(t *testing.T) {
	for arg, want := range map[string][2]string{
		"data:/x": {"data", "/x"}, "data:x:y": {"data", "x:y"}, "/srv/g.ext4:/x": {"/srv/g.ext4", "/x"}, "./e.delta:/": {"./e.delta", "/"},
		"g.ext4:": {"g.ext4", ""}, "./data:x": {}, "/a/b": {}, "-": {}, "./a:b.ext4:/c": {"./a:b.ext4", "/c"},
	} {
		v, f, ok := splitVolumePath(arg)
		if v != want[0] || f != want[1] || ok != (want[0] != "") {
			t.Errorf("%q: %q, %q, %v", arg, v, f, ok)
		}
	}
}
