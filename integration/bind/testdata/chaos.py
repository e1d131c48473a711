# SPDX-License-Identifier: Apache-2.0
# Changes a directory at random for a time, on either side of a mount, whatever the
# other side does to it meanwhile.
import mmap, os, random, sys, time

root, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
os.chdir(root)
rnd = random.Random(seed)
done = 0


def path():
    return "/".join(rnd.choice("abcde") for _ in range(rnd.choice([1, 1, 2, 2, 3])))


def write(p):
    with open(p, "r+b" if rnd.random() < 0.5 else "wb") as f:
        f.write(b"x" * rnd.choice([1, 5000, 100000]))
        f.truncate(rnd.choice([0, 3, 5000]))


def mapped(p):
    with open(p, "r+b") as f:
        with mmap.mmap(f.fileno(), 0) as m:
            m[0:1] = b"m"


def read(p):
    with open(p, "rb") as f:
        f.read()
        os.fstat(f.fileno())


operations = [
    write, write, write, read, read, os.mkdir, os.unlink, os.rmdir, os.listdir, os.lstat, os.readlink,
    lambda p: os.rename(p, path()), lambda p: os.rename(p, path()), lambda p: os.link(p, path()), lambda p: os.symlink(path(), p),
    lambda p: os.chmod(p, 0o755), os.utime, lambda p: os.truncate(p, 10), lambda p: sorted(os.scandir(p), key=lambda e: e.stat().st_size),
]
if len(sys.argv) > 4:  # a mapping whose file is cut ends who touches it: not twice
    operations.append(mapped)
end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        rnd.choice(operations)(path())
        done += 1
    except (OSError, ValueError):
        pass
print("done" if done > 100 else "done nothing: %d" % done)
