// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMemoryLimit: a guest above its limit is killed, and that it was the limit
// is on record.
func TestMemoryLimit(t *testing.T) {
	h := getHome(t)
	name := newName(t, h)
	result := h.Rungv(t, nil, "run", "--name", name, "--network", "none", "-m", "96m", image,
		"python3", "-c", "held = bytearray(400 << 20)\nheld[::4096] = b'x' * len(held[::4096])\nprint('survived')")
	if result.Code != 137 {
		t.Errorf("exit code of a guest above its memory limit, want 137: %v", result)
	}
	if state := inspect(t, h, name); !state.State.OOMKilled || state.State.ExitCode != 137 {
		t.Errorf("inspect: %+v, want OOMKilled and 137", state.State)
	}
}

// TestMemoryLimitSparesOthers: the largest process is killed, the rest lives.
func TestMemoryLimitSparesOthers(t *testing.T) {
	output := mustSh(t, `
python3 -c 'held = bytearray(400 << 20); held[::4096] = b"x" * len(held[::4096]); print("survived")' || echo "child $?"
echo still here`, "-m", "96m")
	// A shell reports the death of its child on standard error, so that the
	// output is only this.
	if output != "child 137\nstill here" {
		t.Errorf("output %q", output)
	}
}

// TestMemoryBelowLimit: most of what is allowed can be used, and the guest is
// told how much there is.
func TestMemoryBelowLimit(t *testing.T) {
	output := mustSh(t, `python3 -c 'held = bytearray(128 << 20); held[::4096] = b"x" * len(held[::4096]); print(len(held))'; awk '/MemTotal/ { print $2 }' /proc/meminfo`, "-m", "256m")
	lines := strings.Fields(output)
	if len(lines) != 2 || lines[0] != strconv.Itoa(128<<20) {
		t.Fatalf("output %q", output)
	}
	if total, err := strconv.Atoi(lines[1]); err != nil || total > 256<<10 {
		t.Errorf("the guest is told of %s KiB, its limit is %d", lines[1], 256<<10)
	}
}

// burn prints the processor seconds that the guest gets in burnSeconds on the
// clock.
const (
	burnSeconds = 3
	burn        = `python3 -c '
import time
begin, end = time.process_time(), time.monotonic() + 3
while time.monotonic() < end: pass
print(time.process_time() - begin)'`
)

// TestCPULimit compares what a limited guest gets with what an unlimited one
// gets in the same run: a busy machine slows both.
func TestCPULimit(t *testing.T) {
	seconds := func(flags ...string) float64 {
		t.Helper()
		value, err := strconv.ParseFloat(mustSh(t, burn, flags...), 64)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	const limit = 0.25
	free, limited := seconds(), seconds("--cpus", fmt.Sprint(limit))
	t.Logf("processor seconds in %d s: %.2f unlimited, %.2f with --cpus %v", burnSeconds, free, limited, limit)
	// Half of a limit's worth is the tolerance: enforcement is by periods.
	if limited > burnSeconds*limit*1.5 {
		t.Errorf("a guest limited to %v processors used %.2f s in %d s", limit, limited, burnSeconds)
	}
	if limited > free*0.75 {
		t.Errorf("the limit makes no difference: %.2f s limited, %.2f s free", limited, free)
	}
}

// TestCPULimitOfMany: the limit holds for all processes together.
func TestCPULimitOfMany(t *testing.T) {
	output := mustSh(t, strings.Repeat("("+burn+") &\n", 4)+"wait", "--cpus", "0.5")
	var sum float64
	for word := range strings.FieldsSeq(output) {
		value, err := strconv.ParseFloat(word, 64)
		if err != nil {
			t.Fatalf("output %q: %v", output, err)
		}
		sum += value
	}
	t.Logf("four processes used %.2f processor seconds in about %d s at --cpus 0.5", sum, burnSeconds)
	// They start one by one: what they measure is a little more than that.
	if sum > burnSeconds*0.5*2 {
		t.Errorf("four processes limited to 0.5 processors together used %.2f s in %d s", sum, burnSeconds)
	}
}

// TestPidsLimit: a fork bomb ends at the limit, and the sandbox goes on.
func TestPidsLimit(t *testing.T) {
	output := mustSh(t, `python3 -c '
import os, time
made = 0
try:
	while made < 200:
		if os.fork() == 0:
			time.sleep(1000)
		made += 1
except OSError as e:
	print("refused:", os.strerror(e.errno), made < 40)
'; cat /sys/fs/cgroup/pids.max; kill -9 -1 2>/dev/null; echo still here`, "--pids-limit", "40")
	if !strings.HasPrefix(output, "refused: Resource temporarily unavailable True\n40\n") {
		t.Errorf("output %q", output)
	}
}

// TestGuestCannotKillSandbox: rm -rf / and a fork bomb stay inside.
func TestGuestCannotKillSandbox(t *testing.T) {
	h := getHome(t)
	left := h.NothingLeft(t)
	result := h.Rungv(t, nil, "run", "--rm", "--network", "none", "--privileged", image, "sh", "-c", "rm -rf --no-preserve-root / 2>/dev/null; echo gone")
	if !strings.Contains(result.Stdout, "gone") {
		t.Errorf("rm -rf /: %v", result)
	}
	if got := mustSh(t, "ls /bin/sh"); got != "/bin/sh" {
		t.Errorf("the image was changed: %q", got)
	}
	left()
}

// TestSocketBuffersCountAsMemory: what waits in sockets is in the Sentry's own
// heap, and counts against the guest's limit all the same.
func TestSocketBuffersCountAsMemory(t *testing.T) {
	result := sh(t, `exec python3 -c '
import socket
held = []
while len(held) < 6000:
    a, b = socket.socketpair()
    a.setblocking(False)
    held.append((a, b))
    try:
        while True: a.send(b"x" * 65536)
    except BlockingIOError: pass
print("held", len(held))'`, "-m", "64m", "--ulimit", "nofile=65536")
	if result.Code != 137 {
		t.Errorf("a guest of 64 MiB filled sockets with a gigabyte and ended with %d: %s", result.Code, result.Stdout)
	}
}

// TestSizesThatProgramsReckonWith: without limits memory and file systems look
// as large as the host's, and neither 2 GiB nor 8 EiB.
func TestSizesThatProgramsReckonWith(t *testing.T) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	total := info.Totalram * uint64(info.Unit) / 1024
	out := mustSh(t, `awk '/MemTotal/ { print $2 }' /proc/meminfo; stat -f -c '%S %b' / /scratch | awk '{ print ($1 * $2 < 1e16) }'; readlink /etc/mtab`, "--tmpfs", "/scratch")
	if want := fmt.Sprintf("%d\n1\n1\n/proc/mounts", total); strings.TrimSpace(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// throttledWaits waits for events while the sandbox is stopped again and again: by all
// calls there are, with a time and without, and until a signal comes.
const throttledWaits = `
import ctypes, os, select, signal, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
busy = []
for _ in range(3):
    busy.append(os.fork())
    while not busy[-1]: pass
ready, event = select.epoll(), (ctypes.c_char * 16)()
def wait(millis): return libc.epoll_wait(ready.fileno(), event, 1, millis)
def pwait(millis): return libc.epoll_pwait(ready.fileno(), event, 1, millis, None)
def pwait2(millis):
    ts = (ctypes.c_long * 2)(millis // 1000, millis % 1000 * 1000000)
    return libc.syscall(441, ready.fileno(), event, 1, None if millis < 0 else ts, None, 0)
for call in wait, pwait, pwait2:
    for _ in range(2):
        began = time.monotonic()
        n = call(1500)
        took = time.monotonic() - began
        if n or took < 1.5: sys.stdout.write("%s: %d after %.2f s, error %d\n" % (call.__name__, n, took, ctypes.get_errno()))
    out, into = os.pipe()
    ready.register(out, select.EPOLLIN)
    threading.Timer(1.5, os.write, (into, b"x")).start()
    n = call(-1)
    if n != 1: sys.stdout.write("%s without a limit: %d, error %d\n" % (call.__name__, n, ctypes.get_errno()))
    ready.unregister(out)
    handled = []
    signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
    signal.siginterrupt(signal.SIGALRM, False)
    for k in range(10): # Each later than a stop can last that comes before the wait.
        handled.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.5 + 0.02 * k, 1)
        n = call((-1, 60000)[k % 2])
        signal.setitimer(signal.ITIMER_REAL, 0)
        if n != -1 or ctypes.get_errno() != 4: sys.stdout.write("%s, a signal with a handler: %d, error %d\n" % (call.__name__, n, ctypes.get_errno()))
        if len(handled) != 1: sys.stdout.write("%s was ended by the %dth signal\n" % (call.__name__, len(handled)))
for pid in busy: os.kill(pid, signal.SIGKILL)
print("done")
`

// TestAWaitForEventsGoesOnUnderALimit: to be stopped for a moment is no signal, which
// would end a wait, and a signal that comes at such a moment ends it all the same.
func TestAWaitForEventsGoesOnUnderALimit(t *testing.T) {
	r := getHome(t).Rungv(t, nil, "run", "--rm", "--network", "none", "--cpus", "0.2", image, "python3", "-c", throttledWaits)
	if r.Code != 0 || r.Stdout != "done\n" {
		t.Errorf("%v", r)
	}
}
