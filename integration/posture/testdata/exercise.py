# SPDX-License-Identifier: Apache-2.0
#
# A guest that makes its Sentry use as much of the host as it can: run by
# TestEveryEntryIsNeeded, with pipes and with a terminal.
import ctypes, fcntl, mmap, os, select, signal, socket, struct, subprocess, sys, tempfile, termios, threading, time

print("ready", flush=True)
sys.stdin.readline()

def attempt(f):
    try:
        f()
    except Exception:
        pass

# The Sentry's own threads, locks and preemption.
busy = [threading.Thread(target=lambda: sum(range(200000))) for _ in range(8)]
[t.start() for t in busy]
[t.join() for t in busy]

# Processes, that is stubs.
for _ in range(10):
    subprocess.run(["/bin/true"])
for _ in range(5):
    if (pid := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)

# Memory.
m = mmap.mmap(-1, 1 << 22)
m[0:4] = b"aaaa"
m.madvise(mmap.MADV_DONTNEED)
for _ in range(4):
    x = bytearray(1 << 27)
    del x
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall({"x86_64": 324, "aarch64": 283}[os.uname().machine], 1, 0, 0)  # membarrier, global
open("/proc/meminfo").read()

# The writable layer of the root.
with tempfile.TemporaryFile(dir="/root") as f:
    f.write(b"a" * (1 << 22))
    f.flush()
    os.fsync(f.fileno())
    os.fdatasync(f.fileno())
    os.posix_fallocate(f.fileno(), 0, 1 << 23)
    attempt(lambda: os.preadv(f.fileno(), [bytearray(5000), bytearray(5000)], 100))
    attempt(lambda: os.pwritev(f.fileno(), [b"b" * 5000, b"c" * 5000], 100))
    q = mmap.mmap(f.fileno(), 1 << 20)
    q[5] = 3
    q.flush()
    os.ftruncate(f.fileno(), 1)
subprocess.run(["/bin/ls", "-lR", "/usr/share"], stdout=subprocess.DEVNULL)
subprocess.run(["/bin/sync"])

# The standard streams, in every way.
for fd in (0, 1, 2):
    attempt(lambda: os.fstat(fd))
    attempt(lambda: os.utime(fd))
    attempt(lambda: os.fsync(fd))
    attempt(lambda: os.fdatasync(fd))
    attempt(lambda: os.ftruncate(fd, 0))
    attempt(lambda: os.fchmod(fd, 0o600))
    attempt(lambda: os.fchown(fd, 0, 0))
    attempt(lambda: os.fstatvfs(fd))
    attempt(lambda: os.lseek(fd, 0, 1))
    attempt(lambda: fcntl.ioctl(fd, termios.FIONREAD, b"    "))
    attempt(lambda: termios.tcgetattr(fd))
    for when in (termios.TCSANOW, termios.TCSADRAIN, termios.TCSAFLUSH):
        attempt(lambda: termios.tcsetattr(fd, when, termios.tcgetattr(fd)))
    size = bytearray(8)
    attempt(lambda: fcntl.ioctl(fd, termios.TIOCGWINSZ, size))
    attempt(lambda: fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0)))
    termios2 = bytearray(44)
    attempt(lambda: fcntl.ioctl(fd, 0x802C542A, termios2))  # TCGETS2
    attempt(lambda: fcntl.ioctl(fd, 0x402C542B, termios2))  # TCSETS2
    attempt(lambda: os.set_blocking(fd, False))
    attempt(lambda: os.set_blocking(fd, True))
    attempt(lambda: os.writev(fd, [b"a", b"b\n"]))
    attempt(lambda: os.open("/proc/self/fd/%d" % fd, os.O_RDWR | os.O_NONBLOCK))
    attempt(lambda: os.sendfile(fd, fd, 0, 1))
    attempt(lambda: os.splice(fd, fd, 1))
poll = select.poll()
for fd in (0, 1, 2):
    attempt(lambda: poll.register(fd))
poll.poll(20)

# The network, as far as the broker itself: its name server, a half-close, a reset.
s = socket.create_connection(("10.0.2.3", 53), timeout=20)
s.shutdown(socket.SHUT_WR)
s.recv(1)
s.close()
s = socket.create_connection(("10.0.2.3", 53), timeout=20)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
s.close()

# Longer than the Go runtime's one-second habits.
time.sleep(1.3)
print("finished", flush=True)
