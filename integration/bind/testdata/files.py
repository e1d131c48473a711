# SPDX-License-Identifier: Apache-2.0
# Runs in the guest, in a directory of the host: what programs do with files. It
# stops at the first thing that is not as on Linux.
import ctypes, fcntl, mmap, os, shutil, socket, stat, subprocess, sys, threading

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

# Data: written, mapped, synced, cut, reserved, appended.
with open("a", "w+") as f:
    f.write("x" * 100000)
    f.flush()
    os.fsync(f.fileno())
    os.fdatasync(f.fileno())
    m = mmap.mmap(f.fileno(), 0)
    m[5:10] = b"hello"
    m.flush()
    m.close()
assert open("a").read()[4:11] == "xhellox"
os.truncate("a", 10)
assert os.stat("a").st_size == 10
fd = os.open("a", os.O_RDWR)
os.ftruncate(fd, 5000)
os.posix_fallocate(fd, 0, 10000)
assert os.fstat(fd).st_size == 10000 and os.pread(fd, 3, 9000) == b"\0\0\0"
os.close(fd)
one, two = os.open("a", os.O_WRONLY | os.O_APPEND), os.open("a", os.O_WRONLY | os.O_APPEND)
for n in range(10):
    os.write(one, b"1")
    os.write(two, b"2")
assert open("a", "rb").read()[10000:] == b"12" * 10
os.close(one)
os.close(two)
reader = os.open("a", os.O_RDONLY)
writer = os.open("a", os.O_RDWR)  # after the other: the Sentry exchanges its descriptor
os.pwrite(writer, b"later", 0)
assert os.pread(reader, 5, 0) == b"later"
r, w = os.pipe()
assert os.sendfile(w, reader, 0, 5) == 5 and os.read(r, 5) == b"later"
os.close(reader)
os.close(writer)
os.sync()
fd = os.open("a", os.O_RDONLY)
assert libc.syncfs(fd) == 0
os.close(fd)

# Names.
os.link("a", "b")
assert os.stat("b").st_nlink == 2 and os.path.samefile("a", "b")
os.rename("b", "c")
os.unlink("c")
os.symlink("a", "s")
assert os.readlink("s") == "a" and open("s", "rb").read(5) == b"later"
os.unlink("s")
os.makedirs("d/e/f")
os.rename("d/e", "g")
assert os.listdir("g") == ["f"] and os.listdir("d") == []
open("g/f/file", "w").close()
os.rename("g/f/file", "d/file")
shutil.rmtree("g")
shutil.rmtree("d")
for target in ("full", "nothing"):
    os.mkdir(target)
open("full/x", "w").close()
try:
    os.rmdir("full")
    raise AssertionError("rmdir of a full directory")
except OSError as e:
    assert e.errno == 39, e
os.rename("nothing", "empty")
shutil.rmtree("full")
os.rmdir("empty")
for n in ("r1", "r2"):
    open(n, "w").write(n)
assert libc.renameat2(-100, b"r1", -100, b"r2", 2) == 0  # RENAME_EXCHANGE
assert open("r1").read() == "r2" and open("r2").read() == "r1"
os.unlink("r1")
os.unlink("r2")
name = "n" * 255
open(name, "w").close()
os.unlink(name)
try:
    open("n" * 256, "w")
    raise AssertionError("a name of 256 bytes")
except OSError as e:
    assert e.errno == 36, e

# A file without a name lives on.
f = open("u", "w+")
f.write("gone")
f.flush()
os.unlink("u")
f.seek(0)
assert f.read() == "gone"
f.truncate(2)
assert os.fstat(f.fileno()).st_size == 2
f.close()

# Attributes.
os.utime("a", ns=(1_000_000_005, 2_000_000_007))
assert (os.stat("a").st_atime_ns, os.stat("a").st_mtime_ns) == (1_000_000_005, 2_000_000_007)
for mode in (0o600, 0o644, 0o755, 0o400, 0o644):
    os.chmod("a", mode)
    assert stat.S_IMODE(os.stat("a").st_mode) == mode, oct(os.stat("a").st_mode)
os.umask(0o027)
os.mkdir("m", 0o777)
fd = os.open("m/f", os.O_CREAT | os.O_WRONLY, 0o666)
os.close(fd)
assert stat.S_IMODE(os.stat("m").st_mode) == 0o750 and stat.S_IMODE(os.stat("m/f").st_mode) == 0o640
os.umask(0o022)
shutil.rmtree("m")
os.setxattr("a", "user.k", b"v")
assert os.getxattr("a", "user.k") == b"v" and "user.k" in os.listxattr("a")
os.removexattr("a", "user.k")
assert os.statvfs(".").f_blocks > 0

# Locks, among guests.
f, g = open("a", "r+"), open("a", "r+")
fcntl.flock(f, fcntl.LOCK_EX)
try:
    fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
    raise AssertionError("locked twice")
except BlockingIOError:
    pass
fcntl.flock(f, fcntl.LOCK_UN)
fcntl.lockf(f, fcntl.LOCK_EX)
child = subprocess.run([sys.executable, "-c", "import fcntl; fcntl.lockf(open('a','r+'), fcntl.LOCK_EX|fcntl.LOCK_NB)"], stderr=subprocess.DEVNULL)
assert child.returncode != 0
fcntl.lockf(f, fcntl.LOCK_UN)
f.close()
g.close()

# Pipes and sockets, among guests.
os.mkfifo("p")
t = threading.Thread(target=lambda: open("p", "w").write("fifo"))
t.start()
assert open("p").read() == "fifo"
t.join()
os.unlink("p")
s = socket.socket(socket.AF_UNIX)
s.bind("sk")
s.listen()
c = socket.socket(socket.AF_UNIX)
c.connect("sk")
c.close()
s.close()
os.unlink("sk")

# Programs.
open("x", "w").write("#!/bin/sh\necho script\n")
os.chmod("x", 0o755)
assert subprocess.check_output(["./x"]) == b"script\n"
shutil.copy("/bin/echo", "t")
assert subprocess.check_output(["./t", "binary"]) == b"binary\n"
os.unlink("t")
os.unlink("x")

# Many.
os.mkdir("big")
for i in range(3000):
    open("big/%d" % i, "w").close()
names = os.listdir("big")
assert len(names) == len(set(names)) == 3000
subprocess.check_call(["rm", "-rf", "big"])

os.unlink("a")
assert os.listdir(".") == [], os.listdir(".")
print("done")
