// SPDX-License-Identifier: Apache-2.0

package bind

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestFiles runs what programs do with files, in a directory of the host.
func TestFiles(t *testing.T) {
	withBare(t, func(t *testing.T, s *side) {
		for name, mount := range map[string]string{"shared": "", "exclusive": ",exclusive"} {
			t.Run(name, func(t *testing.T) {
				dir := s.dir(t)
				out := s.must(t, "-v", s.program(t, "files.py")+":/files.py:ro", "--mount", "type=bind,src="+dir+",dst=/b"+mount, image, "python3", "/files.py", "/b")
				if out != "done" {
					t.Errorf("%s", out)
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
					t.Errorf("left on the host: %v, %v", left, err)
				}
			})
		}
	})
}

// TestGit clones, commits, packs, checks and removes a repository.
func TestGit(t *testing.T) {
	const full = "full" // has git
	git := testbed.NeedCommand(t, "git")
	s := &side{name: "user", home: home.Get(t)}
	s.uid, s.gid = s.home.UID, s.home.GID
	s.home.Image(t, full)
	dir := s.dir(t)
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(git, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	run("init", "-q", "-b", "main", "origin")
	for i := range 300 {
		path := filepath.Join(dir, "origin", fmt.Sprintf("d%d", i%17), fmt.Sprintf("f%d", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat(path, i+1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("-C", "origin", "add", "-A")
	run("-C", "origin", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")
	if err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		return errors.Join(err, os.Lchown(path, s.uid, s.gid))
	}); err != nil {
		t.Fatal(err)
	}
	script := `set -e; cd /b; git clone -q origin work; cd work; test -z "$(git status --short)"; echo more >> d1/f1; git add -A
git -c user.name=a -c user.email=a@b commit -qm two; git gc -q; git fsck --strict; git push -q origin main:pushed; cd ..
rm -rf work; ls; git -C origin show --stat --oneline pushed | tail -1`
	out := s.must(t, "-v", dir+":/b", full, "sh", "-c", script)
	if want := "origin\n 1 file changed, 1 insertion(+), 1 deletion(-)"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// TestOwners: as root, owners are the host's; as a user, the host's user is the
// container's.
func TestOwners(t *testing.T) {
	withBare(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		s.write(t, filepath.Join(dir, "mine"), "")
		script := `stat -c %u:%g /b/mine; touch /b/new; stat -c %u:%g /b/new; chown 1234:1234 /b/new; echo $?; stat -c %u:%g /b/new`
		owner := func(name string) string {
			st, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				return err.Error()
			}
			sys := st.Sys().(*syscall.Stat_t)
			return fmt.Sprintf("%d:%d", sys.Uid, sys.Gid)
		}
		me := fmt.Sprintf("%d:%d", s.uid, s.gid)
		for _, c := range []struct{ user, seen, made, after, refused, onHost string }{
			{"0:0", "0:0", "0:0", "0:0", "1", me},
			{"1000:1001", "1000:1001", "1000:1001", "1000:1001", "1", me},
		} {
			if s.uid == 0 {
				// Only root may give files away, and the guest's user is the host's.
				c.seen, c.onHost = "0:0", c.user
				if c.user == "0:0" {
					c.after, c.refused, c.onHost = "1234:1234", "0", "1234:1234"
				}
			}
			out := s.must(t, "-u", c.user, "-v", dir+":/b", image, "sh", "-c", script)
			if want := strings.Join([]string{c.seen, c.made, c.refused, c.after}, "\n"); out != want {
				t.Errorf("as %s: %q, want %q", c.user, out, want)
			}
			if got := owner("new"); got != c.onHost {
				t.Errorf("as %s: on the host it is %s, want %s", c.user, got, c.onHost)
			}
			if err := os.Remove(filepath.Join(dir, "new")); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestPermissions: guests without privileges are held to modes, and the host's
// user to what the host lets him.
func TestPermissions(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		s.write(t, filepath.Join(dir, "f"), "secret")
		if err := os.Chmod(filepath.Join(dir, "f"), 0o600); err != nil {
			t.Fatal(err)
		}
		// The guest's root is stopped by no mode of its own files.
		if err := os.WriteFile(filepath.Join(dir, "none"), nil, 0); err != nil {
			t.Fatal(err)
		}
		s.own(t, filepath.Join(dir, "none"))
		s.must(t, "-v", dir+":/b", image, "sh", "-ec", "cat /b/f; echo x > /b/none; cat /b/none; mkdir -m 0 /b/d; touch /b/d/x; rm -r /b/d")
		script := "cat /b/f; echo $?; echo x > /b/f; echo $?; chmod 666 /b/f; echo $?; rm /b/f; echo $?; touch /b/new; echo $?"
		result := s.run(t, "-v", dir+":/b", "--entrypoint", "setpriv", image, "--reuid", "4711", "--regid", "4711", "--clear-groups", "sh", "-c", script)
		if result.Stdout != "1\n2\n1\n1\n1\n" {
			t.Errorf("%v", result)
		}
		if got := read(t, filepath.Join(dir, "f")); got != "secret" {
			t.Errorf("the host's file is %q", got)
		}
		if s.uid == 0 {
			return
		}
		// What is not the user's is not the guest's root's either.
		foreign := filepath.Join(dir, "foreign")
		if err := os.WriteFile(foreign, []byte("root's"), 0o600); err != nil {
			t.Fatal(err)
		}
		result = s.run(t, "-v", dir+":/b", image, "sh", "-c", "stat -c %u /b/foreign; cat /b/foreign; echo $?; echo x >> /b/foreign; echo $?; chmod 666 /b/foreign; echo $?")
		if os.Geteuid() == 0 && result.Stdout != "65534\n1\n2\n1\n" {
			t.Errorf("%v", result)
		}
	})
}

// TestHostileTree: links, devices and set-id programs in a directory that guests
// get.
func TestHostileTree(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		secret := filepath.Join(s.dir(t), "secret")
		s.write(t, secret, "secret")
		for name, to := range map[string]string{"abs": secret, "up": "../../../../../../.." + secret, "self": "/proc/self/root" + secret, "dots": ".."} {
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		script := `for f in abs up self; do cat /b/$f; done; ls /b/dots/b | wc -l; ls -d /b/dots/etc/hosts
cd /b; ln -s ` + secret + ` mine; cat mine; mkdir d; cd d; ln -s / root; cat root` + secret + `; cat root/../..` + secret + `; cat /b/../..` + secret
		result := s.run(t, "-v", dir+":/b", image, "sh", "-c", script)
		if strings.Contains(result.Stdout, "secret") || !strings.Contains(result.Stdout, "4\n/b/dots/etc/hosts") {
			t.Errorf("%v", result)
		}
		// Devices: none made, none opened.
		node := filepath.Join(dir, "zero")
		isRoot := os.Geteuid() == 0
		if isRoot {
			if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(240, 77))); err != nil {
				t.Fatal(err)
			}
		}
		result = s.run(t, "--privileged", "-v", dir+":/b", image, "sh", "-c", "mknod /b/sda b 8 0; echo $?; mknod /b/kmem c 1 2; echo $?; head -c1 /b/zero; echo $?; chmod 4755 /b/d; ls /b")
		if !strings.HasPrefix(result.Stdout, "1\n1\n1\n") || strings.Contains(result.Stdout, "sda") {
			t.Errorf("%v", result)
		}
		for _, name := range []string{"sda", "kmem"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := read(t, secret); got != "secret" {
			t.Errorf("the file outside is %q", got)
		}
	})
}

// TestReadOnly: nothing changes, whatever a guest's root tries.
func TestReadOnly(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		s.write(t, filepath.Join(dir, "f"), "as it was")
		g := s.guest(t, "--privileged", "-v", dir+":/b:ro", "--mount", "type=bind,src="+filepath.Join(dir, "f")+",dst=/file,readonly")
		for _, line := range []string{
			"open('/b/f', 'w')", "open('/b/f', 'a')", "open('/b/new', 'w')", "os.unlink('/b/f')", "os.rename('/b/f', '/b/g')", "os.mkdir('/b/d')", "os.link('/b/f', '/b/g')",
			"os.symlink('x', '/b/g')", "os.chmod('/b/f', 0o777)", "os.truncate('/b/f', 0)", "os.utime('/b/f')", "os.setxattr('/b/f', 'user.a', b'x')", "open('/file', 'w')", "os.chmod('/file', 0)",
		} {
			g.want(line, "error EROFS")
		}
		// A guest may make its mount writable; the tree stays what it is.
		g.do("subprocess.run(['mount', '-o', 'remount,rw', '/b'], stderr=subprocess.DEVNULL).returncode")
		g.want("open('/b/f', 'w')", "error EROFS")
		g.want("open('/b/f').read()", "'as it was'")
		s.write(t, filepath.Join(dir, "f"), "as it is")
		g.want("open('/b/f').read(), open('/file').read()", "('as it is', 'as it is')")
	})
}
