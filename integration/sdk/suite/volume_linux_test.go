// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/pkg/gvx"
)

// volumes is where a test keeps volumes, and what makes them.
func volumes(t *testing.T) (world, gvx.Volumes, string) {
	t.Helper()
	w := setup(t)
	return w, gvx.Volumes{RuntimePath: w.binary, Root: w.root}, t.TempDir()
}

// on runs a script in a sandbox with a volume at /v, and returns its output.
func (w world) on(t *testing.T, m gvx.Mount, script string) string {
	t.Helper()
	var out bytes.Buffer
	if m.GuestPath = "/v"; m.Kind == "" {
		m.Kind = gvx.MountVolume
	}
	c := w.config(script)
	c.Mounts, c.Stdout, c.Stderr = []gvx.Mount{m}, &out, &out
	sb := newSandbox(t, c)
	code, err := sb.Run(t.Context())
	if code != 0 || err != nil {
		t.Errorf("on %s: code %d, error %v: %s", m.ImagePath, code, err, &out)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	return out.String()
}

// hash is the SHA-256 of a file.
func hash(t *testing.T, path string) [32]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return [32]byte(h.Sum(nil))
}

// readVolume returns a file of a volume that no sandbox has.
func readVolume(t *testing.T, path, name string) string {
	t.Helper()
	v, err := gvx.OpenVolume(path)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	data, err := fs.ReadFile(v, name)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

// TestEpisodesOfAGoldenVolume: made, cloned in every way, changed by episodes
// that do not see each other, and turned into the next golden volume.
func TestEpisodesOfAGoldenVolume(t *testing.T) {
	w, v, dir := volumes(t)
	golden := filepath.Join(dir, "golden.ext4")
	if err := v.Create(t.Context(), golden, 64<<20); err != nil {
		t.Fatal(err)
	}
	w.on(t, gvx.Mount{ImagePath: golden}, "echo golden > /v/who; df /v | grep -q 6....")
	before := hash(t, golden)

	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			want := fmt.Sprintf("golden\n%d\n", i)
			if out := w.on(t, gvx.Mount{ImagePath: golden, Clone: gvx.CloneEphemeral}, fmt.Sprintf("echo %d >> /v/who; cat /v/who", i)); out != want {
				t.Errorf("episode %d: %q", i, out)
			}
		})
	}
	wg.Wait()
	for _, mode := range []gvx.CloneMode{gvx.CloneDelta, gvx.CloneCopy} {
		clone := filepath.Join(dir, string(mode))
		if err := v.Clone(t.Context(), golden, clone, mode); err != nil {
			t.Fatalf("clone by %s: %v", mode, err)
		}
		w.on(t, gvx.Mount{ImagePath: clone}, "echo more >> /v/who")
		if have := readVolume(t, clone, "who"); have != "golden\nmore\n" {
			t.Errorf("clone by %s: %q", mode, have)
		}
	}
	kept := filepath.Join(dir, "kept")
	w.on(t, gvx.Mount{ImagePath: golden, Clone: kept}, "echo kept >> /v/who")
	if have := readVolume(t, kept, "who"); have != "golden\nkept\n" {
		t.Errorf("kept clone: %q", have)
	}
	if hash(t, golden) != before {
		t.Error("the golden volume has changed")
	}

	next := filepath.Join(dir, "next.ext4")
	if err := v.Flatten(t.Context(), kept, next); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(v.Compact(t.Context(), next), v.Resize(t.Context(), next, 128<<20), v.Check(t.Context(), next)); err != nil {
		t.Error(err)
	}
	if out, err := exec.Command("e2fsck", "-fn", next).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
	if have := readVolume(t, next, "who"); have != "golden\nkept\n" {
		t.Errorf("the next golden volume: %q", have)
	}
	for _, path := range []string{filepath.Join(dir, string(gvx.CloneDelta)), kept, golden} {
		if err := v.Remove(t.Context(), path); err != nil {
			t.Errorf("remove %s: %v", path, err)
		}
	}
	if err := v.Check(t.Context(), golden); !errors.Is(err, gvx.ErrNotFound) {
		t.Errorf("check what is gone: %v", err)
	}
}

// TestLayersOfAGoldenVolume: an episode's delta becomes the golden volume of others,
// over its base, or goes into it once nothing else needs it as it was.
func TestLayersOfAGoldenVolume(t *testing.T) {
	w, v, dir := volumes(t)
	golden, layer, over := filepath.Join(dir, "golden"), filepath.Join(dir, "layer"), filepath.Join(dir, "over")
	w.on(t, gvx.Mount{ImagePath: golden, SizeBytes: 64 << 20}, "echo golden > /v/who")
	before := hash(t, golden)
	w.on(t, gvx.Mount{ImagePath: golden, Clone: layer}, "echo layer >> /v/who")
	w.on(t, gvx.Mount{ImagePath: layer, Clone: over}, "echo over >> /v/who")
	if out := w.on(t, gvx.Mount{ImagePath: layer, Clone: gvx.CloneEphemeral}, "echo lost >> /v/who; head -n 2 /v/who"); out != "golden\nlayer\n" {
		t.Errorf("a clone of the layer: %q", out)
	}
	if have := readVolume(t, over, "who"); have != "golden\nlayer\nover\n" {
		t.Errorf("a layer over the layer: %q", have)
	}
	if hash(t, golden) != before {
		t.Error("the golden volume has changed")
	}
	if err := v.Commit(t.Context(), layer); !errors.Is(err, gvx.ErrState) {
		t.Fatalf("commit a layer that has a clone: %v", err)
	}
	flat := filepath.Join(dir, "flat")
	if err := v.Commit(t.Context(), over); !errors.Is(err, gvx.ErrUnsupported) {
		t.Errorf("commit into a layer: %v", err)
	}
	err := errors.Join(v.Flatten(t.Context(), over, flat), v.Remove(t.Context(), over), v.Commit(t.Context(), layer), v.Check(t.Context(), golden), v.Check(t.Context(), flat))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{golden: "golden\nlayer\n", flat: "golden\nlayer\nover\n"} {
		if have := readVolume(t, path, "who"); have != want {
			t.Errorf("%s, after the layers have gone: %q", path, have)
		}
	}
	if _, err := os.Lstat(layer); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", layer, err)
	}
	text, err := v.Inspect(t.Context(), golden)
	var doc struct{ Mountpoint string }
	if err := errors.Join(err, json.Unmarshal(text, &doc)); err != nil || doc.Mountpoint != golden {
		t.Errorf("inspect: %s, %v", text, err)
	}
}

// TestReflinkClones where the host's file system has them, and are refused, by the
// way that works, where it has not.
func TestReflinkClones(t *testing.T) {
	w, v, dir := volumes(t)
	reflinks := os.Getenv(envReflinks)
	if reflinks == "" {
		t.Skip("package sdk makes a file system with reflinks")
	}
	golden, clone := filepath.Join(reflinks, "golden"), filepath.Join(reflinks, "clone")
	w.on(t, gvx.Mount{ImagePath: golden, SizeBytes: 64 << 20, Durability: gvx.DurabilityProcess}, "echo golden > /v/who; sync")
	if err := v.Clone(t.Context(), golden, clone, gvx.CloneReflink); err != nil {
		t.Fatal(err)
	}
	w.on(t, gvx.Mount{ImagePath: clone, Durability: gvx.DurabilityHost}, "echo more >> /v/who; sync")
	if have := readVolume(t, clone, "who"); have != "golden\nmore\n" {
		t.Errorf("the clone: %q", have)
	}
	if have := readVolume(t, golden, "who"); have != "golden\n" {
		t.Errorf("the golden volume: %q", have)
	}
	if err := v.Clone(t.Context(), golden, filepath.Join(dir, "elsewhere"), gvx.CloneReflink); !errors.Is(err, gvx.ErrUnsupported) {
		t.Errorf("a reflink to another file system: %v", err)
	}
}

// writtenTo is how many bytes have reached the block device that a directory is on.
func writtenTo(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		t.Fatal(err)
	}
	const sectorsWritten, sectorBytes = 6, 512 // Documentation/block/stat.rst
	n, err := strconv.ParseInt(strings.Fields(string(text))[sectorsWritten], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * sectorBytes
}

// TestFsyncIsAsDurableAsAsked: with DurabilityHost, what a guest has synced is on the
// host's disk; with DurabilityProcess, and in ephemeral clones, nobody waits for that.
func TestFsyncIsAsDurableAsAsked(t *testing.T) {
	w := setup(t)
	dir := os.Getenv(envReflinks)
	if dir == "" {
		t.Skip("package sdk makes a file system on a block device of its own")
	}
	const size = 16 << 20
	golden := filepath.Join(dir, "synced-golden")
	w.on(t, gvx.Mount{ImagePath: golden, SizeBytes: 128 << 20}, "true")
	for name, test := range map[string]struct {
		mount gvx.Mount
		disk  bool
	}{
		"host":              {gvx.Mount{ImagePath: filepath.Join(dir, "synced-host"), SizeBytes: 128 << 20, Durability: gvx.DurabilityHost}, true},
		"the default":       {gvx.Mount{ImagePath: filepath.Join(dir, "synced-default"), SizeBytes: 128 << 20}, true},
		"process":           {gvx.Mount{ImagePath: filepath.Join(dir, "synced-process"), SizeBytes: 128 << 20, Durability: gvx.DurabilityProcess}, false},
		"ephemeral":         {gvx.Mount{ImagePath: golden, Clone: gvx.CloneEphemeral}, false},
		"ephemeral to host": {gvx.Mount{ImagePath: golden, Clone: gvx.CloneEphemeral, Durability: gvx.DurabilityHost}, true},
	} {
		test.mount.Kind, test.mount.GuestPath = gvx.MountVolume, "/v"
		c := w.config("echo ready; read go; dd if=/dev/urandom of=/v/f bs=1M count=16 conv=fsync 2>/dev/null; echo synced; sleep 1000")
		in, typed := io.Pipe()
		out := &watched{}
		c.Mounts, c.Stdin, c.Stdout = []gvx.Mount{test.mount}, in, out
		sb := newSandbox(t, c)
		if err := sb.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		out.await(t, "ready")
		unix.Sync() // What was to be written before is none of it.
		before := writtenTo(t, dir)
		fmt.Fprintln(typed, "go")
		out.await(t, "synced")
		if n := writtenTo(t, dir) - before; n >= size != test.disk {
			t.Errorf("%s: %d bytes are on the disk when %d were synced; want all: %v", name, n, size, test.disk)
		}
		typed.Close()
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestVolumeErrorsAreTyped.
func TestVolumeErrorsAreTyped(t *testing.T) {
	w, v, dir := volumes(t)
	path := filepath.Join(dir, "v")
	if err := v.Create(t.Context(), path, 0); err != nil {
		t.Fatal(err)
	}
	if err := v.Create(t.Context(), path, 0); !errors.Is(err, gvx.ErrExists) {
		t.Errorf("create twice: %v", err)
	}
	c := w.config("echo ready; sleep 1000")
	c.Mounts = []gvx.Mount{{Kind: gvx.MountVolume, ImagePath: path, GuestPath: "/v"}}
	startSandbox(t, c)
	if _, err := gvx.New(t.Context(), c); !errors.Is(err, gvx.ErrState) {
		t.Errorf("a volume in use: %v", err)
	}
	if err := v.Remove(t.Context(), path); !errors.Is(err, gvx.ErrState) {
		t.Errorf("remove a volume in use: %v", err)
	}
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Mounts[0].ImagePath = junk
	if _, err := gvx.New(t.Context(), c); err == nil {
		t.Error("junk was taken for a volume")
	}
	if err := v.Check(t.Context(), junk); err == nil {
		t.Error("junk was checked and found good")
	}
}

// TestStopBringsVolumesToRest: what is stopped can be cloned.
func TestStopBringsVolumesToRest(t *testing.T) {
	w, v, dir := volumes(t)
	path := filepath.Join(dir, "v")
	c := w.config("echo x > /v/x; trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
	c.Mounts = []gvx.Mount{{Kind: gvx.MountVolume, ImagePath: path, GuestPath: "/v", SizeBytes: 64 << 20}}
	sb := startSandbox(t, c)
	if err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit, err := sb.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
	if err := v.Clone(t.Context(), path, filepath.Join(dir, "clone"), ""); err != nil {
		t.Errorf("clone what was stopped: %v", err)
	}
	// What was killed is whole, but has its journal to replay.
	killed := filepath.Join(dir, "killed")
	c.Mounts[0].ImagePath = killed
	c.Cmd[2] = "echo x > /v/x; sync; echo ready; sleep 1000"
	sb = startSandbox(t, c)
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if have := readVolume(t, killed, "x"); have != "x\n" {
		t.Errorf("after a kill: %q", have)
	}
}

// TestHostDirectory: a directory of the program's, written by both, and read-only.
func TestHostDirectory(t *testing.T) {
	w := setup(t)
	t.Chdir(t.TempDir())
	if err := os.Mkdir("dir", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("dir/in", []byte("from the program\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := w.on(t, gvx.Mount{Kind: gvx.MountBind, ImagePath: "dir"}, "cat /v/in && echo from the guest > /v/out"); out != "from the program\n" {
		t.Errorf("%q", out)
	}
	if data, err := os.ReadFile("dir/out"); err != nil || string(data) != "from the guest\n" {
		t.Errorf("%q, %v", data, err)
	}
	if out := w.on(t, gvx.Mount{Kind: gvx.MountBind, ImagePath: "dir/in", ReadOnly: true}, "cat /v; test ! -w /v || echo writable"); out != "from the program\n" {
		t.Errorf("%q", out)
	}
	c := w.config("true")
	c.Mounts = []gvx.Mount{{Kind: gvx.MountBind, ImagePath: "missing", GuestPath: "/v"}}
	if sb, err := gvx.New(t.Context(), c); !errors.Is(err, gvx.ErrInvalid) {
		t.Errorf("a directory that does not exist: %v, %v", sb, err)
	}
}
