// SPDX-License-Identifier: Apache-2.0

package bind

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestHostChanges: what the host changes the guest sees, at once.
func TestHostChanges(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		at := func(name string) string { return filepath.Join(dir, name) }
		s.write(t, at("f"), "one")
		g := s.guest(t, "-v", dir+":/b")
		g.want("open('/b/f').read()", "'one'")
		g.want("os.path.exists('/b/new')", "False")

		s.write(t, at("f"), "longer than one")
		g.want("open('/b/f').read()", "'longer than one'")
		g.want("os.stat('/b/f').st_size", "15")
		s.write(t, at("f"), "1")
		g.want("open('/b/f').read()", "'1'")
		s.write(t, at("new"), "new")
		g.want("open('/b/new').read()", "'new'")
		g.want("sorted(os.listdir('/b'))", "['f', 'new']")

		// Another file of the same name; the guest's open one stays what it is.
		g.want("f = open('/b/f')", "None")
		s.write(t, at("other"), "other")
		if err := os.Rename(at("other"), at("f")); err != nil {
			t.Fatal(err)
		}
		g.want("open('/b/f').read()", "'other'")
		g.want("f.read()", "'1'")
		if err := os.Rename(at("f"), at("moved")); err != nil {
			t.Fatal(err)
		}
		g.want("os.path.exists('/b/f'), open('/b/moved').read()", "(False, 'other')")
		if err := os.Remove(at("moved")); err != nil {
			t.Fatal(err)
		}
		g.want("open('/b/moved')", "error ENOENT")

		// A file becomes a directory, a directory a link.
		if err := os.Mkdir(at("moved"), 0o755); err != nil {
			t.Fatal(err)
		}
		s.own(t, at("moved"))
		g.want("os.listdir('/b/moved')", "[]")
		if err := os.Remove(at("moved")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("new", at("moved")); err != nil {
			t.Fatal(err)
		}
		g.want("os.readlink('/b/moved'), open('/b/moved').read()", "('new', 'new')")

		if err := os.Chmod(at("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		g.want("oct(os.stat('/b/new').st_mode)", "'0o100600'")
		if err := unix.UtimesNano(at("new"), []unix.Timespec{{Sec: 1}, {Sec: 5}}); err != nil {
			t.Fatal(err)
		}
		g.want("os.stat('/b/new').st_mtime", "5.0")
	})
}

// TestGuestChanges: what the guest changes is on the host when its call returns.
func TestGuestChanges(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		at := func(name string) string { return filepath.Join(dir, name) }
		same := func(name, want string) {
			t.Helper()
			if got := read(t, at(name)); got != want {
				t.Errorf("the host's %s is %q, want %q", name, got, want)
			}
		}
		g := s.guest(t, "-v", dir+":/b")
		g.want("f = open('/b/f', 'wb', buffering=0)", "None")
		g.want("f.write(b'hello')", "5")
		same("f", "hello")
		g.want("f.truncate(2)", "2")
		same("f", "he")
		g.want("os.write(os.open('/b/f', os.O_WRONLY|os.O_APPEND), b'y')", "1")
		same("f", "hey")
		g.want("os.rename('/b/f', '/b/g')", "None")
		same("g", "hey")
		g.want("os.link('/b/g', '/b/h')", "None")
		same("h", "hey")
		g.want("os.unlink('/b/g')", "None")
		if _, err := os.Lstat(at("g")); !os.IsNotExist(err) {
			t.Errorf("g: %v", err)
		}
		g.want("os.symlink('/etc/passwd', '/b/l')", "None")
		if to, err := os.Readlink(at("l")); to != "/etc/passwd" {
			t.Errorf("link to %q, %v", to, err)
		}
		g.want("os.makedirs('/b/d/e')", "None")
		g.want("os.chmod('/b/d', 0o701)", "None")
		if st, err := os.Stat(at("d")); err != nil || st.Mode() != os.ModeDir|0o701 {
			t.Errorf("d: %v, %v", st.Mode(), err)
		}
	})
}

// TestAppend: both sides append to one file, and nothing is lost.
func TestAppend(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		path := filepath.Join(dir, "log")
		s.write(t, path, "")
		g := s.guest(t, "-v", dir+":/b")
		g.want("f = os.open('/b/log', os.O_WRONLY|os.O_APPEND)", "None")
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want := ""
		for i := range 20 {
			host, guest := "h"+strconv.Itoa(i)+"\n", "g"+strconv.Itoa(i)+"\n"
			if _, err := f.WriteString(host); err != nil {
				t.Fatal(err)
			}
			g.want("os.write(f, "+strconv.Quote(guest)+".encode())", strconv.Itoa(len(guest)))
			want += host + guest
		}
		if got := read(t, path); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// TestMappings: a mapping on one side is the file of the other; one that the host
// cuts off ends who touches it, not the sandbox.
func TestMappings(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		path := filepath.Join(dir, "m")
		s.write(t, path, string(make([]byte, 3*4096)))
		g := s.guest(t, "-v", dir+":/b")
		g.want("f = open('/b/m', 'r+b')", "None")
		g.want("m = mmap.mmap(f.fileno(), 0)", "None")
		g.want("m[4096:4100]", `b'\x00\x00\x00\x00'`)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("host"), 4096); err != nil {
			t.Fatal(err)
		}
		g.want("m[4096:4100]", `b'host'`)
		g.want("m[8192:8197] = b'guest'", "None")
		buf := make([]byte, 5)
		if _, err := f.ReadAt(buf, 8192); err != nil || string(buf) != "guest" {
			t.Errorf("the host reads %q, %v", buf, err)
		}
		// A private mapping keeps what was written to it.
		g.want("p = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE)", "None")
		g.want("p[4096:4100] = b'mine'", "None")
		if _, err := f.WriteAt([]byte("HOST"), 4096); err != nil {
			t.Fatal(err)
		}
		g.want("p[4096:4100], m[4096:4100]", `(b'mine', b'HOST')`)

		if err := f.Truncate(4096); err != nil {
			t.Fatal(err)
		}
		// In a child: SIGBUS ends it.
		g.want("subprocess.run([sys.executable, '-c', 'import mmap; f=open(\"/b/m\",\"r+b\"); f.truncate(8192); m=mmap.mmap(f.fileno(),8192); m[5000]; f.truncate(4096); m[5000]']).returncode", "-7")
		g.want("pid = os.fork() or (m[9000] and 0) or os._exit(0)", "None")
		g.want("os.waitpid(pid, 0)[1] if pid else os._exit(9)", "7")
		g.want("os.stat('/b/m').st_size, m[0]", "(4096, 0)")
	})
}

// TestBothAtOnce: two containers change one directory at random at the same time,
// each for the other what the host is. What each sees meanwhile is nobody's to say;
// that both go on, and see the same afterwards as the host, is.
func TestBothAtOnce(t *testing.T) {
	seconds := "5"
	if os.Getenv("GVX_NIGHTLY") != "" {
		seconds = "60"
	}
	sides(t, func(t *testing.T, s *side) {
		dir, chaos := s.dir(t), s.program(t, "chaos.py")
		const list = `find . -printf "%p %y %l\n" | sort`
		results := make(chan testbed.Result, 2)
		for seed := range 2 {
			// Three processes each: gVisor's client has races with itself.
			script := fmt.Sprintf("for i in 1 2; do python3 /chaos.py /b %d$i %s > /dev/null & done; python3 /chaos.py /b %d %s && wait && sleep 3 && cd /b && %s", seed, seconds, seed, seconds, list)
			go func() {
				results <- s.run(t, "-v", dir+":/b", "-v", chaos+":/chaos.py:ro", image, "sh", "-c", script)
			}()
		}
		one, two := <-results, <-results
		cmd := s.home.CommandAs(t.Context(), "sh", "-c", list)
		cmd.Dir, cmd.SysProcAttr = dir, nil
		want := "done\n" + testbed.Run(t, cmd, nil).Stdout
		for _, r := range []testbed.Result{one, two} {
			if r.Code != 0 || r.Stdout != want {
				t.Errorf("%v\nand the host sees\n%s", r, want)
			}
		}
		if strings.Count(want, "\n") < 5 {
			t.Errorf("hardly anything was done: %q", want)
		}
	})
}
