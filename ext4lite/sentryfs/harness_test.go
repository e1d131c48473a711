// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	gocontext "context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/cpuid"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/memutil"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/uniqueid"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"z.gfire.dev/gvx/oci/erofs"
)

// The tests run the real vfs, overlay, tmpfs and memory file, without a kernel.

func TestMain(m *testing.M) {
	cpuid.Initialize()
	if err := usage.Init(); err != nil {
		fmt.Fprintln(os.Stderr, "memory accounting:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// world is a virtual file system with one file system mounted.
type world struct {
	t     testing.TB
	ctx   context.Context
	vfs   *vfs.VirtualFilesystem
	creds *auth.Credentials
	mf    *pgalloc.MemoryFile
	mnt   *vfs.Mount
	root  vfs.VirtualDentry
}

var testID = checkpoint.ResourceID{ContainerName: "c", Path: "/layer"}

func newWorld(t testing.TB) *world {
	t.Helper()
	memfd, err := memutil.CreateMemFD("sentryfs-test", 0)
	if err != nil {
		t.Fatal(err)
	}
	mf, err := pgalloc.NewMemoryFile(os.NewFile(uintptr(memfd), "memory"), pgalloc.MemoryFileOpts{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, vfs: &vfs.VirtualFilesystem{}, mf: mf}
	w.creds = auth.NewRootCredentials(auth.NewRootUserNamespace())
	w.ctx = w.context(w.creds)
	if err := w.vfs.Init(w.ctx); err != nil {
		t.Fatal(err)
	}
	Register(w.vfs)
	w.vfs.MustRegisterFilesystemType("overlay", overlay.FilesystemType{}, &vfs.RegisterFilesystemTypeOptions{})
	w.vfs.MustRegisterFilesystemType("tmpfs", tmpfs.FilesystemType{}, &vfs.RegisterFilesystemTypeOptions{})
	return w
}

var nextID atomic.Uint64

// context makes a context for one goroutine.
func (w *world) context(creds *auth.Credentials) context.Context {
	return context.WithValues(context.Background(), map[any]any{
		pgalloc.CtxMemoryFile: w.mf,
		auth.CtxCredentials:   creds,
		limits.CtxLimits:      limits.NewLimitSet(),

		uniqueid.CtxGlobalUniqueID: nextID.Add(1),
		uniqueid.CtxInotifyCookie:  uint32(nextID.Add(1)),
		ktime.CtxRealtimeClock:     &ktime.SyntheticClock{},
	})
}

// as returns w as another user sees it, without capabilities.
func (w *world) as(uid, gid uint32) *world {
	v := *w
	v.creds = auth.NewUserCredentials(auth.KUID(uid), auth.KGID(gid), nil, &auth.TaskCapabilities{}, w.creds.UserNamespace)
	v.ctx = w.context(v.creds)
	return &v
}

func (w *world) mountEROFS(image string) (*vfs.Mount, error) {
	fd, err := unix.Open(image, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.vfs.MountDisconnected(w.ctx, w.creds, "test", EROFSName, &vfs.MountOptions{
		ReadOnly: true,
		GetFilesystemOptions: vfs.GetFilesystemOptions{
			InternalMount: true,
			InternalData:  EROFSOptions{FD: fd, ID: testID},
		},
	})
}

func (w *world) use(mnt *vfs.Mount) *world {
	w.mnt = mnt
	w.root = vfs.MakeVirtualDentry(mnt, mnt.Root())
	return w
}

// mountImage builds an image and mounts it.
func mountImage(t testing.TB, files ...file) *world {
	t.Helper()
	w := newWorld(t)
	mnt, err := w.mountEROFS(buildImage(t, files...))
	if err != nil {
		t.Fatal(err)
	}
	return w.use(mnt)
}

// unmount drops the mount and checks that everything was given back.
func (w *world) unmount() {
	w.t.Helper()
	fs := w.fs()
	w.mnt.DecRef(w.ctx)
	if n := len(fs.inodes.m); n != 0 {
		w.t.Errorf("%d inodes are left after the file system was released", n)
	}
	if f := fs.vol.Files()[0]; f.data != nil || f.fd != -1 {
		w.t.Errorf("the volume file is still mapped or open after release")
	}
	if n := fs.copies.bytes.Load(); n != 0 || fs.copies.zeros.Length() != 0 {
		w.t.Errorf("%d copied bytes, zero run %v left after release", n, fs.copies.zeros)
	}
}

func (w *world) fs() *filesystem { return w.mnt.Filesystem().Impl().(*filesystem) }

func (w *world) pop(path string, follow bool) *vfs.PathOperation {
	return &vfs.PathOperation{Root: w.root, Start: w.root, Path: fspath.Parse(path), FollowFinalSymlink: follow}
}

func (w *world) lstat(path string) (linux.Statx, error) {
	return w.vfs.StatAt(w.ctx, w.creds, w.pop(path, false), &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS})
}

func (w *world) mustStat(path string) linux.Statx {
	w.t.Helper()
	st, err := w.vfs.StatAt(w.ctx, w.creds, w.pop(path, true), &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS})
	if err != nil {
		w.t.Fatalf("stat %s: %v", path, err)
	}
	return st
}

func (w *world) open(path string, flags uint32) (*vfs.FileDescription, error) {
	return w.vfs.OpenAt(w.ctx, w.creds, w.pop(path, true), &vfs.OpenOptions{Flags: flags})
}

func (w *world) mustOpen(path string, flags uint32) *vfs.FileDescription {
	w.t.Helper()
	fd, err := w.open(path, flags)
	if err != nil {
		w.t.Fatalf("open %s: %v", path, err)
	}
	return fd
}

func (w *world) readFile(path string) (string, error) {
	fd, err := w.open(path, linux.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer fd.DecRef(w.ctx)
	return readAll(w.ctx, fd)
}

func readAll(ctx context.Context, fd *vfs.FileDescription) (string, error) {
	var sb strings.Builder
	st, err := fd.Stat(ctx, vfs.StatOptions{Mask: linux.STATX_SIZE})
	if err != nil {
		return "", err
	}
	buf := make([]byte, min(st.Size+1, 100<<10))
	for {
		n, err := fd.Read(ctx, usermem.BytesIOSequence(buf), vfs.ReadOptions{})
		sb.Write(buf[:n])
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			return sb.String(), nil
		}
		if err != nil {
			return sb.String(), err
		}
	}
}

func (w *world) list(path string) ([]vfs.Dirent, error) {
	fd, err := w.open(path, linux.O_RDONLY|linux.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer fd.DecRef(w.ctx)
	var ds []vfs.Dirent
	err = fd.IterDirents(w.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
		ds = append(ds, d)
		return nil
	}))
	return ds, err
}

// wantErr checks for an errno.
func (w *world) wantErr(what string, err error, want *gverrors.Error) {
	w.t.Helper()
	if !linuxerr.Equals(want, err) {
		w.t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// file is one entry of a test image.
type file struct {
	path   string
	mode   uint32 // regular if it has no type
	uid    uint32
	data   string
	size   int64 // if more than data: zeros follow
	target string
	link   string // another path: a hard link
	major  uint32
	minor  uint32
	xattrs map[string]string
}

func buildImage(t testing.TB, files ...file) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{UUID: [16]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range files {
		if e.link != "" {
			err = b.Link(e.path, e.link)
		} else {
			err = b.Add(e.path, e.entry(), io.LimitReader(io.MultiReader(strings.NewReader(e.data), zeros{}), e.bytes()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Finish(gocontext.Background()); err != nil {
		t.Fatal(err)
	}
	return name
}

func (e file) bytes() int64 { return max(e.size, int64(len(e.data))) }

func (e file) entry() erofs.Entry {
	mode := e.mode
	if mode&linux.S_IFMT == 0 {
		mode |= linux.S_IFREG
	}
	entry := erofs.Entry{
		Mode: mode, UID: e.uid, GID: e.uid, Mtime: time.Unix(1_700_000_000, 5),
		Linkname: e.target, Major: e.major, Minor: e.minor, Xattrs: e.xattrs,
	}
	if mode&linux.S_IFMT == linux.S_IFREG {
		entry.Size = e.bytes()
	}
	return entry
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
