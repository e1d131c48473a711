// SPDX-License-Identifier: Apache-2.0

package run

import (
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestFlags runs one small script per flag and compares its output.
func TestFlags(t *testing.T) {
	h := getHome(t)
	envFile := h.Path("tmp", "env-file")
	if err := os.WriteFile(envFile, []byte("# comment\nFROM_FILE=a b  c\nEMPTY=\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(envFile) })
	for _, test := range []struct {
		name   string
		flags  []string
		script string
		want   string
	}{
		{"env", []string{"-e", "A=1", "--env", "B=two words", "-e", "A=3"}, `echo "$A|$B"`, "3|two words"},
		{"env file", []string{"--env-file", envFile, "-e", "C=c"}, `echo "$FROM_FILE|${EMPTY-unset}|$C"`, "a b  c||c"},
		{"env of docker", nil, `echo "$HOME|$PATH|$HOSTNAME"`, "/root|/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin|" + "guest"},
		{"workdir", []string{"-w", "/made/for/this"}, `pwd; stat -c %a .`, "/made/for/this\n755"},
		{"user by name", []string{"-u", "www-data"}, `id -u; id -g; id -G; echo $HOME`, "33\n33\n33\n/var/www"},
		{"user by number", []string{"-u", "1234:5678"}, `id -u; id -g; echo $HOME`, "1234\n5678\n/"},
		{"user and group", []string{"-u", "www-data:daemon"}, `id -un; id -gn`, "www-data\ndaemon"},
		{"hostname", []string{"--hostname", "box.example.org"}, `hostname; cat /etc/hostname; grep -c box.example.org /etc/hosts`, "box.example.org\nbox.example.org\n1"},
		{"add-host", []string{"--add-host", "db:10.9.8.7"}, `getent hosts db | tr -s ' '`, "10.9.8.7 db"},
		{"dns", []string{"--dns", "10.1.2.3"}, `grep nameserver /etc/resolv.conf`, "nameserver 10.1.2.3"},
		{"read-only", []string{"--read-only", "--tmpfs", "/scratch"}, `touch /x 2>/dev/null || echo refused; touch /scratch/x /dev/shm/x && echo fine`, "refused\nfine"},
		{"tmpfs", []string{"--tmpfs", "/t:size=1m,mode=1770,noexec"}, `stat -f -c %T /t; stat -c %a /t; head -c 2000000 /dev/zero > /t/x 2>/dev/null || echo full; rm /t/x; cp /bin/true /t/; /t/true 2>/dev/null || echo noexec`, "tmpfs\n1770\nfull\nnoexec"},
		{"shm-size", []string{"--shm-size", "2m"}, `df -k --output=size /dev/shm | tail -n 1 | tr -d ' '`, "2048"},
		{"ulimit", []string{"--ulimit", "nofile=123:456", "--ulimit", "core=0"}, `ulimit -Sn; ulimit -Hn; ulimit -c`, "123\n456\n0"},
		{"sysctl", []string{"--sysctl", "net.ipv4.ip_forward=1"}, `cat /proc/sys/net/ipv4/ip_forward`, "1"},
		{"cap-drop", []string{"--cap-drop", "ALL"}, `grep CapEff /proc/self/status | cut -f 2; chown 1 /etc/passwd 2>/dev/null || echo refused`, "0000000000000000\nrefused"},
		{"cap-add after drop", []string{"--cap-drop", "ALL", "--cap-add", "CHOWN"}, `grep CapEff /proc/self/status | cut -f 2; chown 1 /etc/passwd && echo allowed`, "0000000000000001\nallowed"},
		{"user has no caps", []string{"-u", "www-data"}, `grep CapEff /proc/self/status | cut -f 2`, "0000000000000000"},
		{"no network", nil, `python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); print("loopback", flush=True); socket.create_connection(("10.0.2.2", 1))' 2>&1 | tail -n 1 | cut -d: -f1`, "OSError"},
		{"entrypoint", []string{"--entrypoint", "/bin/echo"}, `words`, "-c words"},
	} {
		t.Run(test.name, func(t *testing.T) {
			flags := test.flags
			if !slices.Contains(flags, "--hostname") {
				flags = append([]string{"--hostname", "guest"}, flags...)
			}
			args := append(append([]string{"run", "--rm", "--network", "none"}, flags...), image)
			if !slices.Contains(flags, "--entrypoint") {
				args = append(args, "sh")
			}
			result := h.Rungv(t, nil, append(args, "-c", test.script)...)
			if got := strings.TrimSpace(result.Stdout); result.Code != 0 || got != test.want {
				t.Errorf("want %q: %v", test.want, result)
			}
		})
	}
}

// TestInit: --init puts a reaper in front of the command, so that orphans do not
// stay as zombies.
func TestInit(t *testing.T) {
	output := mustSh(t, `echo pid $(test $$ -ne 1 && echo not 1)
(sh -c 'sleep 0.1 & exit 0') ; sleep 0.5
ls /proc | grep -c '^[0-9]' >/dev/null; grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`, "--init")
	if output != "pid not 1\n0" {
		t.Errorf("output %q", output)
	}
}

// TestImageConfig runs an image whose config sets everything.
func TestImageConfig(t *testing.T) {
	h := getHome(t)
	name := h.Variant(t, image, "configured", func(config *v1.Config) {
		config.Entrypoint = []string{"/bin/sh", "-c", `echo "$0 $*"; id -un; pwd; echo "$FROM_IMAGE"; test -d /data && touch /data/x 2>/dev/null && echo written || echo refused`}
		config.Cmd = []string{"default", "words"}
		config.Env = append(config.Env, "FROM_IMAGE=yes")
		config.User = "www-data"
		config.WorkingDir = "/srv/made/by/config"
		config.Volumes = map[string]struct{}{"/data": {}}
		config.StopSignal = "SIGUSR1"
	})
	run := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(h.MustRungv(t, append([]string{"run", "--rm", "--network", "none"}, args...)...))
	}
	if got := run("--user", "root", name); !strings.HasPrefix(got, "default words\nroot\n/srv/made/by/config\nyes\n") || !strings.HasSuffix(got, "written") {
		t.Errorf("config as it is: %q", got)
	}
	if got := run(name, "other"); !strings.HasPrefix(got, "other \nwww-data\n/srv/made/by/config\nyes\n") {
		t.Errorf("Cmd replaced: %q", got)
	}
	if got := run("-w", "/", "-e", "FROM_IMAGE=no", "--entrypoint", "/bin/sh", name, "-c", "pwd; echo $FROM_IMAGE"); got != "/\nno" {
		t.Errorf("everything overridden: %q", got)
	}
}

// TestGuestTree checks what a guest expects of /proc, /sys and /dev, and that
// its root is as the image has it.
func TestGuestTree(t *testing.T) {
	output := mustSh(t, `
for f in /proc/self/status /proc/cpuinfo /proc/meminfo /sys/fs/cgroup/cgroup.controllers /dev/null /dev/zero /dev/urandom /dev/tty /dev/ptmx; do
	[ -e $f ] || echo "no $f"
done
for d in /proc /sys /sys/fs/cgroup /dev/pts /dev/shm /dev/mqueue; do
	awk -v d=$d '$2 == d { found = 1 } END { exit !found }' /proc/self/mounts || echo "no mount $d"
done
readlink /dev/fd /dev/stdin /dev/stdout /dev/stderr | tr '\n' ' '; echo
head -c 3 /dev/zero | wc -c; echo x > /dev/null; echo x > /dev/full 2>/dev/null || echo full
stat -c '%n %a %u %g' /tmp /root /etc/shadow /usr/bin/passwd
cat /etc/resolv.conf >/dev/null && grep -q localhost /etc/hosts && echo names
uname -s; [ "$(nproc)" -ge 1 ] && echo processors`)
	want := "/proc/self/fd /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 \n3\nfull\n" +
		"/tmp 1777 0 0\n/root 700 0 0\n/etc/shadow 640 0 42\n/usr/bin/passwd 4755 0 0\nnames\nLinux\nprocessors"
	if output != want {
		t.Errorf("output:\n%s\nwant:\n%s", output, want)
	}
}

// TestRootfsSize: what a guest may write to its root is bounded, and reaching
// the bound is the guest's error, not the sandbox's end.
func TestRootfsSize(t *testing.T) {
	output := mustSh(t, `head -c 100000000 /dev/zero > /big 2>/tmp/error || echo refused; grep -o 'No space left on device' /tmp/error | head -n 1; rm -f /big; echo still here`, "--rootfs-size", "32m", "--tmpfs", "/tmp")
	if output != "refused\nNo space left on device\nstill here" {
		t.Errorf("output %q", output)
	}
}

// TestRootfsWritesTakeDiskNotMemory: what is written to the root is a file of the
// host's disk, as sparse as the guest's own, and none of the guest's memory.
func TestRootfsWritesTakeDiskNotMemory(t *testing.T) {
	output := mustSh(t, `truncate -s 1G /sparse && dd if=/dev/zero of=/sparse bs=4k count=1 seek=100 conv=notrunc 2>/dev/null && du -k /sparse | cut -f 1
fallocate -p -o 0 -l 1M /sparse && du -k /sparse | cut -f 1
head -c 160000000 /dev/zero > /big && stat -c %s /big && stat -f -c %b:%S / | awk -F: '{ print ($1 * $2 > 60e9) ? "large" : "small" }'`, "--memory", "96m")
	if want := "4\n0\n160000000\nlarge"; output != want {
		t.Errorf("output %q, want %q", output, want)
	}
}

// TestMountOverPlacedFile: a guest may mount over the files that docker places,
// as a nested container engine does, without holding up its kernel.
func TestMountOverPlacedFile(t *testing.T) {
	// mount(2): through fsopen(2) and its kin gVisor binds directories only.
	out := mustSh(t, `export LIBMOUNT_FORCE_MOUNT2=always
for f in /etc/hosts /etc/hostname /etc/resolv.conf; do mount --bind /etc/passwd $f && head -c 5 $f && umount $f || echo failed; done`)
	if out != "root:root:root:" {
		t.Errorf("got %q", out)
	}
}
