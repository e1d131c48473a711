// SPDX-License-Identifier: Apache-2.0

// The kernel as the judge: what it sees in a mounted image is what we must see,
// for images we write and for images that mkfs.erofs writes.

package erofs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// mount mounts an image on a loop device until the test ends.
func mount(t *testing.T, image string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount images")
	}
	dir := t.TempDir()
	out, err := exec.Command("mount", "-t", "erofs", "-o", "ro,loop", image, dir).CombinedOutput()
	if err != nil {
		kernel, _ := os.ReadFile("/proc/filesystems")
		need(t, bytes.Contains(kernel, []byte("erofs")), "a kernel with EROFS")
		t.Fatalf("the kernel refuses the image: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// mountedTree reads a mounted tree the way imageTree reads an image.
func mountedTree(t *testing.T, root string) map[string]file {
	t.Helper()
	tree := make(map[string]file)
	var visit func(p string)
	visit = func(p string) {
		full := root + p
		var st unix.Stat_t
		if err := unix.Lstat(full, &st); err != nil {
			t.Fatal(err)
		}
		f := file{Ino: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint32(st.Nlink), Size: st.Size, Mtime: st.Mtim.Nano(), Xattrs: fmt.Sprintf("%q", mountedXattrs(t, full))}
		var names []string
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR, unix.S_IFBLK:
			f.Major, f.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
		case unix.S_IFREG:
			r, err := os.Open(full)
			if err != nil {
				t.Fatal(err)
			}
			h := sha256.New()
			if _, err := io.Copy(h, r); err != nil {
				t.Fatal(err)
			}
			r.Close()
			h.Sum(f.Content[:0])
		case unix.S_IFLNK:
			f.Link, _ = os.Readlink(full)
		case unix.S_IFDIR:
			names, f.Names = rawNames(t, full)
		}
		tree[p] = f
		for _, name := range names {
			if name != "." && name != ".." {
				visit(p + "/" + name)
			}
		}
	}
	visit("")
	return tree
}

// rawNames reads a directory with getdents64, whose order os.ReadDir loses.
func rawNames(t *testing.T, dir string) (names []string, list string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var typed []string
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return names, strings.Join(typed, "/")
		}
		for b := buf[:n]; len(b) > 0; {
			size := le.Uint16(b[16:])
			name := b[19:size]
			name = name[:bytes.IndexByte(name, 0)]
			names = append(names, string(name))
			typed = append(typed, fmt.Sprintf("%s:%d", name, b[18]))
			b = b[size:]
		}
	}
}

func mountedXattrs(t *testing.T, path string) map[string]string {
	t.Helper()
	buf := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, buf)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(path, err)
	}
	values := make(map[string]string)
	for _, name := range strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			t.Fatal(path, name, err)
		}
		values[name] = string(value[:n])
	}
	return values
}

// compareWithKernel mounts an image and compares everything in it.
func compareWithKernel(t *testing.T, image string) {
	t.Helper()
	im := openFile(t, image)
	ours, err := imageTree(im)
	if err != nil {
		t.Fatal(err)
	}
	theirs := mountedTree(t, mount(t, image))
	for p, want := range theirs {
		if got, ok := ours[p]; !ok {
			t.Errorf("%q: only the kernel sees it", p)
		} else if got != want {
			t.Errorf("%.100q:\n  ours   %.600s\n  kernel %.600s", p, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
		}
	}
	for p := range ours {
		if _, ok := theirs[p]; !ok {
			t.Errorf("%q: only we see it", p)
		}
	}
}

func TestKernelReadsWhatWeWrite(t *testing.T) {
	image, _ := build(t, BuilderOptions{}, func(b *Builder) { fillRich(t, b) })
	compareWithKernel(t, image)

	// The holes are holes for the kernel too.
	f, err := os.Open(mount(t, image) + "/sparse/middle")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if off, err := f.Seek(0, unix.SEEK_DATA); err != nil || off != 1<<20 {
		t.Errorf("first data at %d, %v; want %d", off, err, 1<<20)
	}
}

// TestKernelAgreesOn48Bit turns on wide addresses in one of our images, which
// mkfs.erofs only does for images beyond 16 TiB.
func TestKernelAgreesOn48Bit(t *testing.T) {
	image, _ := build(t, BuilderOptions{}, func(b *Builder) { fillRich(t, b) })
	raw, err := os.ReadFile(image)
	must(t, err)
	s := raw[superOffset:blockSize]
	le.PutUint32(s[sbFeatureIncompat:], incompatChunked|incompat48Bit)
	le.PutUint64(s[sbRootNID64:], uint64(le.Uint16(s[sbRootNID16:])))
	le.PutUint16(s[sbRootNID16:], 0)
	le.PutUint32(s[sbChecksum:], 0)
	le.PutUint32(s[sbChecksum:], superChecksum(s))
	must(t, os.WriteFile(image, raw, 0o600))
	compareWithKernel(t, image)
}

func TestFsckAcceptsWhatWeWrite(t *testing.T) {
	needTool(t, "fsck.erofs")
	image, _ := build(t, BuilderOptions{}, func(b *Builder) { fillRich(t, b) })
	run(t, "fsck.erofs", image)
	run(t, "fsck.erofs", "--extract", image) // reads all data, writes nothing
	small, _ := build(t, BuilderOptions{}, func(b *Builder) {})
	run(t, "fsck.erofs", small)
	compareWithKernel(t, small)
}

// sourceTree makes the directory that mkfs.erofs gets.
func sourceTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{0, 1, 100, 511, 512, 513, 4000, 4095, 4096, 4097, 10000, 65536, 300001, 1<<20 + 5} {
		write(fmt.Sprintf("sizes/%d", n), pattern(n, byte(n)))
	}
	sparse := make([]byte, 2<<20+77)
	copy(sparse[1<<20:], pattern(5000, 1))
	write("sparse", sparse)
	write("zeros", make([]byte, 1<<20))
	for i := range 700 {
		write(fmt.Sprintf("many/%d-%s", i, strings.Repeat("x", i%120)), nil)
	}
	write("many/!", nil)
	for i := range 5 {
		name := fmt.Sprintf("x/%d", i)
		write(name, []byte("attributes"))
		for j := range 4 {
			must(t, unix.Setxattr(filepath.Join(dir, name), fmt.Sprintf("user.shared.%d", j), []byte(strings.Repeat("same", 10)), 0))
		}
		must(t, unix.Setxattr(filepath.Join(dir, name), "user.own", []byte(name), 0))
	}
	must(t, os.Symlink("sizes/1", filepath.Join(dir, "link")))
	must(t, os.Symlink(strings.Repeat("l", 4000), filepath.Join(dir, "long")))
	must(t, os.Link(filepath.Join(dir, "sizes/4097"), filepath.Join(dir, "hard")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(filepath.Join(dir, "dev"), unix.S_IFBLK|0o600, int(unix.Mkdev(300, 70000))))
		must(t, os.Chown(filepath.Join(dir, "x/0"), 70000, 1<<31))
		must(t, unix.Setxattr(filepath.Join(dir, "x"), "trusted.overlay.opaque", []byte("y"), 0))
		must(t, unix.Setxattr(filepath.Join(dir, "x/1"), "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	}
	return dir
}

func TestReadsWhatMkfsWrites(t *testing.T) {
	needTool(t, "mkfs.erofs")
	src := sourceTree(t)
	for _, args := range [][]string{
		{},
		{"-T1000"},
		{"-x1"},
		{"-x-1"},
		{"-Eforce-inode-compact", "-T1", "--all-root"},
		{"-Eforce-inode-extended", "-x1"},
		{"-Enoinline_data"},
		{"--chunksize=4096"},
		{"--chunksize=65536", "-Eforce-chunk-indexes"},
		{"--chunksize=1048576", "-Eforce-inode-blockmap", "-T5"},
		{"-b512"},
		{"-b1024", "--chunksize=4096"},
		{"-b512", "--chunksize=512", "-Eforce-chunk-indexes"},
		{"--xattr-prefix=user.shared.", "--xattr-prefix=trusted.overlay."},
		{"-E48bit"},
		{"-E48bit", "--chunksize=4096"},
		{"-Edot-omitted"},
		{"-Exattr-name-filter"},
		{"-Enosbcrc"},
		{"--hard-dereference"},
		{"--dsunit=16"},
		{"-Eplain-xattr-prefixes", "--xattr-prefix=user.shared."},
	} {
		t.Run(strings.Join(args, ","), func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			cmd := exec.Command("mkfs.erofs", append(slices.Clone(args), "--quiet", image, src)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Skipf("this mkfs.erofs cannot: %s", firstLine(out))
			}
			compareWithKernel(t, image)
		})
	}
}

// TestReadsWhatMkfsMakesOfTar: containerd's EROFS differ runs mkfs.erofs on the
// tar stream of a layer.
func TestReadsWhatMkfsMakesOfTar(t *testing.T) {
	needTool(t, "mkfs.erofs")
	needTool(t, "tar")
	src, archive := sourceTree(t), filepath.Join(t.TempDir(), "tar")
	run(t, "tar", "--xattrs", "--xattrs-include=*", "--sparse", "--format=pax", "-C", src, "-cf", archive, ".")
	for _, args := range [][]string{
		{"--tar=f"},
		{"--tar=f", "-Enoinline_data", "--sort=none"},
		{"--tar=f", "--aufs", "-Enoinline_data", "-U", "0b0b0b0b-0000-4000-8000-000000000000"},
	} {
		t.Run(strings.Join(args, ","), func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			out, err := exec.Command("mkfs.erofs", append(args, "--quiet", image, archive)...).CombinedOutput()
			if err != nil {
				t.Skipf("this mkfs.erofs cannot: %s", firstLine(out))
			}
			compareWithKernel(t, image)
		})
	}
}

func TestRefusesByName(t *testing.T) {
	needTool(t, "mkfs.erofs")
	src := t.TempDir()
	must(t, os.WriteFile(filepath.Join(src, "file"), bytes.Repeat([]byte("compress me "), 10000), 0o600))
	blob := filepath.Join(t.TempDir(), "blob")
	for _, c := range []struct {
		name string
		args []string
	}{
		{"compression", []string{"-zlz4"}},
		{"compression", []string{"-zlz4hc", "-C65536"}},
		{"compression", []string{"-zlz4", "-Efragments"}},
		{"metabox", []string{"-m4096"}},
		{"metabox", []string{"--MZ"}},
		{"compression", []string{"-zzstd"}},
		{"device", []string{"--blobdev=" + blob, "--chunksize=4096"}},
	} {
		t.Run(strings.Join(c.args, ","), func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			cmd := exec.Command("mkfs.erofs", append(c.args, "--quiet", image, src)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Skipf("this mkfs.erofs cannot: %s", firstLine(out))
			}
			f, err := os.Open(image)
			must(t, err)
			defer f.Close()
			info, err := f.Stat()
			must(t, err)
			if _, err := Open(f, info.Size()); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.name) {
				t.Errorf("Open: %v, want a refusal of %s", err, c.name)
			}
		})
	}
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}
