// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// upperOf is the directory upper of w as the upper layer of an overlay sees it, over
// the directories lowers, topmost first. The caller ends it by release.
func upperOf(w *world, upper string, lowers ...string) (u *world, below *Lowers, release func()) {
	w.t.Helper()
	private := func(path string) vfs.VirtualDentry {
		dir, err := w.vfs.GetDentryAt(w.ctx, w.creds, w.pop(path, true), &vfs.GetDentryOptions{})
		w.must(err)
		defer dir.DecRef(w.ctx)
		mnt := w.vfs.NewDisconnectedMount(w.mnt.Filesystem(), dir.Dentry(), &vfs.MountOptions{})
		return vfs.MakeVirtualDentry(mnt, mnt.Root())
	}
	below = &Lowers{VFS: w.vfs, Creds: w.creds}
	for _, path := range lowers {
		below.Roots = append(below.Roots, private(path))
	}
	inside := *w
	inside.root = private(upper)
	MarkUpper(inside.root.Mount(), below)
	return &inside, below, func() {
		for _, vd := range append(below.Roots, inside.root) {
			vd.Mount().DecRef(w.ctx)
		}
	}
}

// whiteout makes a whiteout as an overlay does: of a name in a directory.
func (w *world) whiteout(dir, name string) error {
	vd, err := w.vfs.GetDentryAt(w.ctx, w.creds, w.pop(dir, true), &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer vd.DecRef(w.ctx)
	return w.vfs.MknodAt(w.ctx, w.creds, &vfs.PathOperation{Root: vd, Start: vd, Path: fspath.Parse(name)}, &vfs.MknodOptions{Mode: linux.S_IFCHR})
}

// TestAWhiteoutHidesSomething: an upper layer has whiteouts for names that lower
// layers have and that no whiteout among them hides, and for no others.
func TestAWhiteoutHidesSomething(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	for _, dir := range []string{"/u", "/u/d", "/l1", "/l1/d", "/l2", "/l2/d"} {
		w.must(w.mkdir(dir))
	}
	w.writeFile("/l1/d/top", "x")
	w.writeFile("/l2/d/bottom", "x")
	w.writeFile("/l2/d/gone", "x")
	w.writeFile("/l2/file", "no directory")
	w.must(w.whiteout("/l1/d", "gone"))
	u, _, release := upperOf(w, "/u", "/l1", "/l2")
	for _, name := range []string{"top", "bottom", "gone", "new"} {
		w.writeFile("/u/d/"+name, "x")
		w.must(u.rename("/d/"+name, "/d/renamed", 0))
		w.must(u.whiteout("/d", name))
		w.must(w.unlink("/u/d/renamed"))
	}
	if got, want := w.names("/u/d"), []string{"bottom", "top"}; !slices.Equal(got, want) {
		t.Errorf("whiteouts of %q, want those of %q", got, want)
	}
	// A directory where a layer has a file.
	w.must(w.mkdir("/u/file"))
	w.writeFile("/u/file/a", "x")
	w.must(u.rename("/file/a", "/file/b", 0))
	if got, want := w.names("/u/file"), []string{"b"}; !slices.Equal(got, want) {
		t.Errorf("%q in a directory over a file, want %q", got, want)
	}
	// A whiteout over something else is not made, nor is one by an exchange.
	w.must(u.whiteout("/file", "b"))
	w.writeFile("/u/d/a", "x")
	w.must(u.rename("/d/a", "/file/b", linux.RENAME_EXCHANGE))
	if got, want := w.names("/u/d"), []string{"a", "bottom", "top"}; !slices.Equal(got, want) {
		t.Errorf("%q after an exchange, want %q", got, want)
	}
	release()
	w.finish(path)
}

// overlayOn mounts gVisor's own overlay over a volume: the directory /u of w on top of
// /l. The caller ends it by release.
func overlayOn(w *world) (o *world, release func()) {
	w.t.Helper()
	w.enterMountNamespace()
	u, below, releaseLayers := upperOf(w, "/u", "/l")
	mnt, err := w.vfs.MountDisconnected(w.ctx, w.creds, "overlay", overlay.Name, &vfs.MountOptions{
		GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true, InternalData: overlay.FilesystemOptions{
			UpperRoot: u.root, LowerRoots: below.Roots,
		}},
	})
	w.must(err)
	inside := *w
	inside.root = vfs.MakeVirtualDentry(mnt, mnt.Root())
	return &inside, func() {
		mnt.DecRef(w.ctx)
		releaseLayers()
	}
}

// wantNames compares what directories have.
func (w *world) wantNames(want map[string][]string) {
	w.t.Helper()
	for dir, names := range want {
		if got := w.names(dir); !slices.Equal(got, names) {
			w.t.Errorf("%s has %q, want %q", dir, got, names)
		}
	}
}

// TestAnOverlayLeavesNothingOfNewNames: files that are new, renamed and removed leave
// nothing behind, and those of the layer below stay hidden.
func TestAnOverlayLeavesNothingOfNewNames(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	for _, dir := range []string{"/u", "/l", "/l/bin", "/l/gone"} {
		w.must(w.mkdir(dir))
	}
	w.writeFile("/l/gone/a", "below")
	w.writeFile("/l/bin/old", "below")
	w.writeFile("/l/bin/other", "below")
	o, release := overlayOn(w)
	// What package managers do.
	o.writeFile("/bin/tool.new", "x")
	w.must(o.rename("/bin/tool.new", "/bin/tool", 0))
	o.writeFile("/bin/old.new", "above")
	w.must(o.rename("/bin/old.new", "/bin/old", 0))
	w.must(o.mkdir("/tmp"))
	o.writeFile("/tmp/a", "x")
	w.must(o.rename("/tmp", "/tmp2", 0))
	w.must(o.rename("/bin/other", "/bin/another", 0))
	w.must(o.rename("/bin/another", "/bin/third", 0))
	w.must(o.unlink("/gone/a"))
	w.must(o.rmdir("/gone"))
	w.must(o.mkdir("/new"))
	w.must(o.rename("/new", "/gone", 0))
	o.wantNames(map[string][]string{"/": {"bin", "gone", "tmp2"}, "/bin": {"old", "third", "tool"}, "/tmp2": {"a"}, "/gone": nil})
	w.wantNames(map[string][]string{"/u": {"bin", "gone", "tmp2"}, "/u/bin": {"old", "other", "third", "tool"}})
	for dir, want := range map[string]bool{"/u/tmp2": false, "/u/gone": true} {
		_, err := w.vfs.GetXattrAt(w.ctx, w.creds, w.pop(dir, true), &vfs.GetXattrOptions{Name: xattrOpaque})
		if (err == nil) != want {
			t.Errorf("%s is marked opaque: %v, want %t", dir, err, want)
		}
	}
	if st, err := w.lstat("/u/bin/other"); err != nil || st.Mode != linux.S_IFCHR {
		t.Errorf("where a file of the lower layer was: mode %#o, %v", st.Mode, err)
	}
	release()
	w.finish(path)
}

// TestAHeldDirectoryThatMovesHidesWhatItHad: an overlay looks for what a merged
// directory has below its old place, also once it was renamed, as long as somebody
// holds it.
func TestAHeldDirectoryThatMovesHidesWhatItHad(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	for _, dir := range []string{"/u", "/l", "/l/d", "/l/d/sub", "/l/a", "/l/b"} {
		w.must(w.mkdir(dir))
	}
	for _, name := range []string{"d/x", "d/y", "d/sub/z", "a/in-a", "b/in-b"} {
		w.writeFile("/l/"+name, "below")
	}
	o, release := overlayOn(w)
	var held []*vfs.FileDescription
	for _, dir := range []string{"/d/sub", "/a", "/b"} {
		held = append(held, o.mustOpen(dir, linux.O_RDONLY))
	}
	w.must(o.rename("/d", "/e", 0))
	w.must(o.unlink("/e/x"))
	w.must(o.rename("/e/y", "/e/y2", 0))
	w.must(o.rename("/e/sub/z", "/e/sub/z2", 0))
	w.must(o.rename("/a", "/b", linux.RENAME_EXCHANGE))
	w.must(o.unlink("/a/in-b"))
	w.must(o.unlink("/b/in-a"))
	want := map[string][]string{"/": {"a", "b", "e"}, "/e": {"sub", "y2"}, "/e/sub": {"z2"}, "/a": nil, "/b": nil}
	o.wantNames(want)
	for _, name := range []string{"/e/x", "/e/y", "/e/sub/z", "/a/in-b", "/b/in-a"} {
		_, err := o.lstat(name)
		w.wantErr("stat of "+name, err, linuxerr.ENOENT)
	}
	for _, fd := range held {
		fd.DecRef(w.ctx)
	}
	o.wantNames(want)
	w.must(o.rmdir("/a"))
	release()
	w.finish(path)
}

// TestARenameBetweenTwoNamesOfAFileLeavesBoth, as POSIX has it, and does not end the
// sandbox: gVisor's overlay asks for a whiteout afterwards, and panics if there is none.
func TestARenameBetweenTwoNamesOfAFileLeavesBoth(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	for _, dir := range []string{"/u", "/l"} {
		w.must(w.mkdir(dir))
	}
	w.writeFile("/l/c", "below")
	o, release := overlayOn(w)
	o.writeFile("/a", "x")
	for _, pair := range [][2]string{{"/a", "/b"}, {"/c", "/d"}} {
		w.must(o.vfs.LinkAt(o.ctx, o.creds, o.pop(pair[0], false), o.pop(pair[1], false)))
		w.must(o.rename(pair[0], pair[1], 0))
		w.must(o.rename(pair[1], pair[0], 0))
	}
	o.wantNames(map[string][]string{"/": {"a", "b", "c", "d"}})
	w.must(o.unlink("/a"))
	w.must(o.unlink("/c"))
	o.wantNames(map[string][]string{"/": {"b", "d"}})
	release()
	w.finish(path)
}
