// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/runtime/api"
)

// dir makes a directory on a file system on which overlays can be.
func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("/var/tmp", "gvx-rootfs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// layer writes an EROFS image with one file.
func layer(t *testing.T, d, name, data string) string {
	t.Helper()
	path := filepath.Join(d, name+".erofs")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(name, erofs.Entry{Mode: 0o100644, Size: int64(len(data))}, strings.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Finish(context.Background()); err != nil {
		t.Fatal(err)
	}
	return path
}

// mkdirs makes directories below d and returns their paths.
func mkdirs(t *testing.T, d string, names ...string) []string {
	t.Helper()
	for i, name := range names {
		names[i] = filepath.Join(d, name)
		if err := os.MkdirAll(names[i], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("missing, and CI=true: root, to mount")
		}
		t.Skip("missing: root, to mount")
	}
}

func TestLayersAndVolumeAreOpened(t *testing.T) {
	d := dir(t)
	p := &Plan{
		Layers: []string{layer(t, d, "one", "1"), layer(t, d, "two", "22")},
		Volume: &Volume{Path: filepath.Join(d, "rwlayer.img"), SizeBytes: 64 << 20, Directory: "upper"},
	}
	for _, when := range []string{"first", "again"} {
		r, err := Open(t.Context(), p, Options{})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if len(r.Layers) != 2 || r.Directory != nil || r.UpperDirectory != "upper" || r.ReadOnly {
			t.Errorf("%s: %+v", when, r)
		}
		for i, f := range r.Layers {
			st, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			image, err := erofs.Open(f, st.Size())
			if err != nil || f.Name() != p.Layers[i] || image == nil {
				t.Errorf("%s: layer %d is %s, %v", when, i, f.Name(), err)
			}
		}
		if st, err := r.Upper.Stat(); err != nil || st.Size() != 64<<20 {
			t.Errorf("%s: the volume has size %v, %v", when, st.Size(), err)
		}
		if _, err := Open(t.Context(), p, Options{}); api.KindOf(err) != api.KindState {
			t.Errorf("%s: another open: %v", when, err)
		}
		r.Close()
		dev, err := device.OpenFile(p.Volume.Path, device.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		volume, err := ext4lite.Open(dev, ext4lite.Options{})
		if err != nil {
			t.Fatalf("%s: the volume: %v", when, err)
		}
		if err := volume.Close(); err != nil {
			t.Error(err)
		}
	}
	if found, err := filepath.Glob(filepath.Join(d, "*.part")); err != nil || len(found) > 0 {
		t.Errorf("left: %q, %v", found, err)
	}
}

// TestHalfFormattedVolume is one whose maker died.
func TestHalfFormattedVolume(t *testing.T) {
	d := dir(t)
	v := &Volume{Path: filepath.Join(d, "rwlayer.img"), SizeBytes: 16 << 20, Directory: "upper"}
	if err := os.WriteFile(v.Path+".part", bytes.Repeat([]byte{7}, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), &Plan{Volume: v}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if len(r.Layers) != 1 {
		t.Fatalf("%d layers for an image without any", len(r.Layers))
	}
	st, err := r.Layers[0].Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := erofs.Open(r.Layers[0], st.Size()); err != nil {
		t.Errorf("the empty layer: %v", err)
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	d := dir(t)
	for name, p := range map[string]*Plan{
		"layer":     {Layers: []string{filepath.Join(d, "none")}},
		"directory": {Directory: filepath.Join(d, "none")},
		"volume":    {Layers: []string{layer(t, d, "x", "x")}, Volume: &Volume{Path: filepath.Join(d, "none", "v"), SizeBytes: 16 << 20}},
	} {
		if _, err := Open(t.Context(), p, Options{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDirectory(t *testing.T) {
	d := dir(t)
	r, err := Open(t.Context(), &Plan{Directory: d, ReadOnly: true}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.WriteFile(filepath.Join(d, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(r.Path(), "f")); err != nil || string(data) != "x" || !r.ReadOnly {
		t.Errorf("read %q, %v", data, err)
	}
}

// TestStacks checks overlays of directories and of layers: what is below is seen,
// what is written is in the upper directory, and the host's mounts are as before.
func TestStacks(t *testing.T) {
	needRoot(t)
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"directories", "layers"} {
		d := dir(t)
		made := mkdirs(t, d, "s/1/fs", "s/2/fs", "s/3/fs", "s/3/work", "scratch")
		p := &Plan{Host: &Stack{Lowers: []string{made[1], made[0]}, Upper: made[2], Work: made[3]}}
		for i, name := range []string{"one", "two"} {
			if err := os.WriteFile(filepath.Join(made[i], name), []byte(name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if kind == "layers" {
			p = &Plan{Layers: []string{layer(t, d, "one", "one"), layer(t, d, "two", "two")}, Upper: made[2], Work: made[3]}
		}
		r, err := Open(t.Context(), p, Options{Scratch: made[4], HostOverlay: true})
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		for _, name := range []string{"one", "two"} {
			if data, err := os.ReadFile(filepath.Join(r.Path(), name)); err != nil || string(data) != name {
				t.Errorf("%s: %s is %q, %v", kind, name, data, err)
			}
		}
		if err := os.WriteFile(filepath.Join(r.Path(), "new"), []byte("new"), 0o644); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(r.Path(), "one")); err != nil {
			t.Error(err)
		}
		if data, err := os.ReadFile(filepath.Join(made[2], "new")); err != nil || string(data) != "new" {
			t.Errorf("%s: the upper directory has %q, %v", kind, data, err)
		}
		if st, err := os.Lstat(filepath.Join(made[2], "one")); err != nil || st.Mode()&fs.ModeCharDevice == 0 {
			t.Errorf("%s: the whiteout: %v, %v", kind, st, err)
		}
		r.Close()
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the host's mounts have changed:\n%s\n%s", before, after)
	}
}

func TestViews(t *testing.T) {
	needRoot(t)
	d := dir(t)
	made := mkdirs(t, d, "1", "2", "scratch")
	for _, lowers := range [][]string{made[:1], made[:2]} {
		r, err := Open(t.Context(), &Plan{Host: &Stack{Lowers: lowers}, ReadOnly: true}, Options{Scratch: made[2]})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.Path(), "f"), nil, 0o600); err == nil {
			t.Errorf("a view of %d directories was written", len(lowers))
		}
		r.Close()
	}
}
