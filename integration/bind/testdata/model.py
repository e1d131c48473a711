# SPDX-License-Identifier: Apache-2.0
# Runs in the guest: the same random operations in two directories, one of which is
# the host's and one the guest's own, which have to answer alike.
import errno, os, random, stat, sys

one, two, seed, count, cached = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "cached" in sys.argv
modes = [0o600, 0o755, 0o4711, 0o444]
if "user" in sys.argv:  # what a user of the host writes to loses its set-user-id bit
    modes.remove(0o4711)
if "bare" in sys.argv:  # one without capabilities of any kind is held to modes
    modes = [0o755, 0o700]
rnd = random.Random(seed)
names = ["a", "b", "c", "d", "e"]


def path():
    return "/".join(rnd.choice(names) for _ in range(rnd.choice([1, 1, 1, 2, 2, 3])))


def write(root, p, flags, off, data):
    fd = os.open(root + p, os.O_RDWR | flags, 0o640)
    try:
        n = os.pwrite(fd, data, off) if not flags & os.O_APPEND else os.write(fd, data)
        return n, os.fstat(fd).st_size
    finally:
        os.close(fd)


def look(root, p):
    s = os.lstat(root + p)
    kind = stat.S_IFMT(s.st_mode)
    links = 0 if cached else s.st_nlink  # which gVisor does not count itself
    if kind == stat.S_IFDIR:
        return oct(s.st_mode), s.st_uid, sorted(os.listdir(root + p))
    if kind == stat.S_IFLNK:
        return s.st_uid, links, os.readlink(root + p)
    with open(root + p, "rb") as f:
        return oct(s.st_mode), s.st_uid, links, s.st_size, hash(f.read())


def operation():
    p, q = path(), path()
    while q == p:  # gVisor's own file system refuses to rename a directory to itself
        q = path()
    off, data = rnd.choice([0, 1, 5000, 100000]), bytes([rnd.randrange(256)]) * rnd.choice([0, 1, 4096, 70000])
    mode, size = rnd.choice(modes), rnd.choice([0, 3, 4096, 50000])
    times = (rnd.randrange(1 << 31), rnd.randrange(1 << 31))
    return rnd.choice([
        ("create", lambda r: write(r, p, os.O_CREAT | os.O_EXCL, off, data)),
        ("write", lambda r: write(r, p, os.O_CREAT, off, data)),
        ("append", lambda r: write(r, p, os.O_APPEND, 0, data)),
        ("rewrite", lambda r: write(r, p, os.O_TRUNC, 0, data)),
        ("truncate", lambda r: os.truncate(r + p, size)),
        ("mkdir", lambda r: os.mkdir(r + p, mode & 0o777)),
        ("mkdir", lambda r: os.mkdir(r + p, 0o755)),
        ("rmdir", lambda r: os.rmdir(r + p)),
        ("unlink", lambda r: os.unlink(r + p)),
        ("rename", lambda r: rename(r, p, q)),
        ("rename", lambda r: rename(r, p, q)),
        ("link", lambda r: os.link(r + p, r + q, follow_symlinks=False)),
        ("symlink", lambda r: os.symlink(q, r + p)),
        ("chmod", lambda r: os.chmod(r + p, mode)),
        ("utime", lambda r: (os.utime(r + p, times), os.stat(r + p).st_mtime)[1]),
        ("setxattr", lambda r: os.setxattr(r + p, "user.x", data[:100])),
        ("getxattr", lambda r: os.getxattr(r + p, "user.x")),
        ("look", lambda r: look(r, p)),
        ("look", lambda r: look(r, p)),
        ("look", lambda r: look(r, p)),
    ]), p, q


def same(root, p, q):
    try:
        return os.path.samestat(os.lstat(root + p), os.lstat(root + q))
    except OSError:
        return False


def rename(r, p, q):
    # Of two names of one file Linux keeps both, gVisor's own file system one.
    return same(r, p, q) or os.rename(r + p, r + q)


def answer(f, root):
    try:
        return f(root)
    except OSError as e:
        return errno.errorcode.get(e.errno, e.errno)


done = {}
for n in range(count):
    (name, f), p, q = operation()
    a, b = answer(f, one + "/"), answer(f, two + "/")
    if a != b:
        sys.exit("seed %d, operation %d, %s %s %s: %r in the host's directory, %r in the guest's own" % (seed, n, name, p, q, a, b))
    if not isinstance(a, str):
        done[name] = done.get(name, 0) + 1
# A workload in which nothing succeeds proves nothing.
assert len(done) >= 14 and min(done.values()) > 1, done
print("alike")
