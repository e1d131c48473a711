// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// guest runs a script in a plain Debian sandbox and returns what it writes.
func guest(t *testing.T, script string, flags ...string) string {
	t.Helper()
	home := get(t).home
	args := append([]string{"run", "--rm", "--network", "none", "--privileged"}, flags...)
	result := home.Rungv(t, nil, append(args, home.Image(t, "demo"), "sh", "-c", script)...)
	if result.Code != 0 {
		t.Fatal(result)
	}
	return result.Stdout
}

// TestUnmountBelowSharedMounts unmounts what another namespace has a copy of,
// which engines do all the time on the shared root that docker:dind makes; a
// mount in use stays.
func TestUnmountBelowSharedMounts(t *testing.T) {
	got := guest(t, `
mount --make-rshared /
mkdir /a /b
mount -t tmpfs one /a
unshare --mount --propagation slave sh -c 'touch /ready; sleep 60' &
until [ -e /ready ]; do sleep 0.05; done
umount /a && echo unmounted
grep -c ' /a ' /proc/mounts
mount -t tmpfs two /b
cd /b
umount /b 2>&1 | grep -o 'busy'
grep -c ' /b ' /proc/mounts
cd /
mkdir /b/c
mount -t tmpfs three /b/c
umount /b 2>&1 | grep -o 'busy'
umount /b/c && umount /b && echo unmounted
`)
	if want := "unmounted\n0\nbusy\n1\nbusy\nunmounted\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFirstUserNamespaceHasLinuxsNumber keeps engines from taking a sandbox for a
// user namespace.
func TestFirstUserNamespaceHasLinuxsNumber(t *testing.T) {
	got := guest(t, `stat -L -c %i /proc/self/ns/user; readlink /proc/self/ns/user; unshare -U sh -c '[ $(stat -L -c %i /proc/self/ns/user) != 4026531837 ]' && echo another`)
	if want := "4026531837\nuser:[4026531837]\nanother\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// countSize tells how far a process has come that only ever adds to /count: one
// that writes it anew is found between the two steps of that, with nothing in
// the file, as often as not.
const countSize = "size() { stat -c %s /count; }\n"

// TestCgroupFreezer stops and continues the processes of a cgroup, and kills one
// that is frozen.
func TestCgroupFreezer(t *testing.T) {
	got := guest(t, countSize+`
cd /sys/fs/cgroup && mkdir -p x/y && cat x/cgroup.freeze
sh -c 'echo $$ > x/y/cgroup.procs; while :; do echo >> /count; done' &
until [ -s /count ]; do sleep 0.05; done
echo 1 > x/cgroup.freeze
cat x/cgroup.freeze; grep frozen x/cgroup.events
sleep 0.3; one=$(size); sleep 0.5; [ $(size) = $one ] && echo still
echo 0 > x/cgroup.freeze; grep frozen x/cgroup.events
until [ $(size) -gt $one ]; do sleep 0.05; done; echo on
echo 1 > x/cgroup.freeze
kill -9 $! && wait $!; echo $?
echo 2 2>/dev/null > x/cgroup.freeze || echo refused
rmdir x/y x && ls -d x 2>/dev/null || echo removed
`)
	if want := "0\n1\nfrozen 1\nstill\nfrozen 0\non\n137\nrefused\nremoved\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCgroupFreezerUnderContention has threads freeze and thaw a cgroup at once:
// ending a stop that had not begun ended the sandbox.
func TestCgroupFreezerUnderContention(t *testing.T) {
	home := get(t).home
	program := `
import os, threading, time
base = "/sys/fs/cgroup/x/"
os.mkdir(base)
children = []
for _ in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        open(base + "cgroup.procs", "w").write(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
while len(open(base + "cgroup.procs").readlines()) < 8:
    time.sleep(0.01)
def churn(state):
    fd = os.open(base + "cgroup.freeze", os.O_WRONLY)
    for _ in range(3000):
        os.write(fd, state)
threads = [threading.Thread(target=churn, args=(state,)) for state in (b"1", b"0", b"1", b"0")]
for thread in threads: thread.start()
for thread in threads: thread.join()
open(base + "cgroup.freeze", "w").write("0")
for child in children:
    os.kill(child, 15)
    print(os.waitpid(child, 0)[1])
`
	result := home.Rungv(t, nil, "run", "--rm", "--network", "none", "--privileged", home.Image(t, "demo"), "python3", "-c", program)
	if want := strings.Repeat("15\n", 8); result.Code != 0 || result.Stdout != want {
		t.Errorf("want %q: %v", want, result)
	}
}

// TestAFrozenProcessGoesOnElsewhere moves a process out of a frozen cgroup, and
// removes that.
func TestAFrozenProcessGoesOnElsewhere(t *testing.T) {
	got := guest(t, countSize+`
cd /sys/fs/cgroup && mkdir x y
sh -c 'echo $$ > x/cgroup.procs; while :; do echo >> /count; done' &
until [ -s /count ]; do sleep 0.05; done
echo 1 > x/cgroup.freeze
echo $! > y/cgroup.procs
one=$(size); until [ $(size) -gt $one ]; do sleep 0.05; done; echo on
echo $! > x/cgroup.procs; sleep 0.3; echo $! > y/cgroup.procs; rmdir x
one=$(size); until [ $(size) -gt $one ]; do sleep 0.05; done; echo on
`)
	if want := "on\non\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCgroupMemoryLimit has a cgroup's largest process killed, and those beside
// it not; its events say so, to who reads and to who watches.
func TestCgroupMemoryLimit(t *testing.T) {
	home := get(t).home
	program := `
import ctypes, mmap, os, subprocess, time
base = "/sys/fs/cgroup/x/"
os.mkdir(base)
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
assert libc.inotify_add_watch(watch, (base + "memory.events").encode(), 2) >= 0
def run(size):
    code = "import os, time; open('%scgroup.procs', 'w').write(str(os.getpid())); x = bytearray(b'x') * %d; time.sleep(4)" % (base, size)
    return subprocess.Popen(["python3", "-c", code])
open(base + "memory.max", "w").write(str(96 << 20))
small, beside, large = run(1 << 20), subprocess.Popen(["python3", "-c", "x = bytearray(b'x') * (200 << 20); import time; time.sleep(4)"]), run(300 << 20)
print(large.wait(), small.wait(), beside.wait())
print([line.strip() for line in open(base + "memory.events") if line.startswith("oom_kill")])
print(len(os.read(watch, 4096)) >= 16)
`
	result := home.Rungv(t, nil, "run", "--rm", "--network", "none", "--privileged", home.Image(t, "demo"), "python3", "-c", program)
	if want := "-9 0 0\n['oom_kill 1']\nTrue\n"; result.Code != 0 || result.Stdout != want {
		t.Errorf("want %q: %v", want, result)
	}
}

// TestCgroupFilesThatEnginesRead are there in every cgroup.
func TestCgroupFilesThatEnginesRead(t *testing.T) {
	got := guest(t, `cd /sys/fs/cgroup && mkdir x && cat cpuset.cpus.effective x/cpuset.cpus.effective x/cpuset.mems.effective && grep -c anon x/memory.stat`, "--cpus", "2")
	if want := "0-1\n0-1\n0\n3\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestOlderRuntimesFindBPF loads the empty packet filter by which runc up to 1.2
// learns whether there is bpf(2), and finds that it cannot be attached. What is
// loaded is bounded.
func TestOlderRuntimesFindBPF(t *testing.T) {
	home := get(t).home
	program := `
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
code = (ctypes.c_uint64 * 2)(0x00000000000000b7, 0x0000000000000095)
name = ctypes.create_string_buffer(b"MIT")
def bpf(command, attr):
    buffer = ctypes.create_string_buffer(attr, 120)
    return libc.syscall(321 if struct.calcsize("P") == 8 else 0, command, buffer, 120), ctypes.get_errno()
fd, _ = bpf(5, struct.pack("IIQQ", 8, 2, ctypes.addressof(code), ctypes.addressof(name)))
print(fd > 2)
long = (ctypes.c_uint64 * 4097)()
print(bpf(5, struct.pack("IIQQ", 15, 4096, ctypes.addressof(long), ctypes.addressof(name)))[0] > fd)
print(bpf(5, struct.pack("IIQQ", 15, 4097, ctypes.addressof(long), ctypes.addressof(name))))
# What the program asks with may be memory that cannot be written.
page = libc.mmap
page.restype = ctypes.c_void_p
page = page(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_size_t(0))
ctypes.memmove(page, struct.pack("IIQQ", 8, 2, ctypes.addressof(code), ctypes.addressof(name)), 24)
libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 1)
print(libc.syscall(321, 5, ctypes.c_void_p(page), 120) > fd)
print(bpf(8, struct.pack("IIII", 0, fd, 0, 0))[0])
`
	if testbed.Architecture != "amd64" {
		t.Skip("the program knows amd64's number of bpf(2)")
	}
	result := home.Rungv(t, nil, "run", "--rm", "--network", "none", "--privileged", home.Image(t, "demo"), "python3", "-c", program)
	if want := "True\nTrue\n(-1, 7)\nTrue\n-1\n"; result.Code != 0 || result.Stdout != want {
		t.Errorf("want %q: %v", want, result)
	}
}

// TestInterruptedOpenOfPipeKeepsItsPartner opens a named pipe for reading again
// and again while signals rain: a writer that opens, writes and closes at the
// moment of one must not be missed. `runc start` on a busy machine hung on that.
func TestInterruptedOpenOfPipeKeepsItsPartner(t *testing.T) {
	home := get(t).home
	program := `
import os, signal
os.mkfifo("/fifo")
rounds = 150
if os.fork() == 0:
    for i in range(rounds):
        # A reader that a signal has taken away in between is another matter.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        while True:
            fd = os.open("/fifo", os.O_WRONLY)
            try:
                os.write(fd, b"x")
                break
            except BrokenPipeError:
                pass
            finally:
                os.close(fd)
    os._exit(0)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0003)
got = 0
while got < rounds:
    # Like Go's runtime, Python opens again after a signal.
    with open("/fifo") as f:
        text = f.read()
    got += len(text)
signal.setitimer(signal.ITIMER_REAL, 0)
print(got)
`
	result := home.Rungv(t, nil, "run", "--rm", "--network", "none", home.Image(t, "demo"), "python3", "-c", program)
	if result.Code != 0 || result.Stdout != "150\n" {
		t.Error(result)
	}
}
