// SPDX-License-Identifier: Apache-2.0

// Volumes over many sandboxes and many files: kills at any moment of a load,
// crowds of clones, and a sandbox's memory.

package volume

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// churn makes, changes and removes files without an end, beside one process that
// says each number whose file is durable. First it says which are there, and that
// those are whole which are new since number SEEN, and CHECKS of the others.
const churn = `cat > /t.py <<'END'
import mmap, os, random, shutil
os.makedirs("/v/acked", exist_ok=True)
def content(n): return b"%d " % n * (n % 3000 + 1)
there = [int(name) for name in os.listdir("/v/acked") if not name.startswith("new")]
old = [n for n in there if n <= SEEN]
for n in random.sample(old, min(CHECKS, len(old))) + [n for n in there if n > SEEN]:
    assert open("/v/acked/%d" % n, "rb").read() == content(n), n
print("".join("have %d\n" % n for n in there), end="")
for worker in range(3):
    if os.fork(): continue
    d = "/v/churn%d" % worker
    shutil.rmtree(d, ignore_errors=True)
    os.mkdir(d)
    while True:
        a, b = ("%s/%d" % (d, random.randrange(60)) for _ in range(2))
        try:
            kind = random.randrange(9)
            if kind < 2: open(a, "ab").write(os.urandom(random.randrange(1, 100000)))
            elif kind == 2: os.rename(a, b)
            elif kind == 3: os.link(a, b)
            elif kind == 4: os.unlink(a)
            elif kind == 5: os.truncate(a, random.randrange(200000))
            elif kind == 6: os.makedirs(a + "d/e/f", exist_ok=True); os.symlink("x" * 100, a + "d/e/%d" % random.randrange(99))
            elif kind == 7: shutil.rmtree(a + "d")
            else:
                with open(a, "r+b") as f, mmap.mmap(f.fileno(), 0) as m: m[0:10] = b"0123456789"
        except (OSError, ValueError, IndexError): pass # a file is gone, or too short
        except BaseException as e: print("worker", worker, "ended:", repr(e)); raise
print("ready", flush=True)
folder = os.open("/v/acked", os.O_RDONLY)
n = max([int(k) for k in os.listdir("/v/acked") if k.isdigit()], default=0)
while True:
    n += 1
    with open("/v/acked/new", "wb", buffering=0) as f:
        f.write(content(n))
        os.fsync(f.fileno())
    os.rename("/v/acked/new", "/v/acked/%d" % n)
    os.fsync(folder)
    print(n, flush=True)
END
exec python3 -u /t.py`

// TestKilledUnderLoad kills sandboxes at moments of a load of changes. Each time
// the volume is whole once it is replayed, has all that was said to be durable,
// and the host has nothing left of the sandbox.
func TestKilledUnderLoad(t *testing.T) {
	rounds := 4
	if testbed.Nightly() {
		rounds = 1000
	}
	b := newBed(t)
	left := b.h.NothingLeft(t)
	path, acked, seen := b.path("v.ext4"), map[string]bool{}, 0
	for round := range rounds {
		checks := 300
		if round == rounds-1 {
			checks = 1 << 30
		}
		script := strings.NewReplacer("SEEN", strconv.Itoa(seen), "CHECKS", strconv.Itoa(checks)).Replace(churn)
		s := b.launch(script, "--mount", b.mount("v.ext4", "size=1g"))
		have := b.readHave(s)
		for n := range acked {
			if !have[n] {
				t.Fatalf("round %d: file %s was durable and is gone; %d are there", round, n, len(have))
			}
		}
		for name := range have {
			n, err := strconv.Atoi(name)
			if err != nil {
				t.Fatalf("round %d: the guest has file %q", round, name)
			}
			seen = max(seen, n)
		}
		s.killAfter(rand.IntN(60), acked)
		b.sweep()
		left()
		b.only("v.ext4")
		b.notMounted()
		if r := b.h.Rungv(t, nil, "volume", "fsck", "--replay", path); r.Code > 1 {
			t.Fatalf("round %d: %v", round, r)
		}
		if b.check(path); t.Failed() {
			t.Fatalf("round %d", round)
		}
		b.progress(round+1, rounds, "%d files durable, all there", len(acked))
	}
	if len(acked) == 0 {
		t.Error("no file was ever durable: the test shows nothing")
	}
}

// readHave reads what a script says that it has, until it is ready.
func (b *bed) readHave(s *sandbox) map[string]bool {
	b.Helper()
	have := map[string]bool{}
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			<-s.done
			b.Fatalf("the sandbox ended before it was ready: %s", s.stderr.String())
		}
		line = strings.TrimSpace(line)
		if line == "ready" {
			return have
		}
		have[strings.TrimPrefix(line, "have ")] = true
	}
}

// killAfter kills the launcher when it has said n lines more, and adds what was
// said to acked. A sandbox that says nothing is killed too, after a time.
func (s *sandbox) killAfter(n int, acked map[string]bool) {
	s.Helper()
	timer := time.AfterFunc(patience, func() { s.cmd.Process.Kill() })
	defer timer.Stop()
	for ; ; n-- {
		if n == 0 {
			s.cmd.Process.Kill()
		}
		line, err := s.out.ReadString('\n')
		if err != nil {
			break
		}
		said := strings.TrimSpace(line)
		if _, err := strconv.Atoi(said); err != nil {
			s.Errorf("the guest says %q: %s", said, s.stderr.String())
		}
		acked[said] = true
	}
	<-s.done
}

// notMounted checks that the host mounts nothing of the home's.
func (b *bed) notMounted() {
	b.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		b.Fatal(err)
	}
	if strings.Contains(string(mounts), b.h.Dir) {
		b.Errorf("mounts are left: %s", mounts)
	}
}

// episode finds page n of the golden file by its number in it, marks pages of its
// own, and looks at those of all the others: when it begins, and when it is told.
const episode = `exec python3 -u -c '
import mmap, os, signal, struct
ME, CLONES, PAGES = %d, %d, %d
f = os.open("/v/golden", os.O_RDWR)
# Not by f: a mapping that could be stored to makes every page that it reads its own.
m = mmap.mmap(os.open("/v/golden", os.O_RDONLY), PAGES * 4096, prot=mmap.PROT_READ)
def page(n): return struct.unpack_from("q", m, n * 4096)[0]
def own(k): return [(k * 8 + j) %% PAGES for j in range(8)]
mine = set(own(ME))
for n in mine:
    assert page(n) == n, (n, page(n))
    if n %% 2: struct.pack_into("q", mmap.mmap(f, 4096, offset=n * 4096), 0, -1 - ME)
    else: os.pwrite(f, struct.pack("q", -1 - ME), n * 4096)
open("/v/own", "w").write(str(ME))
def look(*_):
    for k in range(CLONES):
        for n in own(k): assert page(n) == (-1 - ME if n in mine else n), (n, page(n))
    for n in range(0, PAGES, max(1, PAGES // 500)):
        if n not in mine: assert page(n) == n, (n, page(n))
    assert open("/v/own").read() == str(ME) and sorted(os.listdir("/v")) == ["golden", "own"]
    print("whole")
signal.signal(signal.SIGUSR1, look)
look()
while True: signal.pause()
'`

// TestCrowdOfClones starts many clones of one golden volume at once. Each sees
// its own changes and nobody else's, takes what it changed and no more, and the
// golden volume's pages are in memory once, whoever reads them.
func TestCrowdOfClones(t *testing.T) {
	clones, pages := 8, 16<<20/4096
	if testbed.Nightly() {
		clones, pages = 200, 1900<<20/4096
	}
	b := newBed(t)
	golden := b.path("golden.ext4")
	b.must(fmt.Sprintf(`exec python3 -c '
import struct
with open("/v/golden", "wb") as f:
    run = bytearray(b"golden page file" * 65536)
    for n in range(%d):
        struct.pack_into("q", run, n %% 256 * 4096, n)
        if n %% 256 == 255: f.write(run)
'`, pages), "--mount", b.mount("golden.ext4", "size=2g"))
	before, left := b.hash(golden), b.h.NothingLeft(t)
	begun := time.Now()
	crowd := make([]*sandbox, clones)
	for k := range crowd {
		crowd[k] = b.launch(fmt.Sprintf(episode, k, clones, pages), "--mount", b.mount("golden.ext4", "clone=ephemeral"))
	}
	b.eachSays(crowd, "whole")
	t.Logf("%d clones of %d MiB: all have written and looked at what is there after %.1f s", clones, pages>>8, time.Since(begun).Seconds())
	for _, s := range crowd {
		if err := s.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	b.eachSays(crowd, "whole")
	for _, s := range crowd[:min(clones, 20)] {
		b.sharesBase(s, golden)
	}
	for _, s := range crowd {
		s.end(syscall.SIGKILL)
	}
	b.sweep()
	left()
	if b.hash(golden) != before {
		t.Error("the golden volume changed under its clones")
	}
	b.check(golden)
}

// eachSays waits until all say a line.
func (b *bed) eachSays(crowd []*sandbox, want string) {
	b.Helper()
	var wait sync.WaitGroup
	for k, s := range crowd {
		wait.Go(func() {
			if line, err := s.out.ReadString('\n'); strings.TrimSpace(line) != want {
				b.Errorf("clone %d says %q, %v: %s", k, line, err, s.stderr.String())
			}
		})
	}
	if wait.Wait(); b.Failed() {
		b.FailNow()
	}
}

// maxDeltaBytes is what a clone that changed eight pages may take: they, the
// journal's first blocks, and metadata of one new file.
const maxDeltaBytes = 2 << 20

// sharesBase checks that what a sandbox maps of its base is no copy, and that its
// own files hold little.
func (b *bed) sharesBase(s *sandbox, base string) {
	b.Helper()
	mapped, own := int64(0), int64(0)
	for _, pid := range descendants(b.T, s.cmd.Process.Pid) {
		for mapping := range mappings(pid, base) {
			private := kilobytes(mapping, "Private_Dirty:") + kilobytes(mapping, "Anonymous:")
			mapped += kilobytes(mapping, "Rss:")
			if private != 0 {
				b.Errorf("process %d has %d kB of its own of the base", pid, private)
			}
		}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			var st syscall.Stat_t
			target, _ := os.Readlink(fd)
			if !strings.HasPrefix(target, "/memfd:") && strings.HasSuffix(target, " (deleted)") && syscall.Stat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG {
				own = max(own, st.Blocks*512)
			}
		}
	}
	if mapped == 0 {
		b.Errorf("nothing of the base is mapped")
	}
	if own == 0 || own > maxDeltaBytes {
		b.Errorf("a clone takes %d bytes, want at most %d", own, maxDeltaBytes)
	}
}

// mappings yields the parts of a process' smaps that are about a file.
func mappings(pid int, path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
		if err != nil {
			return // It has ended, as processes of a guest do.
		}
		for _, part := range bytes.Split(data, []byte("VmFlags:")) {
			if text := string(part); strings.Contains(text, path) && !yield(text[strings.Index(text, path):]) {
				return
			}
		}
	}
}

// kilobytes is a field of a part of smaps or status.
func kilobytes(text, field string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n
		}
	}
	return 0
}

// descendants returns the processes that a process has started, and theirs.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var parent int
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		_, rest, _ := strings.Cut(string(data), ") ")
		if _, err := fmt.Sscanf(rest, "%s %d", new(string), &parent); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for next := children[pid]; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	return all
}

// comeAndGo makes and removes so many files in a directory, and says so often. In a
// sandbox's first moments nothing is collected: it waits until they are over.
const comeAndGo = `exec python3 -u -c '
import os, time
time.sleep(2)
for d, files in ("/v/d", %d), ("/root/d", %d):
    os.mkdir(d)
    for n in range(files):
        fd = os.open(d + "/file %%d" %% n, os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"x")
        os.close(fd)
        name = d + "/file %%d" %% n
        if n %% 2 and d == "/v/d":
            os.rename(name, d + "/other")
            name = d + "/other"
        os.unlink(name)
        if (n + 1) %% (files // 6) == 0: print(d, n + 1)
time.sleep(10000)
'`

// maxGrowthBytes is how much a sandbox may grow while files come and go: what
// the Go runtime keeps for itself goes up and down by some megabytes.
const maxGrowthBytes = 24 << 20

// TestMemoryDoesNotGrowWithFilesThatWere makes and removes a million files on a
// volume, and many on the container's root.
func TestMemoryDoesNotGrowWithFilesThatWere(t *testing.T) {
	onVolume, onRoot := 6000, 6000
	if testbed.Nightly() {
		onVolume, onRoot = 6*175_000, 6*25_000
	}
	b := newBed(t)
	s := b.launch(fmt.Sprintf(comeAndGo, onVolume, onRoot), "--mount", b.mount("v.ext4", "size=1g"))
	first := map[string]int64{}
	for range 2 * 6 {
		line, err := s.out.ReadString('\n')
		if err != nil {
			t.Fatalf("the guest ended: %v: %s", err, s.stderr.String())
		}
		dir, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		var now int64
		for _, pid := range testbed.AddressSpaces(descendants(t, s.cmd.Process.Pid)) {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			if err == nil {
				now += kilobytes(string(data), "Private_Dirty:") << 10
			}
		}
		t.Logf("%s: %s files were: %.1f MB", dir, count, float64(now)/1e6)
		if now == 0 {
			t.Fatal("no memory of the sandbox was seen")
		}
		if first[dir] == 0 {
			first[dir] = now
		} else if now > first[dir]+maxGrowthBytes {
			t.Errorf("%s: after %s files the sandbox holds %d bytes, in the beginning %d", dir, count, now, first[dir])
		}
	}
	s.end(syscall.SIGTERM)
	b.check(b.path("v.ext4"))
}
