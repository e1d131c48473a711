// SPDX-License-Identifier: Apache-2.0

// Package volume tests volumes as users have them: `rungv run` with -v and
// --mount, `rungv volume`, and the host's kernel and e2fsck on the files that
// come of it. What is inside a volume has tests beside the code; here guests,
// signals, crashes, and other programs' view of the files count.
package volume

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest: Debian with Python, which brings SQLite.
const image = "demo"

// sandboxTimeout ends a sandbox of a test that hangs.
const sandboxTimeout = 30 * time.Minute

// patience bounds a wait for a sandbox to do something.
const patience = time.Minute

var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// bed is a folder for volumes of the home's user.
type bed struct {
	*testing.T
	h     *testbed.Home
	dir   string
	image string
}

var beds atomic.Int64

func newBed(t *testing.T) *bed {
	t.Helper()
	h := home.Get(t)
	h.Image(t, image)
	b := &bed{t, h, h.Path(fmt.Sprintf("bed%d", beds.Add(1))), image}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.Chown(t, b.dir)
	t.Cleanup(func() { os.RemoveAll(b.dir) })
	return b
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// mount is the --mount of a volume on /v.
func (b *bed) mount(name string, more ...string) string {
	return strings.Join(append([]string{"type=volume,src=" + b.path(name) + ",dst=/v"}, more...), ",")
}

// sh runs a script in a sandbox with flags.
func (b *bed) sh(script string, flags ...string) testbed.Result {
	b.Helper()
	args := append([]string{"run", "--rm", "--network", "none"}, flags...)
	return b.h.Rungv(b.T, nil, append(args, b.image, "sh", "-c", script)...)
}

// must is sh for a script that has to succeed.
func (b *bed) must(script string, flags ...string) string {
	b.Helper()
	r := b.sh(script, flags...)
	if r.Code != 0 {
		b.Fatalf("%s: %v", script, r)
	}
	return r.Stdout
}

// sandbox is one that runs beside the test.
type sandbox struct {
	*bed
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
	done   chan error
}

// start starts a sandbox, and returns once its script has printed a line.
func (b *bed) start(script string, flags ...string) *sandbox {
	b.Helper()
	s := b.launch(script, flags...)
	line, err := s.out.ReadString('\n')
	if err != nil {
		<-s.done
		b.Fatalf("%s: said %q: %v: %s", script, line, err, s.stderr.String())
	}
	return s
}

// launch starts a sandbox and does not wait for anything.
func (b *bed) launch(script string, flags ...string) *sandbox {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), sandboxTimeout)
	b.Cleanup(cancel)
	args := append([]string{"run", "--rm", "--network", "none"}, flags...)
	s := &sandbox{bed: b, cmd: b.h.Command(ctx, append(args, b.image, "sh", "-c", script)...), done: make(chan error, 1)}
	s.cmd.Stderr = &s.stderr
	read, write, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { read.Close() })
	s.cmd.Stdout = write
	s.out = bufio.NewReader(read)
	err = s.cmd.Start()
	write.Close()
	if err != nil {
		b.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	b.Cleanup(func() { s.cmd.Process.Kill() })
	return s
}

// end sends a signal to the launcher and waits for it.
func (s *sandbox) end(sig syscall.Signal) {
	s.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
	select {
	case <-s.done:
	case <-time.After(patience):
		s.Fatalf("the launcher does not end after signal %v: %s", sig, s.stderr.String())
	}
}

// sweep has a verb look at the records of launchers that were killed: it takes
// them away.
func (b *bed) sweep() {
	b.Helper()
	b.h.MustRungv(b.T, "ps", "-a")
}

// removeVolumes removes volumes of the store at the end of the test.
func (b *bed) removeVolumes(names ...string) {
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if out, err := b.h.Command(ctx, append([]string{"volume", "rm", "-f"}, names...)...).CombinedOutput(); err != nil {
			b.Errorf("remove volumes: %v: %s", err, out)
		}
	})
}

// check has e2fsck look at a volume, which nobody has.
func (b *bed) check(path string) {
	b.Helper()
	if out, err := exec.Command(testbed.NeedCommand(b.T, "e2fsck"), "-fn", path).CombinedOutput(); err != nil {
		b.Errorf("e2fsck -fn %s: %v\n%s", filepath.Base(path), err, out)
	}
}

// progress says every so often how far a long test is, and at its end.
func (b *bed) progress(round, rounds int, format string, args ...any) {
	if round == rounds || round > 0 && round%20 == 0 {
		b.Logf("%d of %d rounds: %s", round, rounds, fmt.Sprintf(format, args...))
	}
}

// disk is what a file takes on the disk.
func (b *bed) disk(path string) int64 {
	b.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t).Blocks * 512
}

// hash is the digest of a file's data and of where it lies.
func (b *bed) hash(path string) string {
	b.Helper()
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	for off := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return fmt.Sprintf("%x", h.Sum(nil))
		}
		end, err2 := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil || err2 != nil {
			b.Fatal(err, err2)
		}
		fmt.Fprintf(h, "%d+%d:", data, end-data)
		if _, err := io.Copy(h, io.NewSectionReader(f, data, end-data)); err != nil {
			b.Fatal(err)
		}
		off = end
	}
}

// only checks what is in the bed's folder.
func (b *bed) only(names ...string) {
	b.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		b.Errorf("the folder holds %q, want %q", got, names)
	}
}

// TestGoldenVolume is the life of a golden volume: made by the first mount,
// filled by a guest, compacted by a graceful end, cloned for episodes that
// leave nothing, whichever way they end.
func TestGoldenVolume(t *testing.T) {
	b := newBed(t)
	left := b.h.NothingLeft(t)
	golden := b.path("golden.ext4")
	s := b.start(`trap 'exit 0' INT
		dd if=/dev/zero of=/v/scratch bs=1M count=64 2>/dev/null
		echo content > /v/file; rm /v/scratch
		echo ready; while :; do sleep 0.1; done`, "--mount", b.mount("golden.ext4"))
	s.end(syscall.SIGINT)
	b.only("golden.ext4")
	b.check(golden)
	n := b.disk(golden)
	if n > 4<<20 {
		t.Errorf("after its compaction the golden volume takes %d bytes", n)
	}
	if said := s.stderr.String(); !strings.Contains(said, golden+": ") || !strings.Contains(said, " on disk, ") {
		t.Errorf("whoever asked for the end is told %q of the compaction", said)
	}
	b.h.MustRungv(t, "volume", "compact", "--quiet", golden)
	if after := b.disk(golden); after != n {
		t.Errorf("the end has left something to be compacted: %d bytes of %d are enough", after, n)
	}
	before := b.hash(golden)

	out := b.must(`cat /v/file; echo mine >> /v/file; cat /v/file`, "--mount", b.mount("golden.ext4", "clone=ephemeral"))
	if out != "content\ncontent\nmine\n" {
		t.Errorf("an episode sees %q", out)
	}
	var episodes []*sandbox
	for k := range 4 {
		episodes = append(episodes, b.start(fmt.Sprintf(`echo %d > /v/own; cat /v/file; sleep 1000`, k), "--mount", b.mount("golden.ext4", "clone=ephemeral")))
	}
	if r := b.sh(`true`, "--mount", b.mount("golden.ext4")); r.Code != 125 || !strings.Contains(r.Stderr, "in use by container") {
		t.Errorf("a writer beside clones: %v", r)
	}
	for _, e := range episodes {
		e.end(syscall.SIGKILL)
	}
	b.only("golden.ext4")
	if b.hash(golden) != before {
		t.Error("the golden volume changed under its clones")
	}
	b.sweep()
	left()
	if out := b.must(`cat /v/file; ls /v`, "--mount", b.mount("golden.ext4", "readonly")); out != "content\nfile\n" {
		t.Errorf("the golden volume holds %q", out)
	}
	left()
}

// TestKilledAtOnce kills launchers at moments of their start: the locks go with
// the processes, and nothing is left but what was asked for.
func TestKilledAtOnce(t *testing.T) {
	b := newBed(t)
	b.must(`echo content > /v/file`, "--mount", b.mount("golden.ext4"))
	left := b.h.NothingLeft(t)
	rounds := 12
	if testbed.Nightly() {
		rounds = 1000
	}
	for k := range rounds {
		s := b.launch(`dd if=/dev/urandom of=/v/x bs=1M count=4 2>/dev/null; sync; sleep 1000`, "--mount", b.mount("golden.ext4", "clone=ephemeral"), "-v", "data:/d")
		time.Sleep(time.Duration(k%12) * 40 * time.Millisecond)
		s.end(syscall.SIGKILL)
	}
	b.only("golden.ext4")
	b.must(`cat /v/file`, "--mount", b.mount("golden.ext4"), "-v", "data:/d")
	b.check(b.path("golden.ext4"))
	b.check(b.h.Path("data", "gvx", "volumes", "data.ext4"))
	b.sweep()
	b.h.MustRungv(t, "volume", "rm", "data")
	left()
}

func TestKeptClone(t *testing.T) {
	b := newBed(t)
	b.must(`echo one > /v/f`, "--mount", b.mount("golden.ext4"))
	episode := b.mount("golden.ext4", "clone="+b.path("ep.delta"))
	b.must(`echo two >> /v/f`, "--mount", episode)
	if out := b.must(`cat /v/f`, "--mount", episode); out != "one\ntwo\n" {
		t.Errorf("the clone holds %q", out)
	}
	if out := b.must(`cat /v/f`, "--mount", b.mount("golden.ext4", "readonly")); out != "one\n" {
		t.Errorf("the base holds %q", out)
	}
	if r := b.sh(`true`, "--mount", b.mount("golden.ext4")); r.Code != 125 || !strings.Contains(r.Stderr, "ep.delta") {
		t.Errorf("a writer of a base with a clone: %v", r)
	}
	b.h.MustRungv(t, "volume", "fsck", b.path("ep.delta"))
	b.h.MustRungv(t, "volume", "commit", b.path("ep.delta"))
	b.only("golden.ext4")
	b.check(b.path("golden.ext4"))
	if out := b.must(`cat /v/f`, "--mount", b.mount("golden.ext4")); out != "one\ntwo\n" {
		t.Errorf("after the commit the base holds %q", out)
	}
	// A clone of a clone, made plain.
	b.h.MustRungv(t, "volume", "clone", b.path("golden.ext4"), b.path("a.delta"))
	b.must(`echo three >> /v/f`, "--mount", b.mount("a.delta", "clone="+b.path("b.delta")))
	b.h.MustRungv(t, "volume", "flatten", b.path("b.delta"), b.path("flat.ext4"))
	b.check(b.path("flat.ext4"))
	if out := b.h.MustRungv(t, "volume", "cat", b.path("flat.ext4")+":/f"); out != "one\ntwo\nthree\n" {
		t.Errorf("flattened it holds %q", out)
	}
}

func TestNamedVolumes(t *testing.T) {
	b := newBed(t)
	b.removeVolumes("web", "sized")
	b.must(`echo hello > /data/f; mkdir -p /data/sub/dir`, "-v", "web:/data")
	if out := b.must(`cat /data/f; touch /data/x 2>&1 || true`, "-v", "web:/data:ro"); !strings.HasPrefix(out, "hello\n") || !strings.Contains(out, "Read-only") {
		t.Errorf("read-only it says %q", out)
	}
	b.must(`test "$(stat -c %u:%g /data)" = 7:8 && df -B1 --output=size /data | tail -1 | awk '{exit !($1 < 200000000)}'`,
		"--mount", "type=volume,source=sized,destination=/data,size=128m,uid=7,gid=8,volume-label=a=b")
	if out := b.h.MustRungv(t, "volume", "inspect", "-f", "{{.Labels.a}} {{.Size}}", "sized"); out != "b 134217728\n" {
		t.Errorf("inspect: %q", out)
	}
	// A volume that goes with its container, one that exists below another, a
	// tmpfs, and a mount of the same place twice.
	out := b.must(`echo x > /w/x; mount | grep -c ' /w\| /data\| /t'; ls /data/sub`, "-v", "/w", "-v", "web:/data", "--mount", "type=tmpfs,dst=/t,tmpfs-size=1m")
	if out != "3\ndir\n" {
		t.Errorf("mounts: %q", out)
	}
	if r := b.sh(`true`, "-v", "web:/data", "--tmpfs", "/data"); r.Code != 125 || !strings.Contains(r.Stderr, "Duplicate mount point: /data") {
		t.Errorf("one place twice: %v", r)
	}
	s := b.start(`echo ready; sleep 1000`, "-v", "web:/data", "--name", "holder")
	r := b.sh(`true`, "-v", "web:/data")
	if r.Code != 125 || !strings.Contains(r.Stderr, "in use by container holder (") {
		t.Errorf("a second writer: %v", r)
	}
	if r := b.h.Rungv(t, nil, "volume", "rm", "web"); r.Code != 1 || !strings.Contains(r.Stderr, "volume is in use") {
		t.Errorf("rm of a volume in use: %v", r)
	}
	if out := b.h.MustRungv(t, "ps", "--format", "{{.Names}} {{.Mounts}}", "--filter", "volume=web"); out != "holder web\n" {
		t.Errorf("ps: %q", out)
	}
	if out := b.h.MustRungv(t, "inspect", "-f", "{{range .Mounts}}{{.Type}} {{.Name}} {{.Destination}} {{.RW}}{{end}}", "holder"); out != "volume web /data true\n" {
		t.Errorf("inspect: %q", out)
	}
	s.end(syscall.SIGKILL)
	b.must(`cat /data/f`, "-v", "web:/data")
	b.sweep()
}

// TestRunErrors: what is refused before anything is downloaded or started.
func TestRunErrors(t *testing.T) {
	b := newBed(t)
	junk := b.path("junk.ext4")
	if err := os.WriteFile(junk, []byte(strings.Repeat("junk", 5000)), 0o666); err != nil {
		t.Fatal(err)
	}
	b.h.Chown(t, junk)
	for mount, say := range map[string]string{
		b.mount("junk.ext4"):                                  "not an ext4 volume",
		b.mount("junk.ext4", "clone=ephemeral"):               "not an ext4 volume",
		b.mount("none.ext4", "clone=ephemeral"):               "no such volume",
		"type=volume,src=/nonexistent/x.ext4,dst=/v":          "directory is missing",
		"type=volume,src=/root/x.ext4,dst=/v":                 "permission denied",
		"type=bind,src=/nonexistent,dst=/v":                   "bind source path does not exist: /nonexistent",
		"type=volume,src=data":                                "target is required",
		"type=volume,src=data,dst=/v,size=1k":                 "size",
		"type=volume,src=data,dst=/v,durability=maybe":        "invalid durability",
		"type=volume,src=data,dst=/v,clone=ephemeral,size=1g": "leave size out",
		"type=volume,src=data,dst=/v,bogus=1":                 "unexpected key 'bogus'",
		"type=volume,src=data,dst=/v,tmpfs-size=1g":           "cannot mix 'tmpfs-size'",
		"type=volume,dst=/v,clone=ephemeral":                  "needs src=",
	} {
		if r := b.sh(`true`, "--mount", mount); r.Code != 125 || !strings.Contains(r.Stderr, say) {
			t.Errorf("%s: want %q: %v", mount, say, r)
		}
	}
	b.only("junk.ext4")
	if out := b.h.MustRungv(t, "volume", "ls", "-q"); out != "" {
		t.Errorf("what failed left volumes: %q", out)
	}
}

// treeListing prints what stat and the files of a directory say, but for what
// is placed over an image's files and for times of directories.
const treeListing = `cd /etc; own='-name hosts -o -name hostname -o -name resolv.conf -o -name mtab'
	find . -mindepth 1 -xdev ! -type d ! \( $own \) -printf '%p %y %m %U:%G %s %T@ %l %n\n' | sort
	find . -xdev -type d ! -name lost+found -printf '%p %m %U:%G\n' | sort
	find . -xdev -type f ! \( $own \) | sort | xargs cat | md5sum`

// TestNewVolumeBeginsWithTheImage: as docker, an empty volume gets what the
// image has at its place, and one that is not empty is left alone.
func TestNewVolumeBeginsWithTheImage(t *testing.T) {
	b := newBed(t)
	b.removeVolumes("etc", "empty", "owned")
	want := b.must(treeListing)
	if !strings.Contains(want, "./passwd f 644 0:0") {
		t.Fatalf("the listing shows too little:\n%s", want)
	}
	for _, round := range []string{"new", "again"} {
		if got := b.must(treeListing, "-v", "etc:/etc"); got != want {
			t.Errorf("%s: the volume holds\n%s\nthe image\n%s", round, got, want)
		}
	}
	b.h.MustRungv(t, "volume", "fsck", "etc")
	if out := b.must(`rm -r /etc/apt; ls -d /etc/apt 2>&1 || true`, "-v", "etc:/etc"); !strings.Contains(out, "No such") {
		t.Errorf("%q", out)
	}
	if out := b.must(`ls -d /etc/apt 2>&1 || true`, "-v", "etc:/etc"); !strings.Contains(out, "No such") {
		t.Errorf("a volume that is not empty was filled: %q", out)
	}
	if out := b.must(`ls /usr/share`, "-v", "empty:/usr/share:nocopy"); out != "" {
		t.Errorf("nocopy: %q", out)
	}
	// The owner of the image's directory, unless another is asked for.
	if out := b.must(`stat -c '%a %g' /var/mail`); out != b.must(`stat -c '%a %g' /var/mail`, "-v", "/var/mail") {
		t.Errorf("the image has %q", out)
	}
	if out := b.must(`stat -c %u:%g /var/mail`, "--mount", "type=volume,src=owned,dst=/var/mail,uid=5,gid=6"); out != "5:6\n" {
		t.Errorf("uid and gid: %q", out)
	}
}
