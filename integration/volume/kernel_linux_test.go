// SPDX-License-Identifier: Apache-2.0

// The host's kernel and its tools on volumes, and volumes on the host's file
// systems. Needs root, for loop devices.

package volume

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// loopMount has the kernel mount an image file.
func (b *bed) loopMount(path string, options string) string {
	b.Helper()
	testbed.NeedRoot(b.T, "loop mounts")
	dir, err := os.MkdirTemp("/var/tmp", "gvx-mnt-")
	if err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("mount", "-o", "loop"+options, path, dir).CombinedOutput(); err != nil {
		os.Remove(dir)
		testbed.Missing(b.T, "a loop mount of %s: %v: %s", filepath.Base(path), err, out)
	}
	b.Cleanup(func() { b.unmount(dir) })
	return dir
}

// unmount ends a mount; it may be gone.
func (b *bed) unmount(dir string) {
	exec.Command("umount", dir).Run()
	os.Remove(dir)
}

// TestKernelMountsVolumes: what guests wrote, the kernel reads, and the other
// way round.
func TestKernelMountsVolumes(t *testing.T) {
	testbed.NeedRoot(t, "loop mounts")
	b := newBed(t)
	path := b.path("data.ext4")
	b.must(`cd /v; echo guest > f; ln f hard; ln -s f soft; mkfifo pipe; mkdir -p a/b; chmod 2750 a; chown 5:6 a
		python3 -c 'import os; os.setxattr("f", "user.x", b"y"); os.truncate(os.open("sparse", os.O_CREAT|os.O_RDWR), 1<<30)'`, "--mount", b.mount("data.ext4"))
	b.check(path)
	dir := b.loopMount(path, "")
	script := `cd ` + dir + `; test "$(cat soft)" = guest && test f -ef hard && test -p pipe && test "$(stat -c '%u:%g %a' a)" = "5:6 2750" &&
		test "$(stat -c '%s' sparse)" = 1073741824 && echo kernel > f && cp -r /etc/apt copied && sync`
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Errorf("the kernel sees something else: %v: %s", err, out)
	}
	b.unmount(dir)
	b.check(path)
	if out := b.must(`cat /v/hard; ls /v/copied | wc -l`, "--mount", b.mount("data.ext4")); !strings.HasPrefix(out, "kernel\n") || strings.HasSuffix(out, "\n0\n") {
		t.Errorf("the guest sees %q", out)
	}
	b.check(path)

	// A volume made by mke2fs.
	made := b.path("made.ext4")
	if err := os.WriteFile(made, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(made, 256<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(testbed.NeedCommand(t, "mkfs.ext4"), "-q", made).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	b.h.Chown(t, made)
	b.must(`echo x > /v/f; mkdir /v/d; sync`, "--mount", b.mount("made.ext4"))
	b.check(made)
	if out := b.must(`cat /v/f`, "--mount", b.mount("made.ext4", "clone=ephemeral")); out != "x\n" {
		t.Errorf("a clone of it holds %q", out)
	}
}

// makeXFS makes a file system with reflinks for the home's user.
func (b *bed) makeXFS() string {
	b.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "gvx-mnt-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.Remove(dir) })
	b.h.MountXFS(b.T, b.path("xfs.img"), dir, 512<<20)
	return dir
}

// TestReflink: on XFS both ways of cloning work; elsewhere reflinks are refused
// and say what to do.
func TestReflink(t *testing.T) {
	b := newBed(t)
	dir := b.makeXFS()
	golden, ep := filepath.Join(dir, "golden.ext4"), filepath.Join(dir, "ep.ext4")
	b.must(`echo content > /v/f; dd if=/dev/urandom of=/v/big bs=1M count=32 2>/dev/null`, "--mount", "type=volume,src="+golden+",dst=/v")
	b.h.MustRungv(t, "volume", "clone", "--reflink", golden, ep)
	b.must(`echo more >> /v/f; cat /v/f`, "--mount", "type=volume,src="+ep+",dst=/v")
	b.check(ep)
	// The document's own way.
	cp := b.h.CommandAs(t.Context(), "/bin/cp", "--reflink=always", golden, filepath.Join(dir, "cp.ext4"))
	if r := testbed.Run(t, cp, nil); r.Code != 0 {
		t.Errorf("cp --reflink: %v", r)
	}
	if out := b.must(`cat /v/f`, "--mount", "type=volume,src="+filepath.Join(dir, "cp.ext4")+",dst=/v"); out != "content\n" {
		t.Errorf("a copy by cp holds %q", out)
	}
	if out := b.must(`cat /v/f; md5sum < /v/big > /dev/null`, "--mount", "type=volume,src="+golden+",dst=/v,clone=ephemeral"); out != "content\n" {
		t.Errorf("an ephemeral clone on XFS holds %q", out)
	}
	if r := b.h.Rungv(t, nil, "volume", "clone", "--reflink", golden, b.path("other.ext4")); r.Code != 1 || !strings.Contains(r.Stderr, "--delta") {
		t.Errorf("a reflink to another file system: %v", r)
	}
	if _, err := os.Stat(b.path("other.ext4")); err == nil {
		t.Error("a refused reflink left its file")
	}
}

// TestHostDiskFull: the host has less room than the volume promises. The guest
// gets ENOSPC, and the volume stays whole.
func TestHostDiskFull(t *testing.T) {
	testbed.NeedRoot(t, "loop mounts")
	b := newBed(t)
	image := b.path("small.img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(testbed.NeedCommand(t, "mkfs.ext4"), "-q", "-m", "0", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	dir := b.loopMount(image, "")
	b.h.Chown(t, dir)
	volume, ballast := filepath.Join(dir, "data.ext4"), filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `echo kept > /v/kept; sync; python3 -c '
import errno
f = open("/v/big", "wb", buffering=0)
try:
    while True: f.write(b"x" * 1048576)
except OSError as e:
    print(errno.errorcode[e.errno])
'; cat /v/kept`
	out := b.must(script, "--mount", "type=volume,src="+volume+",dst=/v")
	if out != "ENOSPC\nkept\n" && out != "EIO\nkept\n" {
		t.Errorf("the guest saw %q", out)
	}
	// Whoever has filled the disk has to make room first, and is told so.
	if r := b.h.Rungv(t, nil, "volume", "fsck", "--replay", volume); r.Code > 1 && !strings.Contains(r.Stderr, "free some space") {
		t.Errorf("fsck on a full disk: %v", r)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r := b.h.Rungv(t, nil, "volume", "fsck", "--replay", volume)
	if r.Code > 1 {
		t.Errorf("fsck after a full disk: %v", r)
	}
	b.check(volume)
	if out := b.must(`rm -f /v/big; cat /v/kept`, "--mount", "type=volume,src="+volume+",dst=/v"); out != "kept\n" {
		t.Errorf("afterwards it holds %q", out)
	}
}
