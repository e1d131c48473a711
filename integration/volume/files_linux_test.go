// SPDX-License-Identifier: Apache-2.0

// What programs ask of files beside reading and writing: locks of all kinds,
// watches, and the calls that move data within the kernel; and fio, which checks
// what it wrote.

package volume

import (
	"fmt"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// python runs a program with the volume v.ext4 on /v, and checks the volume.
func (b *bed) python(program string) {
	b.Helper()
	b.must("cat > /t.py <<'END'\n"+program+"\nEND\nexec python3 /t.py", "--mount", b.mount("v.ext4", "size=256m"))
	b.check(b.path("v.ext4"))
}

// locks has processes that get in each other's way, and ones that do not. A
// child tries what the parent forbids: it has files of its own.
const locks = `
import errno, fcntl, os, signal, struct
open("/v/f", "wb").write(b"x" * 8192)
def child(fn):
    pid = os.fork()
    if pid == 0:
        try:
            fn()
        except OSError as e:
            os._exit(e.errno)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def again(*codes):
    return all(c in (errno.EAGAIN, errno.EACCES) for c in codes)
def opened(fn):
    return lambda: fn(os.open("/v/f", os.O_RDWR))
flock = lambda how: opened(lambda fd: fcntl.flock(fd, how | fcntl.LOCK_NB))
posix = lambda how, n, at: opened(lambda fd: fcntl.lockf(fd, how | fcntl.LOCK_NB, n, at))
def range_(kind, at, n):
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, at, n, 0)
ofd = lambda kind, at, n: opened(lambda fd: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, range_(kind, at, n)))

# flock: of the open file, shared by who inherits it, gone with the last of them.
fd = os.open("/v/f", os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_SH)
assert child(flock(fcntl.LOCK_SH)) == 0
assert again(child(flock(fcntl.LOCK_EX)))
fcntl.flock(fd, fcntl.LOCK_EX)
assert again(child(flock(fcntl.LOCK_SH)))
assert child(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)) == 0
copy = os.dup(fd)
os.close(fd)
assert again(child(flock(fcntl.LOCK_SH)))
os.close(copy)
assert child(flock(fcntl.LOCK_EX)) == 0

# POSIX: of the process, by ranges, gone when any descriptor of the file closes.
fd = os.open("/v/f", os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 100, 0)
fcntl.lockf(fd, fcntl.LOCK_SH, 100, 200)
assert again(child(posix(fcntl.LOCK_SH, 1, 99)), child(posix(fcntl.LOCK_EX, 1, 250)))
assert child(posix(fcntl.LOCK_EX, 100, 100)) == 0
assert child(posix(fcntl.LOCK_SH, 10, 250)) == 0
kind, _, at, n, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, range_(fcntl.F_WRLCK, 0, 10)))
assert kind == fcntl.F_UNLCK, kind
parent = os.getpid()
def ask():
    other = os.open("/v/f", os.O_RDWR)
    kind, _, at, n, pid = struct.unpack("hhqqi4x", fcntl.fcntl(other, fcntl.F_GETLK, range_(fcntl.F_WRLCK, 50, 10)))
    assert (kind, at, n, pid) == (fcntl.F_WRLCK, 0, 100, parent), (kind, at, n, pid)
assert child(ask) == 0
fcntl.lockf(fd, fcntl.LOCK_UN, 20, 40)
assert child(posix(fcntl.LOCK_EX, 20, 40)) == 0
assert again(child(posix(fcntl.LOCK_EX, 1, 39)), child(posix(fcntl.LOCK_EX, 1, 60)))
os.close(os.open("/v/f", os.O_RDONLY))
assert child(posix(fcntl.LOCK_EX, 0, 0)) == 0
# One that waits gets it when the holder is killed.
read, write = os.pipe()
holder = os.fork()
if holder == 0:
    fcntl.lockf(os.open("/v/f", os.O_RDWR), fcntl.LOCK_EX)
    os.write(write, b"held")
    while True: signal.pause()
os.read(read, 4)
waiter = os.fork()
if waiter == 0:
    fcntl.lockf(os.open("/v/f", os.O_RDWR), fcntl.LOCK_EX)
    os._exit(0)
assert again(child(posix(fcntl.LOCK_SH, 1, 0)))
assert os.waitpid(waiter, os.WNOHANG)[0] == 0
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
assert os.waitpid(waiter, 0)[1] == 0

# OFD: of the open file, by ranges; in the way of POSIX locks, too.
fd = os.open("/v/f", os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, range_(fcntl.F_WRLCK, 0, 100))
os.close(os.open("/v/f", os.O_RDONLY))
assert again(child(ofd(fcntl.F_WRLCK, 99, 10)), child(posix(fcntl.LOCK_SH, 1, 0)))
assert child(ofd(fcntl.F_WRLCK, 100, 10)) == 0
mine = os.open("/v/f", os.O_RDWR)
try:
    fcntl.fcntl(mine, fcntl.F_OFD_SETLK, range_(fcntl.F_RDLCK, 0, 1))
    raise SystemExit("two open files of one process have the same lock")
except OSError as e:
    assert again(e.errno)
assert child(lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, range_(fcntl.F_WRLCK, 0, 50))) == 0
os.close(fd)
assert child(ofd(fcntl.F_WRLCK, 0, 100)) == 0
# A lock is the file's, whatever name it has now, and of none that has its old one.
fd = os.open("/v/f", os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
os.rename("/v/f", "/v/g")
open("/v/f", "w").close()
assert child(flock(fcntl.LOCK_EX)) == 0
os.link("/v/g", "/v/h")
assert again(child(lambda: fcntl.flock(os.open("/v/h", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)))
`

func TestLocksOnAVolume(t *testing.T) { newBed(t).python(locks) }

// watches compares the events of a volume's files with what Linux documents.
const watches = `
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
names = {1: "access", 2: "modify", 4: "attrib", 8: "close_write", 0x10: "close_nowrite", 0x20: "open", 0x40: "moved_from", 0x80: "moved_to",
    0x100: "create", 0x200: "delete", 0x400: "delete_self", 0x800: "move_self", 0x8000: "ignored"}
ify = libc.inotify_init1(os.O_NONBLOCK)
assert ify >= 0
def watch(path, mask=0xfff):
    wd = libc.inotify_add_watch(ify, path.encode(), mask)
    assert wd >= 0, (path, os.strerror(ctypes.get_errno()))
    return wd
def events():
    got, cookies = [], []
    while True:
        try:
            data = os.read(ify, 65536)
        except BlockingIOError:
            break
        while data:
            wd, mask, cookie, n = struct.unpack_from("iIII", data)
            name = data[16:16+n].rstrip(b"\0").decode()
            data = data[16+n:]
            kind = names[mask & 0xffff] + ("/" if mask & 0x40000000 else "")
            got.append("%d:%s:%s" % (wd, kind, name))
            if cookie: cookies.append(cookie)
    assert len(set(cookies)) * 2 == len(cookies), cookies
    return " ".join(got)
def expect(*want):
    got = events()
    assert got == " ".join(want), (got, want)
os.mkdir("/v/d")
d = watch("/v/d")
fd = os.open("/v/d/f", os.O_CREAT | os.O_RDWR); expect("1:create:f", "1:open:f")
os.write(fd, b"x" * 5000); expect("1:modify:f")
os.pread(fd, 10, 0); expect("1:access:f")
os.ftruncate(fd, 10); expect("1:modify:f")
os.close(fd); expect("1:close_write:f")
os.chmod("/v/d/f", 0o600); expect("1:attrib:f")
os.setxattr("/v/d/f", "user.a", b"b"); expect("1:attrib:f")
os.utime("/v/d/f"); expect("1:attrib:f")
f = watch("/v/d/f", 0xfff & ~(0x20 | 0x10 | 1))
os.rename("/v/d/f", "/v/d/g"); expect("1:moved_from:f", "1:moved_to:g", "2:move_self:")
os.link("/v/d/g", "/v/h"); events()
open("/v/h", "a").write("x"); assert "2:modify:" in events() # by another name
os.mkdir("/v/d/sub"); expect("1:create/:sub")
os.rmdir("/v/d/sub"); expect("1:delete/:sub")
os.symlink("g", "/v/d/s"); expect("1:create:s")
os.mkfifo("/v/d/p"); expect("1:create:p")
os.unlink("/v/d/s"); os.unlink("/v/d/p"); expect("1:delete:s", "1:delete:p")
os.unlink("/v/d/g"); assert "1:delete:g" in events()
os.unlink("/v/h"); got = events(); assert "2:delete_self:" in got and "2:ignored:" in got, got
os.mkdir("/v/e")
e = watch("/v/e")
open("/v/e/x", "w").close(); events()
os.rename("/v/e/x", "/v/d/y"); got = events(); assert "moved_from:x" in got and "1:moved_to:y" in got, got
libc.inotify_rm_watch(ify, e); assert events().endswith(":ignored:")
os.unlink("/v/d/y"); events()
os.rmdir("/v/d"); got = events(); assert "1:delete_self:" in got and "1:ignored:" in got, got
# Many at once: none is lost below the queue's length, and order is kept.
os.mkdir("/v/many"); watch("/v/many", 0x100)
for n in range(2000): os.close(os.open("/v/many/%d" % n, os.O_CREAT | os.O_WRONLY))
got = [g.rsplit(":", 1)[1] for g in events().split()]
assert got == [str(n) for n in range(2000)], len(got)
`

func TestWatchesOnAVolume(t *testing.T) { newBed(t).python(watches) }

// moves are the calls by which data goes from file to file, or through a pipe or
// socket, without the program's memory: over block borders, holes, and ends.
const moves = `
import errno, os, socket, threading
SIZE = 3 << 20
data = bytearray(os.urandom(SIZE))
data[1 << 20:(1 << 20) + 300000] = bytes(300000)
src = os.open("/v/src", os.O_RDWR | os.O_CREAT)
os.pwrite(src, data[:1 << 20], 0)
os.pwrite(src, data[(1 << 20) + 300000:], (1 << 20) + 300000) # a hole between
def content(path): return open(path, "rb").read()

# copy_file_range: at offsets and at the files' own, beyond the end, within one file.
out = os.open("/v/copied", os.O_RDWR | os.O_CREAT)
done = 0
while done < SIZE:
    n = os.copy_file_range(src, out, SIZE - done, done, done)
    assert n > 0
    done += n
assert content("/v/copied") == data
assert os.copy_file_range(src, out, 100, SIZE) == 0
assert os.copy_file_range(src, src, 5000, 100, SIZE + 7000) == 5000
assert os.pread(src, 5000, SIZE + 7000) == data[100:5100] and os.pread(src, 7000, SIZE) == bytes(7000)
os.ftruncate(src, SIZE)
other = os.open("/root/other", os.O_RDWR | os.O_CREAT) # another file system
try:
    done = 0
    while done < SIZE:
        n = os.copy_file_range(src, other, SIZE - done, done, done)
        assert n > 0
        done += n
    assert content("/root/other") == data
except OSError as e:
    assert e.errno == errno.EXDEV and done == 0, e

# sendfile: file to file, and to a socket.
out = os.open("/v/sent", os.O_RDWR | os.O_CREAT)
done = 0
while done < SIZE:
    done += os.sendfile(out, src, done, SIZE - done)
assert content("/v/sent") == data
assert os.sendfile(out, src, SIZE, 10) == 0
a, b = socket.socketpair()
got = bytearray()
def drain():
    while True:
        part = b.recv(65536)
        if not part: break
        got.extend(part)
t = threading.Thread(target=drain); t.start()
done = 12345
while done < SIZE:
    done += os.sendfile(a.fileno(), src, done, SIZE - done)
a.close(); t.join()
assert got == data[12345:]

# splice: file to pipe to file.
read, write = os.pipe()
out = os.open("/v/spliced", os.O_RDWR | os.O_CREAT)
done = 0
while done < SIZE:
    n = os.splice(src, write, min(SIZE - done, 50000), offset_src=done)
    assert n > 0
    while n:
        k = os.splice(read, out, n, offset_dst=done)
        assert k > 0
        n -= k; done += k
assert content("/v/spliced") == data
# A mapping sees what a splice stored, and the other way round.
import mmap
m = mmap.mmap(out, SIZE)
os.write(write, b"through the pipe")
assert os.splice(read, out, 16, offset_dst=4090) == 16
assert m[4090:4106] == b"through the pipe"
m[8190:8200] = b"by mapping"
assert os.splice(out, write, 10, offset_src=8190) == 10 and os.read(read, 10) == b"by mapping"
`

func TestDataMovesWithoutCopiesInTheProgram(t *testing.T) { newBed(t).python(moves) }

// TestFioVerifies has fio write at random by several ways and check every block
// that it wrote, also after the volume was taken away and given back.
func TestFioVerifies(t *testing.T) {
	b := newBed(t)
	b.image = b.h.Image(t, "full")
	size := "8m"
	if testbed.Nightly() {
		size = "256m"
	}
	job := func(name, more string) string {
		return fmt.Sprintf(`fio --name=%s --directory=/v --rw=randrw --size=%s --verify=crc32c --verify_fatal=1 --randseed=7 --fallocate=none --output-format=terse --output=/tmp/%s %s || { cat /tmp/%s; exit 1; }
`, name, size, name, more, name)
	}
	jobs := job("sync", "--ioengine=psync --bs=512 --fsync=64") + job("mmap", "--ioengine=mmap --bs=4k") +
		job("direct", "--ioengine=psync --direct=1 --bs=16k") + job("threads", "--ioengine=psync --bs=64k --numjobs=4 --thread --fdatasync=32")
	b.must("set -e\n"+jobs, "--mount", b.mount("v.ext4", "size=4g"))
	b.check(b.path("v.ext4"))
	// The same reads, without the writes, of what is on the disk; and of a clone.
	again := strings.ReplaceAll(jobs, "--rw=randrw", "--rw=randrw --verify_only")
	b.must("set -e\n"+again, "--mount", b.mount("v.ext4", "clone=ephemeral"))
	b.must("set -e\n"+jobs, "--mount", b.mount("v.ext4", "clone=ephemeral"))
}
