// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"bytes"
	gocontext "context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/lock"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
)

// graph is what a kernel would save: the file system, and who uses it.
type graph struct {
	VFS  *vfs.VirtualFilesystem
	Root vfs.VirtualDentry
	FDs  []*vfs.FileDescription
	Map  memmap.Mappable
}

func (g *graph) saved() []savedField {
	return []savedField{{"VFS", &g.VFS}, {"Root", &g.Root}, {"FDs", &g.FDs}, {"Map", &g.Map}}
}

func (*graph) StateTypeName() string                           { return statePrefix + "test.graph" }
func (*graph) StateFields() []string                           { return fieldNames((&graph{}).saved()) }
func (g *graph) StateSave(s state.Sink)                        { saveFields(s, g.saved()) }
func (g *graph) StateLoad(_ gocontext.Context, s state.Source) { loadFields(s, g.saved()) }

func (*mapSpace) StateTypeName() string                     { return statePrefix + "test.mapSpace" }
func (*mapSpace) StateFields() []string                     { return nil }
func (*mapSpace) StateSave(state.Sink)                      {}
func (*mapSpace) StateLoad(gocontext.Context, state.Source) {}

func init() {
	state.Register((*graph)(nil))
	state.Register((*mapSpace)(nil))
}

// save checkpoints w and what else a kernel would reach.
func (w *world) save(fds []*vfs.FileDescription, m memmap.Mappable) []byte {
	w.t.Helper()
	if err := w.vfs.PrepareSave(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	if m != nil {
		if err := m.InvalidateUnsavable(w.ctx); err != nil {
			w.t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	if _, err := state.Save(w.ctx, &buf, &graph{w.vfs, w.root, fds, m}); err != nil {
		w.t.Fatalf("save: %v", err)
	}
	w.vfs.BeforeResume(w.ctx)
	return buf.Bytes()
}

// restore loads a checkpoint into a world that has been given an image.
func restore(t *testing.T, saved []byte, image string) (*world, *graph, error) {
	t.Helper()
	fds := map[checkpoint.ResourceID]int{}
	if image != "" {
		fd, err := unix.Open(image, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds[testID] = fd
	}
	w := newWorld(t)
	w.ctx = context.WithValue(w.ctx, vfs.CtxRestoreFilesystemFDMap, fds)
	var g graph
	if _, err := state.Load(w.ctx, bytes.NewReader(saved), &g); err != nil {
		t.Fatalf("load: %v", err)
	}
	w.vfs = g.VFS
	if err := w.vfs.CompleteRestore(w.ctx, &vfs.CompleteRestoreOptions{}); err != nil {
		return nil, nil, err
	}
	w.use(g.Root.Mount())
	return w, &g, nil
}

func TestSaveAndRestore(t *testing.T) {
	files := append(sampleFiles(), file{path: "etc/fifo", link: "fifo"})
	image := buildImage(t, files...)
	w := newWorld(t)
	mnt, err := w.mountEROFS(image)
	if err != nil {
		t.Fatal(err)
	}
	w.use(mnt)
	tool, hard := w.mustOpen("bin/tool", linux.O_RDONLY), w.mustOpen("etc/hard", linux.O_RDONLY)
	dir := w.mustOpen("usr/bin", linux.O_RDONLY)
	fifo := w.mustOpen("fifo", linux.O_RDWR)
	if _, err := tool.Seek(w.ctx, 4000, linux.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	stop := linuxerr.EINTR
	var first string
	dir.IterDirents(w.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
		if first != "" {
			return stop
		}
		first = d.Name
		return nil
	}))
	if err := hard.LockBSD(w.ctx, 1, lock.WriteLock, false); err != nil {
		t.Fatal(err)
	}
	m := w.mmap(tool)
	page := memmap.MappableRange{Start: 3 * 4096, End: 4 * 4096}
	if _, err := m.translate(page, page); err != nil {
		t.Fatal(err)
	}
	w.mustStat("etc/passwd")
	w.lstat("etc/nothing")

	saved := w.save([]*vfs.FileDescription{tool, hard, dir, fifo}, m.m)
	if m.space.invalidated == 0 {
		t.Error("the guest keeps pages of the host's file over a checkpoint")
	}
	w.mustStat("etc/passwd") // the saved sandbox lives on

	v, g, err := restore(t, saved, image)
	if err != nil {
		t.Fatal(err)
	}
	tool, hard, dir = g.FDs[0], g.FDs[1], g.FDs[2]
	if got, err := readAll(v.ctx, tool); err != nil || got != pattern(3*4096 + 17)[4000:] {
		t.Errorf("reading on after a restore: %d bytes, %v", len(got), err)
	}
	var rest []string
	if err := dir.IterDirents(v.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
		rest = append(rest, d.Name)
		return nil
	})); err != nil || first+strings.Join(rest, "") != "...tool"+"up" {
		t.Errorf("directory was read to %q, goes on with %q, %v", first, rest, err)
	}
	passwd := v.mustOpen("etc/passwd", linux.O_RDONLY)
	v.wantErr("lock what was locked before", passwd.LockBSD(v.ctx, 2, lock.WriteLock, false), linuxerr.ErrWouldBlock)
	if passwd.Dentry().Impl().(*dentry).inode != hard.Dentry().Impl().(*dentry).inode {
		t.Error("names of one file have two inodes after a restore")
	}
	if again := v.mustOpen("bin/tool", linux.O_RDONLY); again.Dentry() != tool.Dentry() {
		t.Error("a name that was held has another dentry after a restore")
	} else {
		again.DecRef(v.ctx)
	}
	v.checkMapping("bin/tool", pattern(3*4096+17))
	passwd.DecRef(v.ctx)
	space := &mapSpace{}
	g.Map.AddMapping(v.ctx, space, m.addrs(), 0, false)
	g.Map.RemoveMapping(v.ctx, space, m.addrs(), 0, false)
	for _, fd := range g.FDs {
		fd.DecRef(v.ctx)
	}
	v.unmount()
}

func TestRestoreNeedsTheSameImage(t *testing.T) {
	w := newWorld(t)
	image := buildImage(t, sampleFiles()...)
	mnt, err := w.mountEROFS(image)
	if err != nil {
		t.Fatal(err)
	}
	w.use(mnt)
	fd := w.mustOpen("etc/passwd", linux.O_RDONLY)
	saved := w.save([]*vfs.FileDescription{fd}, nil)
	fd.DecRef(w.ctx)
	w.unmount()
	for what, c := range map[string]struct{ image, want string }{
		"no descriptor": {"", "no descriptor was donated"},
		"another image": {buildImage(t, file{path: "etc", mode: linux.S_IFDIR | 0o755}), "the image is another one"},
		"no image":      {"/proc/self/exe", "not an EROFS image"},
	} {
		_, _, err := restore(t, saved, c.image)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("restore with %s: %v, want %q", what, err, c.want)
		}
	}
}
