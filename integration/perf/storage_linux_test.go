// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/integration/testbed"
)

// storageTimeout bounds one guest with all its rows, on a busy machine.
const storageTimeout = 30 * time.Minute

// storageRow is something measured on storage. Rates are better high, times low.
type storageRow struct {
	name, title, unit string
	isRate            bool
}

// storageWork is what developers' and agents' containers do on a disk, in the
// directory /w; what it reads comes from memory, on /tmp. It prints a line for
// each row: name and figure.
const storageWork = `exec python3 -u - <<'END'
import os, subprocess, time, zipfile
def sh(script): subprocess.run(["sh", "-eu", "-c", script], check=True, stdout=subprocess.DEVNULL)
def timed(name, script):
    begun = time.monotonic(); sh(script); print(name, time.monotonic() - begun)
os.environ.update(DEBIAN_FRONTEND="noninteractive", HOME="/tmp", GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a")
SECONDS = 2
def fio(name, field, options):
    out = subprocess.run("fio --name=j --directory=/w --filename=fio --size=128m --runtime=%d --time_based --ioengine=psync --minimal --terse-version=3 %s" % (SECONDS, options),
        shell=True, check=True, capture_output=True, text=True).stdout
    print(name, out.strip().split("\n")[-1].split(";")[field])
READ, WRITE = 7, 48 # the fields of operations per second

sh("mkdir -p /w; tar -C / --exclude=./proc --exclude=./sys --exclude=./tmp --exclude=./w --exclude=./dev -cf /tmp/system.tar .")
print("tar", os.path.getsize("/tmp/system.tar"))
timed("untar", "mkdir /w/system; tar -C /w/system -xf /tmp/system.tar")
sh("mkdir /w/system/tmp /w/system/proc /w/system/dev; : > /w/system/dev/null; rm /tmp/system.tar")
timed("apt", "cd /w/system; chroot . sh -euc 'apt-get -qq -o Dir::Log=/tmp update; apt-get -qq -o APT::Sandbox::User=root install -y --no-install-recommends tree jq file'")

for d in range(60):
    os.makedirs("/tmp/repo/%d" % d)
    for f in range(60): open("/tmp/repo/%d/%d" % (d, f), "w").write("".join("%d %d %d\n" % (d, f, n) for n in range(100)))
sh("cd /tmp/repo; git init -q .; git add .; git commit -qm x")
timed("git", "git clone -q --no-hardlinks /tmp/repo /w/repo; cd /w/repo; git status; echo x >> 5/5; git status; git commit -qam y")

def each(fn):
    begun = time.monotonic()
    for n in range(5000): fn("/w/many/%d" % n)
    return 5000 / (time.monotonic() - begun)
def make(name):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY); os.write(fd, b"x" * 1000); os.close(fd)
os.mkdir("/w/many")
print("create", each(make)); print("stat", each(os.stat)); print("unlink", each(os.unlink))

fio("randwrite", WRITE, "--rw=randwrite --bs=4k")
fio("randread", READ, "--rw=randread --bs=4k")
fio("seqwrite", WRITE, "--rw=write --bs=1m")
fio("fsync", WRITE, "--rw=write --bs=8k --fdatasync=1")

os.mkdir("/tmp/wheels")
for p in range(6):
    meta = "p%d-1.dist-info/" % p
    with zipfile.ZipFile("/tmp/wheels/p%d-1-py3-none-any.whl" % p, "w", zipfile.ZIP_DEFLATED) as z:
        names = ["p%d/m%d.py" % (p, m) for m in range(300)]
        for name in names: z.writestr(name, "def f(x):\n    return x + 1\n" * 40)
        z.writestr(meta + "METADATA", "Metadata-Version: 2.1\nName: p%d\nVersion: 1\n" % p)
        z.writestr(meta + "WHEEL", "Wheel-Version: 1.0\nGenerator: gvx\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(meta + "RECORD", "".join(n + ",,\n" for n in names + [meta + "METADATA", meta + "WHEEL", meta + "RECORD"]))
timed("pip", "TMPDIR=/w python3 -m pip install -q --no-compile --no-index --find-links /tmp/wheels --target /w/site p0 p1 p2 p3 p4 p5")
timed("remove", "rm -r /w/system /w/repo /w/site")
END`

var storageRows = []storageRow{
	{"untar", "untar of a Debian", "s", false},
	{"apt", "apt-get install, chrooted", "s", false},
	{"git", "git clone, status, commit", "s", false},
	{"create", "create, 1000 bytes", "/s", true},
	{"stat", "stat", "/s", true},
	{"unlink", "unlink", "/s", true},
	{"randwrite", "fio random write, 4K", "/s", true},
	{"randread", "fio random read, 4K", "/s", true},
	{"seqwrite", "fio write, 1M", "/s", true},
	{"fsync", "fio write and fdatasync, 8K", "/s", true},
	{"pip", "pip install, 600 files", "s", false},
	{"remove", "rm -r of all that", "s", false},
}

// storage is a runtime with a kind of storage, and its figures.
type storage struct {
	name    string
	run     func(t *testing.T, script string) testbed.Result
	figures map[string][]float64
}

// TestStorage measures work on a volume beside runsc's overlay, runsc on a
// directory of the host, and the kernel's own ext4 on a loop device under runc, in
// turn. It demands nothing.
func TestStorage(t *testing.T) {
	needBench(t)
	compareStorage(t, "full", storageWork, storageRows)
}

func compareStorage(t *testing.T, image, script string, rows []storageRow) {
	testbed.NeedRoot(t, "loop mounts")
	compareStorages(t, script, rows, "goals: 0.7 of runsc in memory, 2 of runsc on a host directory",
		volumeStorage(t, image, ""), volumeStorage(t, image, "process"),
		peerStorage(t, "runsc", image, "runsc, overlay", ""),
		peerStorage(t, "runsc", image, "runsc, host directory", storageDir(t)),
		peerStorage(t, "runc", image, "runc, ext4 on loop", loopStorage(t, "mkfs.ext4", "-q")))
}

// TestDirectoryRoot measures the same in the root of OCI bundles, which is a directory of
// the host, and what is written goes there: ours beside runsc and runc, in turn. It
// demands nothing.
func TestDirectoryRoot(t *testing.T) {
	needBench(t)
	h := getHome(t)
	compareStorages(t, storageWork, storageRows, "no goal",
		bundleStorage(t, "runc", "full", "rungv, directory", "", func(b *testbed.Bundle) { b.Runtime = h.Binary }),
		bundleStorage(t, "runsc", "full", "runsc, directory", "", func(b *testbed.Bundle) {
			b.Args = append(b.Args, "--network", "none", "--ignore-cgroups", "--overlay2", "none")
		}),
		bundleStorage(t, "runc", "full", "runc, directory", "", func(*testbed.Bundle) {}))
}

func compareStorages(t *testing.T, script string, rows []storageRow, goals string, contenders ...*storage) {
	n := 3
	for range n {
		for _, c := range contenders {
			result := c.run(t, script)
			if result.Code != 0 {
				t.Fatalf("%s: %v", c.name, result)
			}
			for line := range strings.Lines(result.Stdout) {
				name, figure, _ := strings.Cut(strings.TrimSpace(line), " ")
				if f, err := strconv.ParseFloat(figure, 64); err == nil {
					c.figures[name] = append(c.figures[name], f)
				}
			}
			t.Logf("%s: %s", c.name, strings.Join(strings.Fields(result.Stdout), " "))
		}
	}
	reportStorage(t, contenders, rows, n, goals)
}

// reportStorage prints medians, and how many times as fast as each other the
// first contender is.
func reportStorage(t *testing.T, contenders []*storage, rows []storageRow, n int, goals string) {
	t.Helper()
	head := []string{""}
	for i, c := range contenders {
		if head = append(head, c.name); i > 0 {
			head = append(head, "ratio")
		}
	}
	table := [][]string{head}
	for _, r := range rows {
		line := []string{r.title}
		ours := 0.0
		for i, c := range contenders {
			if len(c.figures[r.name]) != n {
				t.Fatalf("%s has %d figures of %q, want %d", c.name, len(c.figures[r.name]), r.name, n)
			}
			figure := slices.Sorted(slices.Values(c.figures[r.name]))[n/2]
			format := "%.2f %s"
			if r.isRate {
				format = "%.0f %s"
			}
			line = append(line, fmt.Sprintf(format, figure, r.unit))
			switch {
			case i == 0:
				ours = figure
			case r.isRate:
				line = append(line, fmt.Sprintf("%.2f", ours/figure))
			default:
				line = append(line, fmt.Sprintf("%.2f", figure/ours))
			}
		}
		table = append(table, line)
	}
	testbed.Report(t, fmt.Sprintf("work on storage: medians of %d rounds in turn; ratio: how many times as fast the first is (%s)", n, goals), table...)
}

// volumeStorage is rungv with a new volume each time.
func volumeStorage(t *testing.T, image, durability string) *storage {
	h := getHome(t)
	h.Image(t, image)
	c := &storage{name: "rungv, volume", figures: map[string][]float64{}}
	mount := "type=volume,src=" + h.Path("tmp", "storage.ext4") + ",dst=/w"
	if durability != "" {
		c.name += ", " + durability
		mount += ",durability=" + durability
	}
	c.run = func(t *testing.T, script string) testbed.Result {
		defer os.Remove(h.Path("tmp", "storage.ext4"))
		ctx, cancel := context.WithTimeout(t.Context(), storageTimeout)
		defer cancel()
		return testbed.Run(t, h.Command(ctx, "run", "--rm", "--network", "none", "--entrypoint", "", "--tmpfs", "/tmp:size=2g,exec", "--mount", mount, image, "sh", "-c", script), nil)
	}
	return c
}

// peerStorage is a peer whose guest has a directory of the host at /w, which is
// emptied each time, or else what is there in its root.
func peerStorage(t *testing.T, runtime, image, name, dir string) *storage {
	return bundleStorage(t, runtime, image, name, dir, func(b *testbed.Bundle) {
		if runtime == "runsc" {
			b.Args = append(b.Args, "--network", "none", "--ignore-cgroups")
		}
	})
}

// bundleStorage is peerStorage of a bundle that is changed.
func bundleStorage(t *testing.T, runtime, image, name, dir string, change func(*testbed.Bundle)) *storage {
	c := &storage{name: name, figures: map[string][]float64{}}
	c.run = func(t *testing.T, script string) testbed.Result {
		bundle := testbed.NewBundle(t, runtime, image)
		change(bundle)
		process := bundle.Spec.Process
		process.Args, process.Cwd = []string{"sh", "-c", script}, "/"
		process.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
		rights := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SETFCAP", "CAP_KILL", "CAP_SYS_CHROOT", "CAP_MKNOD"}
		process.Capabilities.Bounding, process.Capabilities.Effective, process.Capabilities.Permitted = rights, rights, rights
		bundle.Spec.Mounts = append(bundle.Spec.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"size=2g", "mode=1777"}})
		if dir != "" {
			bundle.Spec.Mounts = append(bundle.Spec.Mounts, specs.Mount{Destination: "/w", Type: "bind", Source: dir, Options: []string{"bind", "rw"}})
			defer emptyDir(t, dir)
		}
		ctx, cancel := context.WithTimeout(t.Context(), storageTimeout)
		defer cancel()
		return testbed.Run(t, bundle.Command(ctx, t), nil)
	}
	return c
}

func emptyDir(t *testing.T, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// storageDir is a directory on the host's disk.
func storageDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/var/tmp", "gvx-storage-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// loopStorage is a directory on a file system of the kernel's, in a file.
func loopStorage(t *testing.T, mkfs ...string) string {
	dir := storageDir(t)
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "at")
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = os.Truncate(file, 8<<30)
	}
	if err == nil {
		err = os.Mkdir(at, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{append(mkfs, file), {"mount", "-o", "loop", file, at}} {
		if out, err := exec.Command(testbed.NeedCommand(t, args[0]), args[1:]...).CombinedOutput(); err != nil {
			testbed.Missing(t, "%q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(at, 0); err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
	})
	return at
}
