// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// oddVolume is a Volume whose tree and extents are what a test says. All its
// nodes are entries of the root and have their names as identity.
type oddVolume struct {
	file  *HostFile
	bytes []byte
	nodes map[string]*oddNode
}

type oddNode struct {
	v       *oddVolume
	mode    linux.FileMode
	size    int64 // if there are no extents
	extents []Extent
	link    string
	// entries, if it is a directory: a name and a node's.
	entries map[string]string
	pos     []int64 // positions to report, if not 1, 2, 3…
	xattrs  map[string]string
	err     error // what everything fails with
}

func newOddVolume(t *testing.T, size int) *oddVolume {
	t.Helper()
	data := []byte(pattern(size))
	return &oddVolume{file: hostFileOf(t, data), bytes: data, nodes: map[string]*oddNode{"root": {mode: linux.S_IFDIR | 0o755}}}
}

// pieces returns extents of n bytes each, from all over the file.
func (v *oddVolume) pieces(n int64) []Extent {
	var es []Extent
	count := int64(len(v.bytes)) / n
	for i := range count {
		es = append(es, Extent{Off: i * n, Len: n, File: v.file, FileOff: (i * 7 % count) * n})
	}
	return es
}

func (v *oddVolume) data(n *oddNode) string {
	var sb strings.Builder
	for _, e := range n.extents {
		if e.File == nil {
			sb.Write(make([]byte, e.Len))
		} else {
			sb.Write(v.bytes[e.FileOff : e.FileOff+e.Len])
		}
	}
	return sb.String()
}

func (v *oddVolume) mount(t *testing.T) *world {
	t.Helper()
	root := v.nodes["root"]
	if root.entries == nil {
		root.entries = map[string]string{}
	}
	for name, n := range v.nodes {
		n.v = v
		root.entries[name] = name
	}
	delete(root.entries, "root")
	w := newWorld(t)
	typ := &fsType{format: EROFSName}
	fs, err := newFilesystem(w.ctx, w.vfs, typ, v)
	if err != nil {
		t.Fatal(err)
	}
	mnt := w.vfs.NewDisconnectedMount(&fs.vfsfs, &fs.root.vfsd, &vfs.MountOptions{ReadOnly: true})
	fs.vfsfs.DecRef(w.ctx)
	return w.use(mnt)
}

func (v *oddVolume) names() []string { return slices.Sorted(maps.Keys(v.nodes)) }

func (v *oddVolume) Traits() Traits {
	return Traits{Magic: erofsMagic, BlockSizeBytes: 4096, NameMaxBytes: 255, Identity: "odd"}
}
func (v *oddVolume) Files() []*HostFile { return []*HostFile{v.file} }
func (v *oddVolume) Close() error       { v.file.close(); return nil }
func (v *oddVolume) Root() uint64       { return uint64(slices.Index(v.names(), "root")) }

func (v *oddVolume) Node(id uint64) (Node, error) {
	names := v.names()
	if id >= uint64(len(names)) {
		return nil, linuxerr.EUCLEAN
	}
	return v.nodes[names[id]], nil
}

func (n *oddNode) Attr() Attr {
	size := n.size
	if len(n.extents) > 0 {
		size = n.extents[len(n.extents)-1].end()
	}
	return Attr{Mode: n.mode, Nlink: 1, SizeBytes: size}
}

func (n *oddNode) Lookup(name string) (uint64, error) {
	if target, ok := n.entries[name]; ok {
		return uint64(slices.Index(n.v.names(), target)), n.err
	}
	return 0, linuxerr.ENOENT
}

func (n *oddNode) ReadDir(pos int64, fn func(Dirent) bool) (int64, error) {
	names := slices.Sorted(maps.Keys(n.entries))
	for i := pos; i < int64(len(names)); i++ {
		next := i + 1
		if n.pos != nil {
			next = n.pos[i]
		}
		if !fn(Dirent{Name: names[i], ID: 1, Type: linux.DT_REG, Next: next}) {
			return i, nil
		}
	}
	return int64(len(names)), n.err
}

func (n *oddNode) Readlink() (string, error) { return n.link, n.err }

func (n *oddNode) ListXattr() ([]string, error) { return slices.Sorted(maps.Keys(n.xattrs)), n.err }

func (n *oddNode) Xattr(name string) ([]byte, error) {
	if v, ok := n.xattrs[name]; ok {
		return []byte(v), nil
	}
	return nil, linuxerr.ENODATA
}

func (n *oddNode) Extent(off int64) (Extent, error) {
	for _, e := range n.extents {
		if off >= e.Off && off < e.end() {
			return e, n.err
		}
	}
	return Extent{Off: 1, Len: -5}, n.err
}

func TestDirectoryCycles(t *testing.T) {
	v := newOddVolume(t, 4096)
	dir := func(entries map[string]string) *oddNode {
		return &oddNode{mode: linux.S_IFDIR | 0o755, entries: entries}
	}
	v.nodes["a"] = dir(map[string]string{"self": "a", "up": "root", "b": "b"})
	v.nodes["b"] = dir(map[string]string{"a": "a", "c": "c"})
	v.nodes["c"] = dir(nil)
	w := v.mount(t)
	defer w.unmount()
	for _, path := range []string{"a/self", "a/up", "a/b/a", "a/b/a/b/a/b"} {
		_, err := w.lstat(path)
		w.wantErr(path, err, linuxerr.ELOOP)
	}
	// Another name of a directory is odd, but no cycle.
	w.mustStat("b/a/../c")
	w.mustStat("c")
}

func TestLyingVolume(t *testing.T) {
	v := newOddVolume(t, 4096)
	reg := linux.FileMode(linux.S_IFREG | 0o644)
	v.nodes["no extents"] = &oddNode{mode: reg, size: 1 << 62}
	v.nodes["outside"] = &oddNode{mode: reg, extents: []Extent{{Len: 8192, File: v.file}}}
	v.nodes["negative"] = &oddNode{mode: reg, extents: []Extent{{Len: 4096, File: v.file, FileOff: -4096}}}
	v.nodes["overflow"] = &oddNode{mode: reg, extents: []Extent{{Len: 1<<63 - 1, File: v.file, FileOff: 1<<63 - 1}}}
	v.nodes["negative size"] = &oddNode{mode: reg, size: -1}
	v.nodes["no type"] = &oddNode{mode: 0o644}
	v.nodes["huge directory"] = &oddNode{mode: linux.S_IFDIR | 0o755, size: 1 << 40}
	v.nodes["long link"] = &oddNode{mode: linux.S_IFLNK | 0o777, link: strings.Repeat("x", 5000)}
	v.nodes["empty link"] = &oddNode{mode: linux.S_IFLNK | 0o777}
	v.nodes["broken acl"] = &oddNode{mode: reg, xattrs: map[string]string{linux.XATTR_NAME_POSIX_ACL_ACCESS: "rubbish"}}
	v.nodes["strange error"] = &oddNode{mode: reg, size: 10, err: errors.New("strange")}
	v.nodes["backwards"] = &oddNode{mode: linux.S_IFDIR | 0o755, entries: map[string]string{"x": "x", "y": "y"}, pos: []int64{1, 0}}
	w := v.mount(t)
	defer w.unmount()
	read := func(path string) error { _, err := w.readFile(path); return err }
	stat := func(path string) error {
		_, err := w.vfs.StatAt(w.ctx, w.creds, w.pop(path, true), &vfs.StatOptions{})
		return err
	}
	list := func(path string) error { _, err := w.list(path); return err }
	for what, c := range map[string]struct {
		got  error
		want *gverrors.Error
	}{
		"an extent that does not cover": {read("no extents"), linuxerr.EUCLEAN},
		"an extent behind the volume":   {read("outside"), linuxerr.EUCLEAN},
		"an extent before the volume":   {read("negative"), linuxerr.EUCLEAN},
		"an extent that overflows":      {read("overflow"), linuxerr.EUCLEAN},
		"a negative size":               {stat("negative size"), linuxerr.EUCLEAN},
		"no file type":                  {stat("no type"), linuxerr.EUCLEAN},
		"a huge directory":              {stat("huge directory"), linuxerr.EUCLEAN},
		"a link longer than a path":     {stat("long link"), linuxerr.EUCLEAN},
		"an empty link":                 {stat("empty link"), linuxerr.EUCLEAN},
		"an ACL that is none":           {read("broken acl"), linuxerr.EUCLEAN},
		"an error that is no errno":     {read("strange error"), linuxerr.EIO},
		"a directory that goes back":    {list("backwards"), linuxerr.EUCLEAN},
	} {
		w.wantErr(what, c.got, c.want)
	}
}

func TestWrongDescriptors(t *testing.T) {
	w := newWorld(t)
	empty := filepath.Join(t.TempDir(), "empty")
	text := filepath.Join(t.TempDir(), "text")
	os.WriteFile(empty, nil, 0o600)
	os.WriteFile(text, bytes.Repeat([]byte("text"), 4096), 0o600)
	for name, want := range map[string]*gverrors.Error{empty: linuxerr.EINVAL, text: linuxerr.EINVAL, "/dev/null": linuxerr.EINVAL, t.TempDir(): linuxerr.EINVAL} {
		_, err := w.mountEROFS(name)
		w.wantErr("mount "+name, errnoOf(err), want)
	}
	_, err := w.vfs.MountDisconnected(w.ctx, w.creds, "x", EROFSName, &vfs.MountOptions{})
	w.wantErr("mount as a guest would", err, linuxerr.ENODEV)
	_, err = w.vfs.MountDisconnected(w.ctx, w.creds, "x", EROFSName, &vfs.MountOptions{
		GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true, InternalData: 3},
	})
	w.wantErr("mount with other options", err, linuxerr.EINVAL)
}

// TestTruncatedBehindOurBack cuts the image file short while it is mounted.
func TestTruncatedBehindOurBack(t *testing.T) {
	w := newWorld(t)
	image := buildImage(t, file{path: "big", mode: 0o644, data: pattern(1 << 20)})
	mnt, err := w.mountEROFS(image)
	if err != nil {
		t.Fatal(err)
	}
	w.use(mnt)
	defer w.unmount()
	fd := w.mustOpen("big", linux.O_RDONLY)
	defer fd.DecRef(w.ctx)
	if err := os.Truncate(image, 4096); err != nil {
		t.Fatal(err)
	}
	_, err = w.readFile("big")
	w.wantErr("read", err, linuxerr.EIO)
	_, err = w.lstat("other")
	w.wantErr("look up", err, linuxerr.EIO)
}

// TestCorruptImages walks images with random damage: errors are fine, panics
// and endless loops are not.
func TestCorruptImages(t *testing.T) {
	t.Run("of our builder", func(t *testing.T) {
		files := sampleFiles()
		for i := range 300 {
			files = append(files, file{path: fmt.Sprintf("many/a name of a file, number %d", i), link: "empty"})
		}
		files = append(files, file{path: "attr", mode: 0o644, xattrs: map[string]string{"user.a": "b", xattrOpaque: "y"}})
		walkDamaged(t, buildImage(t, files...))
	})
	t.Run("of mkfs.erofs", func(t *testing.T) {
		dir := t.TempDir()
		for i := range 300 {
			name := filepath.Join(dir, fmt.Sprintf("a name of a file, number %d", i))
			if err := os.WriteFile(name, []byte(pattern(i*20)), 0o644); err != nil {
				t.Fatal(err)
			}
			unix.Setxattr(name, "user.a", []byte(pattern(i)), 0) // where the host has them
		}
		if err := os.Symlink("target", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		walkDamaged(t, mkfs(t, dir))
	})
}

// walkDamaged damages copies of an image, mounts them, and walks them.
func walkDamaged(t *testing.T, image string) {
	t.Helper()
	good, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	rounds := 100
	if testing.Short() {
		rounds = 15
	}
	mounted := 0
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		bad := slices.Clone(good)
		for range 1 + r.IntN(30) {
			at := r.IntN(len(bad))
			switch tail := min(len(bad), 24<<10); r.IntN(4) {
			case 0, 1: // where our builder has its metadata
				at = len(bad) - 1 - r.IntN(tail)
			case 2: // and where mkfs.erofs has
				at = 1152 + r.IntN(tail-1152)
			}
			bad[at] = byte(r.Uint32())
			if r.IntN(8) == 0 {
				copy(bad[at:], "\xff\xff\xff\xff\xff\xff\xff\xff")
			}
		}
		if err := os.WriteFile(image, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		w := newWorld(t)
		mnt, err := w.mountEROFS(image)
		if err != nil {
			w.mf.Destroy()
			continue
		}
		mounted++
		w.use(mnt)
		left := 5000
		w.walkAll("/", &left)
		w.unmount()
		w.mf.Destroy()
	}
	if mounted < rounds/3 {
		t.Errorf("only %d of %d damaged images could be mounted: the damage is too coarse to test anything", mounted, rounds)
	}
}

// walkAll does to every file below dir what a guest could.
func (w *world) walkAll(dir string, left *int) {
	ds, _ := w.list(dir)
	for _, d := range ds {
		if *left--; *left < 0 {
			return
		}
		if d.Name == "." || d.Name == ".." {
			continue
		}
		path := dir + "/" + d.Name
		if len(path) > 4000 {
			continue
		}
		st, err := w.lstat(path)
		if err != nil {
			continue
		}
		names, _ := w.vfs.ListXattrAt(w.ctx, w.creds, w.pop(path, false), 0)
		for _, name := range names {
			w.vfs.GetXattrAt(w.ctx, w.creds, w.pop(path, false), &vfs.GetXattrOptions{Name: name})
		}
		switch st.Mode & linux.S_IFMT {
		case linux.S_IFDIR:
			w.walkAll(path, left)
		case linux.S_IFLNK:
			w.vfs.StatAt(w.ctx, w.creds, w.pop(path, true), &vfs.StatOptions{})
		case linux.S_IFREG:
			w.readSome(path, int64(st.Size))
		}
	}
}

func (w *world) readSome(path string, size int64) {
	fd, err := w.open(path, linux.O_RDONLY)
	if err != nil {
		return
	}
	defer fd.DecRef(w.ctx)
	buf := make([]byte, 70<<10)
	for _, off := range []int64{0, size / 2, max(0, size-1), size} {
		fd.PRead(w.ctx, usermem.BytesIOSequence(buf), off, vfs.ReadOptions{})
	}
	fd.Seek(w.ctx, 0, linux.SEEK_HOLE)
	m := w.mmap(fd)
	for _, off := range []int64{0, pageDown(size / 2), pageDown(max(0, size-1))} {
		one := memmap.MappableRange{Start: uint64(off), End: uint64(off) + 4*hostarch.PageSize}
		m.translate(one, memmap.MappableRange{Start: uint64(off), End: uint64(off) + 64*hostarch.PageSize})
	}
	m.unmap()
}
