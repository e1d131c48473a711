// SPDX-License-Identifier: Apache-2.0

// What guests do on volumes: overlays, mappings, full and broken volumes. Each
// test ends with e2fsck on the file, where there is something to check.

package volume

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// overlays is what engines do with overlays: lower layers by relative paths,
// options that say how, whiteouts, opaque directories, hard links, renames, and
// removal by somebody who is not root in a sticky directory.
const overlays = `set -ex
cd /v
mkdir l1 l2 u w m
echo one > l1/a; echo two > l2/b; mkdir l1/d l2/d; echo x > l1/d/x; echo y > l2/d/y; ln l1/a l1/a2
mount -t overlay overlay -o lowerdir=l1:l2,upperdir=/v/u,workdir=/v/w,index=off,metacopy=off,redirect_dir=off,nfs_export=off,xino=off m
grep -q ' /v/m overlay ' /proc/mounts
[ "$(cat m/a)$(cat m/b)$(cat m/d/x)$(cat m/d/y)" = "onetwoxy" ]
echo changed > m/a
rm m/b
mv m/d/x m/z
ln m/a m/hard
rm -r m/d
mkdir m/d
[ "$(ls m/d)" = "" ]
[ "$(cat l1/a)$(cat u/a)$(cat m/hard)" = "onechangedchanged" ]
[ "$(stat -c %F:%t:%T u/b)" = "character special file:0:0" ]
umount m
mount -t overlay overlay -o lowerdir=l1:l2,upperdir=/v/u,workdir=/v/w,volatile m
[ "$(ls m)" = "a
a2
d
hard
z" ]
[ "$(ls m/d)" = "" ]
umount m
mkdir u2 w2
mount -t overlay o -o userxattr,lowerdir+=/v/l1,lowerdir+=/v/l2,upperdir=/v/u2,workdir=/v/w2 m
touch m/d/new
python3 -c 'import os; os.rename("/v/m/d/new", "/v/m/new2")'
umount m
[ -e u2/new2 ] && [ ! -e u2/d/new ] && [ -e u2/d ]
! mount -t overlay o -o lowerdir=/v/l1,upperdir=/v/u2,workdir=/v/w2,nosuch=1 m
! mount -t overlay o -o lowerdir=/v/l1,upperdir=/v/u2,workdir=/v/u2/w m
! mount -t overlay o -o lowerdir=/v/l1,upperdir=/proc/self,workdir=/v/w2 m
mkdir u3 w3
mount -t overlay o -o lowerdir=/usr,upperdir=/v/u3,workdir=/v/w3 m
cp m/bin/env m/bin/env2
m/bin/env2 true
umount m
mkdir -p /t; mount -t tmpfs t /t; mkdir /t/u /t/w
mount -t overlay o -o lowerdir=/v/l1,upperdir=/t/u,workdir=/t/w m
echo new > m/a; [ "$(cat /t/u/a)" = new ]
umount m
mkdir s su sw; chmod 1777 s; echo r > s/f; chmod 666 s/f
mount -t overlay o -o lowerdir=/v/s,upperdir=/v/su,workdir=/v/sw m
chmod 1777 m; rm m/f
python3 -c '
import os
os.setgroups([]); os.setgid(1000); os.setuid(1000)
open("/v/m/mine", "w").write("mine")
os.rename("/v/m/mine", "/v/m/f")
assert open("/v/m/f").read() == "mine"
'
umount m
for n in 1 2 3 4; do mkdir -p o/u$n o/w$n o/m$n; mount -t overlay o -o lowerdir=/usr:/v/l1,upperdir=/v/o/u$n,workdir=/v/o/w$n o/m$n; done
for n in 1 2 3 4; do (for k in 1 2; do cp o/m$n/bin/env o/m$n/$k; mv o/m$n/$k o/m$n/bin/e$k; rm o/m$n/bin/e$k; done) & done; wait
for n in 1 2 3 4; do umount o/m$n; done
python3 -c '
import os
for dir in "/", "/v/":
    open(dir + "one", "w").close(); os.link(dir + "one", dir + "two"); os.rename(dir + "one", dir + "two")
    assert os.path.exists(dir + "one") and os.path.exists(dir + "two")
'
`

func TestOverlaysOnAVolume(t *testing.T) {
	b := newBed(t)
	b.must(overlays, "--mount", b.mount("v.ext4", "size=256m"))
	b.check(b.path("v.ext4"))
}

// torture stores through shared mappings from several processes, among writes,
// cuts and holes, and compares every byte with what must be there.
const torture = `
import mmap, os, random, sys
PAGE, PAGES = 4096, 64
random.seed(int(sys.argv[1]))
fd = os.open("/v/f", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, PAGE * PAGES)
model = bytearray(PAGE * PAGES)
if sys.argv[2] == "clone":
    model[:] = b"b" * len(model)
shared = mmap.mmap(fd, PAGE * PAGES)
again = mmap.mmap(fd, PAGE * PAGES)
private = mmap.mmap(fd, PAGE * PAGES, mmap.MAP_PRIVATE, mmap.PROT_READ)
def child(off, data):
    pid = os.fork()
    if pid == 0:
        shared[off:off+len(data)] = data
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
for step in range(300):
    off = random.randrange(PAGE * PAGES - 10000)
    data = bytes([random.randrange(256)]) * random.randrange(1, 10000)
    kind = random.randrange(7)
    if kind == 0:
        os.pwrite(fd, data, off)
    elif kind == 1:
        shared[off:off+len(data)] = data
    elif kind == 2:
        again[off:off+len(data)] = data
    elif kind == 3:
        child(off, data)
    elif kind == 4:
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        assert libc.fallocate(fd, 3, off, len(data)) == 0, ctypes.get_errno()
        data = bytes(len(data))
    elif kind == 5:
        os.ftruncate(fd, off)
        os.ftruncate(fd, PAGE * PAGES)
        data = bytes(PAGE * PAGES - off)
    else:
        shared.flush()
        data = b""
    model[off:off+len(data)] = data
    at = random.randrange(PAGES) * PAGE
    want = bytes(model[at:at+PAGE])
    for name, got in ("shared", shared[at:at+PAGE]), ("again", again[at:at+PAGE]), ("private", private[at:at+PAGE]), ("read", os.pread(fd, PAGE, at)):
        assert got == want, (step, kind, name, at, off, len(data))
assert os.pread(fd, len(model), 0) == bytes(model)
# Behind the end there is nothing to be touched.
os.ftruncate(fd, PAGE)
pid = os.fork()
if pid == 0:
    shared[3 * PAGE]
    os._exit(0)
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 7
open("/v/done", "wb").write(bytes(model))
`

func TestMappingsUnderTorture(t *testing.T) {
	b := newBed(t)
	script := func(seed int, kind string) string {
		return fmt.Sprintf("cat > /t.py <<'END'\n%s\nEND\npython3 /t.py %d %s", torture, seed, kind)
	}
	rounds := 1
	if testbed.Nightly() {
		rounds = 50
	}
	b.must(`python3 -c 'open("/v/f", "wb").write(b"b" * 4096 * 64)'`, "--mount", b.mount("base.ext4", "size=64m"))
	for seed := range rounds {
		plain := fmt.Sprintf("plain%d.ext4", seed)
		b.must(script(seed, "plain"), "--mount", b.mount(plain, "size=64m"))
		b.check(b.path(plain))
		b.must(script(seed, "clone"), "--mount", b.mount("base.ext4", "clone=ephemeral"))
	}
	if got := b.must("md5sum < /v/f; ls /v", "--mount", b.mount("base.ext4", "readonly")); strings.Contains(got, "done") {
		t.Errorf("clones changed their base: %s", got)
	}
}

// TestAFullVolume fills a volume with data, then with files, also under an
// overlay, which must not bring the sandbox down.
func TestAFullVolume(t *testing.T) {
	b := newBed(t)
	b.must(`cd /v; mkdir l u w m; for n in 1 2 3 4 5 6 7 8 9; do echo $n > l/$n; done
mount -t overlay o -o lowerdir=/v/l,upperdir=/v/u,workdir=/v/w m
! cat /dev/zero > m/big 2>/dev/null || exit 1
[ $(stat -c %s m/big) -gt 10000000 ] || exit 2
mv m/1 m/one; mv m/2 m/two; rm m/3 m/4; mkdir m/dir; echo x > m/5
rm m/big || exit 3
echo fits > m/small; [ "$(cat m/small)" = fits ] || exit 4
python3 -c '
import os
n = 0
try:
    while True:
        os.close(os.open("/v/m/f%d" % n, os.O_CREAT)); n += 1
except OSError as e:
    assert e.errno == 28, e
    for k in range(20):
        os.rename("/v/m/f%d" % k, "/v/m/g%d" % k)
        os.unlink("/v/m/f%d" % (k + 100))
    for k in "6789":
        os.unlink("/v/m/" + k)
assert n > 1000, n
'`, "--mount", b.mount("v.ext4", "size=32m"))
	b.check(b.path("v.ext4"))
}

// TestBrokenVolumes gives guests volumes with damage all over their metadata.
// Files may be unreadable, the sandbox may not care.
func TestBrokenVolumes(t *testing.T) {
	b := newBed(t)
	b.must(`cp -r /etc /usr/lib/python3*/json /v/ 2>/dev/null; true`, "--mount", b.mount("whole.ext4", "size=64m"))
	whole, err := os.ReadFile(b.path("whole.ext4"))
	if err != nil {
		t.Fatal(err)
	}
	rounds := 2
	if testbed.Nightly() {
		rounds = 200
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		broken := append([]byte(nil), whole...)
		for range 200 {
			// The first megabytes hold descriptors, bitmaps, inodes, directories.
			broken[4096+rnd.IntN(8<<20)] ^= byte(1 + rnd.IntN(255))
		}
		if err := os.WriteFile(b.path("broken.ext4"), broken, 0o600); err != nil {
			t.Fatal(err)
		}
		b.h.Chown(t, b.path("broken.ext4"))
		r := b.sh(`find /v -type f -exec cat {} + > /dev/null 2>&1; cd /v; for n in 1 2 3 4; do mkdir d$n; cp /etc/passwd d$n; mv d$n e$n; rm -r e$n; done >/dev/null 2>&1; sync; echo lives`,
			"--mount", b.mount("broken.ext4"))
		mounted := !strings.Contains(r.Stderr, "mount volume") && !strings.Contains(r.Stderr, "volume")
		if strings.Contains(r.Stderr, "ended before its guest did") || mounted && !strings.Contains(r.Stdout, "lives") {
			t.Errorf("a broken volume: %v", r)
		}
	}
}
