// SPDX-License-Identifier: Apache-2.0

// What mounts are made on, and how they look, beside runc's.

package oci

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// bothBundles runs a script with rungv and with runc in bundles that prepare changes,
// their roots too, and compares what it wrote.
func bothBundles(t *testing.T, script string, prepare func(*testing.T, *testbed.Bundle)) string {
	t.Helper()
	written := map[string]string{}
	for _, runtime := range []string{"runc", "rungv"} {
		b := newBundle(t, runtime)
		prepare(t, b)
		output, code := shell(t, b, script)
		written[runtime] = fmt.Sprintf("%s(%d)", output, code)
	}
	if written["rungv"] != written["runc"] {
		t.Errorf("rungv:\n%s\nrunc:\n%s", written["rungv"], written["runc"])
	}
	return written["rungv"]
}

func rootOf(b *testbed.Bundle) string { return filepath.Join(b.Dir, "rootfs") }

// TestMountsOnDanglingLinks: a mount on a link of the image's that leads to nothing is
// where that leads, within the root.
func TestMountsOnDanglingLinks(t *testing.T) {
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "file"), []byte("the host's\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	output := bothBundles(t, "cat /way/there/deep/file /one/name; ls /far/off/dir; cat /climbed", func(t *testing.T, b *testbed.Bundle) {
		for link, to := range map[string]string{
			"jump": "/way/there", "etc/through": "/jump/deep/file", "etc/last": "/one/name", "etc/directory": "../far/off/dir",
			"etc/climb": "../../../../climbed",
		} {
			if err := os.Symlink(to, filepath.Join(rootOf(b), link)); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(source, "file")
		for target, from := range map[string]string{"/etc/through": file, "/etc/last": file, "/etc/directory": source, "/etc/climb": file} {
			b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: target, Source: from, Options: []string{"bind"}})
		}
	})
	if want := strings.Repeat("the host's\n", 2) + "file\nthe host's\n(0)"; output != want {
		t.Errorf("%q, want %q", output, want)
	}
}

// TestProcOnALink is refused: what comes after would look for it there.
func TestProcOnALink(t *testing.T) {
	for _, runtime := range []string{"runc", "rungv"} {
		for _, name := range []string{"proc", "sys"} {
			b := newBundle(t, runtime)
			if err := os.Remove(filepath.Join(rootOf(b), name)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/tmp", filepath.Join(rootOf(b), name)); err != nil {
				t.Fatal(err)
			}
			b.Spec.Process.Args = []string{"true"}
			if _, err := create(t, b); err == nil || !strings.Contains(err.Error(), "must be mounted on ordinary directory") {
				t.Errorf("%s: /%s on a link: %v", runtime, name, err)
			}
		}
	}
}

// TestModesOfTmpfs: a tmpfs without a mode has the covered directory's, or where there
// is none that of every tmpfs.
func TestModesOfTmpfs(t *testing.T) {
	script := `for d in covered new given; do stat -c %a /$d; grep -o " /$d tmpfs .*" /proc/mounts | grep -o 'mode=[0-7]*' || echo none; done`
	output := bothBundles(t, script, func(t *testing.T, b *testbed.Bundle) {
		covered := filepath.Join(rootOf(b), "covered")
		if err := os.Mkdir(covered, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(covered, 0o710); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"covered", "new", "given"} {
			m := specs.Mount{Destination: "/" + name, Type: "tmpfs", Source: "tmpfs"}
			if name == "given" {
				m.Options = []string{"mode=1500"}
			}
			b.Spec.Mounts = append(b.Spec.Mounts, m)
		}
	})
	if want := "710\nmode=710\n1777\nnone\n1500\nmode=1500\n(0)"; output != want {
		t.Errorf("%q, want %q", output, want)
	}
}

// TestOptionsOfTheRoot: the root keeps nosuid and nodev of the host's mount that it is
// on, writable or not.
func TestOptionsOfTheRoot(t *testing.T) {
	for _, readonly := range []bool{false, true} {
		script := `o=,$(awk '$5 == "/" { print $6 }' /proc/self/mountinfo),; for f in nosuid nodev noexec ro; do case $o in *,$f,*) echo $f ;; esac; done`
		output := bothBundles(t, script, func(t *testing.T, b *testbed.Bundle) {
			root := rootOf(b)
			if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
				t.Fatal(err)
			}
			b.Spec.Root.Readonly = readonly
		})
		want := "nosuid\nnodev\n"
		if readonly {
			want += "ro\n"
		}
		if output != want+"(0)" {
			t.Errorf("read-only %t: %q, want %q", readonly, output, want)
		}
	}
}

// TestGroupOfATerminal: a terminal belongs to its user, and to the group that the
// bundle mounts devpts for.
func TestGroupOfATerminal(t *testing.T) {
	reapOrphans(t)
	for _, runtime := range []string{"runc", "rungv"} {
		b := newBundle(t, runtime)
		b.Spec.Process.Terminal = true
		b.Spec.Process.User = specs.User{UID: 1000, GID: 100}
		b.Spec.Process.Args = []string{"/bin/sh", "-c", "stat -c 'owner %u:%g.' /proc/self/fd/0 -L"}
		listener := consoleSocket(t)
		c, err := create(t, b, "--console-socket", listener.Addr().(*net.UnixAddr).Name)
		if err != nil {
			t.Fatal(err)
		}
		terminal := receiveTerminal(t, listener)
		c.start()
		text := ""
		buf := make([]byte, 4096)
		for deadline := time.Now().Add(patience); !strings.Contains(text, ".") && time.Now().Before(deadline); {
			n, err := terminal.Read(buf)
			text += string(buf[:n])
			if err != nil {
				break
			}
		}
		if !strings.Contains(text, "owner 1000:5.") {
			t.Errorf("%s: %q", runtime, text)
		}
		c.exitCode()
		must(t, b, "delete", c.id)
	}
}

// TestMaskedDirectoriesAreOne: they are the same empty directory, which nobody writes,
// and a mount in the place of one is not in that of another.
func TestMaskedDirectoriesAreOne(t *testing.T) {
	script := `set -- $(stat -c %d /srv /opt /media); [ $1 = $2 ] && [ $2 = $3 ] && echo one
		touch /srv/x 2>/dev/null || echo refused; mount -t tmpfs tmpfs /opt && touch /opt/x && ls /srv /media`
	output := bothBundles(t, script, func(t *testing.T, b *testbed.Bundle) {
		b.Spec.Linux.MaskedPaths = append(b.Spec.Linux.MaskedPaths, "/srv", "/opt", "/media")
		for _, set := range []*[]string{&b.Spec.Process.Capabilities.Bounding, &b.Spec.Process.Capabilities.Permitted, &b.Spec.Process.Capabilities.Effective} {
			*set = append(*set, "CAP_SYS_ADMIN")
		}
	})
	if want := "one\nrefused\n/media:\n\n/srv:\n(0)"; output != want {
		t.Errorf("%q, want %q", output, want)
	}
}

// TestNoExec: guests' programs are mapped from the host's files, which a file system
// that is mounted noexec does not let. A root there is refused, a volume or a
// directory is noexec inside.
func TestNoExec(t *testing.T) {
	b := newBundle(t, "rungv")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	tree := "rootfs:" + rootOf(b)
	run := func(args ...string) testbed.Result {
		return testbed.Run(t, exec.CommandContext(t.Context(), b.Runtime, args...), nil)
	}
	if r := run("--root", filepath.Join(dir, "root"), "run", "--rm", "--network", "none", tree, "true"); r.Code != 125 || !strings.Contains(r.Stderr, "noexec") {
		t.Errorf("an image store there: %v", r)
	}
	if err := os.Mkdir(filepath.Join(dir, "tree"), 0o777); err != nil {
		t.Fatal(err)
	}
	script := "cp /bin/true /there/true && echo copied; /there/true; echo $?"
	for _, flag := range []string{
		"--mount=type=volume,src=" + filepath.Join(dir, "v.ext4") + ",size=64m,dst=/there", "--volume=" + filepath.Join(dir, "tree") + ":/there",
	} {
		root := filepath.Join(b.Dir, "stores")
		if r := run("--root", root, "run", "--rm", "--network", "none", flag, tree, "sh", "-c", script); r.Code != 0 || r.Stdout != "copied\n126\n" {
			t.Errorf("%s: %v", flag, r)
		}
	}
	// A bundle's bind mount, as with runc.
	if got := bothBundles(t, "/there/true; echo $?", func(t *testing.T, b *testbed.Bundle) {
		b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: "/there", Type: "bind", Source: filepath.Join(dir, "tree"), Options: []string{"rbind"}})
	}); !strings.Contains(got, "126\n") {
		t.Errorf("a bind mount: %q", got)
	}
}
