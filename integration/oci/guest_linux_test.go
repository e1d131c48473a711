// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestLikeRunc runs scripts that tell what a process is and finds, with both
// runtimes: they print the same.
func TestLikeRunc(t *testing.T) {
	caps := []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE"}
	for name, c := range map[string]struct {
		script string
		edit   func(*specs.Spec)
	}{
		"root": {"id; umask; pwd; grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp):' /proc/self/status; env | sort | grep -v '^_='", func(s *specs.Spec) {
			s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps}
			s.Process.Env = []string{"PATH=/usr/bin:/bin", "A=1", "A=2"}
		}},
		"user": {"id; umask; pwd; grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs):' /proc/self/status; cat /proc/self/oom_score_adj; echo $HOME; touch f && stat -c '%a %u:%g' f",
			func(s *specs.Spec) {
				s.Process.User = specs.User{UID: 1234, GID: 5678, AdditionalGids: []uint32{10, 20}, Umask: number(uint32(0o027))}
				s.Process.Cwd, s.Process.NoNewPrivileges = "/tmp", false
				s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Inheritable: caps[:1], Ambient: caps[:1], Effective: caps}
				s.Process.OOMScoreAdj = number(300)
			}},
		"limits": {"grep -E 'cpu time|file size|data|stack|core|open files|address space' /proc/self/limits | tr -s ' '", func(s *specs.Spec) {
			s.Process.Rlimits = nil
			// Those that need no right on the host that runc may lack.
			for name, most := range map[string]uint64{"AS": 64 << 30, "CORE": 4096, "CPU": 1000, "DATA": 64 << 30, "FSIZE": 1 << 40, "NOFILE": 200, "STACK": 16 << 20} {
				s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_" + name, Soft: most / 2, Hard: most})
			}
		}},
		"devices": {"cd /dev; ls; stat -c '%n %F %t:%T %a %u:%g' null zero full random urandom tty fuse sda pipe; readlink fd stdin stdout stderr ptmx; " +
			"echo x > null; head -c 3 zero | od -c; echo x > full; head -c 4 urandom | wc -c; stat -c %a:%g pts/ptmx; [ -c ptmx ] && echo multiplexer", func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{
				{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, FileMode: number(os.FileMode(0o660)), UID: number(uint32(7)), GID: number(uint32(8))},
				{Path: "/dev/sda", Type: "b", Major: 8, FileMode: number(os.FileMode(0o600))}, {Path: "/dev/pipe", Type: "p"},
			}
		}},
		"names": {"hostname; cat /proc/sys/kernel/hostname /proc/sys/kernel/domainname", func(s *specs.Spec) {
			s.Hostname, s.Domainname = "box", "example.org"
		}},
		"guarded": {"cat /etc/shadow; ls /usr/share; ls -a /usr/share | wc -l; for f in /etc/passwd /etc/x /proc/sys/kernel/pid_max /y /tmp/z; do echo x 2>&1 > $f || echo no $f; done; cat /proc/kcore | head -c 1", func(s *specs.Spec) {
			s.Linux.MaskedPaths = append(s.Linux.MaskedPaths, "/etc/shadow", "/usr/share", "/nothing/there")
			s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, "/etc")
			s.Root.Readonly = true
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}})
		}},
		"memory": {"cd /m; stat -c '%a %u:%g' .; touch x; echo $?; df -k . | tail -1 | tr -s ' ' | cut -d' ' -f1-2; cp /bin/true t && ./t; echo $?; ls /usr-copy; stat -f -c %T .", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/m", Type: "tmpfs", Source: "mine", Options: []string{"noexec", "nosuid", "size=4m", "mode=0750", "uid=0", "gid=42"}},
				specs.Mount{Destination: "/etc/apt", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup", "ro"}})
			s.Process.User.AdditionalGids = []uint32{42}
		}},
		"table of mounts": {"cut -d' ' -f1-3 /proc/mounts | grep -v -e ' / ' -e cgroup -e /proc/ -e /sys/", nil},
		"commands":        {"exit 7", nil},
		"ports below 1024": {"python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 80)); print(s.getsockname())'", func(s *specs.Spec) {
			s.Process.User = specs.User{UID: 1000, GID: 1000}
			s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
		}},
		"memory that goes with its users": {`python3 -c '
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
def there(key):
    for i in range(100):
        if libc.shmget(key, 4096, 0) < 0:
            return "gone"
        time.sleep(0.1)
    return "there"
id = libc.shmget(77, 4096, 0o1600)
at = libc.shmat(id, None, 0)
print(libc.shmget(77, 4096, 0) == id)
libc.shmdt(at)
print(there(77))
'; cat /proc/sys/kernel/shm_rmid_forced`, func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"kernel.shm_rmid_forced": "1"} }},
		"message queues": {`cat /proc/sys/fs/mqueue/msg_max; python3 -c '
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
class attr(ctypes.Structure):
    _fields_ = [("f", ctypes.c_long), ("n", ctypes.c_long), ("size", ctypes.c_long), ("c", ctypes.c_long), ("r", ctypes.c_long * 4)]
for n in (5, 100, 101):
    a = attr(0, n, 8, 0)
    fd = libc.mq_open(b"/q%d" % n, 0o102, 0o600, ctypes.byref(a))
    print(n, fd >= 0 or errno.errorcode[ctypes.get_errno()])
'`, func(s *specs.Spec) {
			s.Process.User = specs.User{UID: 1000, GID: 1000}
			s.Linux.Sysctl = map[string]string{"fs.mqueue.msg_max": "100"}
		}},
		"parameters": {"tr '\\t' ' ' < /proc/sys/net/ipv4/ip_local_port_range", func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{"net.ipv4.ip_local_port_range": "2000 3000"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if written := bothShells(t, c.script, c.edit); strings.Count(written, "\n") < 1 && !strings.Contains(written, "(") {
				t.Errorf("nothing was written: %q", written)
			}
		})
	}
}

// TestSeccomp compares filters with runc's: docker's profile, and one with every
// kind of rule.
func TestSeccomp(t *testing.T) {
	const script = `import ctypes, os, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*a):
    r = libc.syscall(*a)
    return errno.errorcode[ctypes.get_errno()] if r < 0 else "ok"
print("mkdir", call(83, b"/tmp/d", 0o755))
print("personality", call(135, 0xffffffff), call(135, 8) == "EAGAIN")
print("rmdir", call(84, b"/tmp/d"))
print("setns", call(308, -1, 0))
print("new", call(4000))
print("socket", [call(41, family, 1, 0) for family in (1, 2, 40)])
print("no_new_privs", call(157, 39, 0, 0, 0, 0))
print("mode", [l for l in open("/proc/self/status") if l.startswith("Seccomp:")])
if os.fork() == 0:
    call(90, b"/tmp", 0o777)
    os._exit(0)
print("chmod ended by", os.wait()[1])
`
	errno := func(n uint) *uint { return &n }
	filter := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64}, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"mkdir"}, Action: specs.ActErrno, ErrnoRet: errno(28)},
		{Names: []string{"rmdir"}, Action: specs.ActErrno},
		{Names: []string{"personality"}, Action: specs.ActErrno, ErrnoRet: errno(11), Args: []specs.LinuxSeccompArg{{Index: 0, Op: specs.OpEqualTo, Value: 8}}},
		{Names: []string{"socket"}, Action: specs.ActErrno, ErrnoRet: errno(22), Args: []specs.LinuxSeccompArg{{Index: 0, Op: specs.OpGreaterThan, Value: 1}}},
		{Names: []string{"chmod"}, Action: specs.ActKillProcess},
	}}
	for name, f := range map[string]*specs.LinuxSeccomp{"every kind": filter, "docker's": testbed.DockerProfile(t)} {
		for _, noNewPrivileges := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bothShells(t, "python3 -c '"+script+"'", func(s *specs.Spec) {
					s.Linux.Seccomp, s.Process.NoNewPrivileges = f, noNewPrivileges
				})
			})
		}
	}
}

// TestUserNamespace: the guest's ids are mapped as the bundle says.
func TestUserNamespace(t *testing.T) {
	b := newBundle(t, "rungv")
	mapping := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	b.Spec.Linux.Namespaces = append(b.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	b.Spec.Linux.UIDMappings, b.Spec.Linux.GIDMappings = mapping, mapping
	b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: "/dev/own", Type: "tmpfs", Source: "tmpfs"})
	output, code := shell(t, b, "cat /proc/self/uid_map | tr -s ' '; id -u; stat -c %u /dev/own /dev/null /etc; touch /dev/own/x && stat -c %u /dev/own/x; touch /etc/x")
	want := " 0 100000 65536\n0\n0\n0\n65534\n0\n"
	if !strings.HasPrefix(output, want) || !strings.Contains(output, "Permission denied") || code == 0 {
		t.Errorf("%q (%d), want %q and a refusal", output, code, want)
	}
}

// TestBinds: what the host has is seen, and what the guest writes is on the host,
// unless the mount is read-only.
func TestBinds(t *testing.T) {
	b := newBundle(t, "rungv")
	dir := t.TempDir()
	for name, text := range map[string]string{"file": "from the host", "single": "a file"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.Spec.Mounts = append(b.Spec.Mounts,
		specs.Mount{Destination: "/rw", Type: "bind", Source: dir, Options: []string{"rbind", "rw", "rprivate"}},
		specs.Mount{Destination: "/ro", Source: dir, Options: []string{"bind", "ro"}},
		specs.Mount{Destination: "/etc/single", Type: "bind", Source: filepath.Join(dir, "single"), Options: []string{"bind"}})
	output, code := shell(t, b, "cat /rw/file /ro/file /etc/single; echo written > /rw/new && cat /ro/new; echo x 2>/dev/null > /ro/x || echo refused; echo changed > /etc/single")
	if want := "from the hostfrom the hosta filewritten\nrefused\n"; output != want || code != 0 {
		t.Errorf("%q (%d), want %q", output, code, want)
	}
	for name, want := range map[string]string{"new": "written\n", "single": "changed\n"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
			t.Errorf("%s on the host: %q, %v", name, data, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
		t.Error("a read-only mount was written")
	}
}

// TestReadOnlyBinds: "ro" holds for a mount, "rro" for those below it too.
func TestReadOnlyBinds(t *testing.T) {
	testbed.NeedRoot(t, "a mount below another")
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(below, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	output := bothShells(t, "for d in one all; do for f in x below/x; do echo x 2>/dev/null > /$d/$f && echo $d/$f; done; done; true", func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/one", Source: dir, Options: []string{"rbind", "ro"}},
			specs.Mount{Destination: "/all", Source: dir, Options: []string{"rbind", "rro"}})
	})
	if want := "one/below/x\n(0)"; output != want {
		t.Errorf("written: %q, want %q", output, want)
	}
}

// TestReadOnlyRoot: the host's root is no mount below itself, and what of the kernel's
// is mounted below it is not the guest's to write, whatever runc does.
func TestReadOnlyRoot(t *testing.T) {
	testbed.NeedRoot(t, "a directory in the host's root")
	dir, err := os.MkdirTemp("/", ".gvx-oci-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := newBundle(t, "rungv")
	b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/", Options: []string{"rbind", "ro"}})
	const harmless = "/mnt/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs"
	output, code := shell(t, b, "ls -d /mnt"+dir+"; echo x 2>/dev/null > /mnt"+dir+"/x && echo written; v=$(cat "+harmless+") && echo $v 2>/dev/null > "+harmless+" && echo set; true")
	if want := "/mnt" + dir + "\n"; output != want || code != 0 {
		t.Errorf("%q (%d), want %q", output, code, want)
	}
}

// TestPrivilegedGuest: an annotation gives a guest all of its own kernel.
func TestPrivilegedGuest(t *testing.T) {
	b := newBundle(t, "rungv")
	b.Spec.Annotations = map[string]string{"dev.gvx.guest-privileged": "true"}
	output, code := shell(t, b, "grep CapEff /proc/self/status; mount -t tmpfs tmpfs /mnt && echo mounted; grep -c firmware /proc/mounts")
	if want := "CapEff:\t000001ffffffffff\nmounted\n0\n"; output != want || code != 1 {
		t.Errorf("%q (%d), want %q", output, code, want)
	}
}

// TestRefused: bundles that cannot be honoured are refused by create, which says
// why and leaves nothing.
func TestRefused(t *testing.T) {
	for says, edit := range map[string]func(*specs.Spec){
		"args must not be empty":      func(s *specs.Spec) { s.Process.Args = nil },
		"Cwd must be an absolute":     func(s *specs.Spec) { s.Process.Cwd = "tmp" },
		"wrong rlimit value":          func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_X"}} },
		"invalid rootfs":              func(s *specs.Spec) { s.Root.Path = "nothing" },
		"duplicated ns":               func(s *specs.Spec) { s.Linux.Namespaces = append(s.Linux.Namespaces, s.Linux.Namespaces[0]) },
		"no such parameter":           func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net.ipv4.no_such": "1"} },
		"executable file not found":   func(s *specs.Spec) { s.Process.Args = []string{"no-such-program"} },
		"is no namespace":             func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/dev/null" },
		"notifies nobody":             func(s *specs.Spec) { s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActNotify} },
		"does not get the host's net": func(s *specs.Spec) { s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, isNetwork) },
		"/nothing/here": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Source: "/nothing/here", Options: []string{"bind"}})
		},
	} {
		b := newBundle(t, "rungv")
		b.Spec.Process.Args = []string{"true"}
		edit(b.Spec)
		c, err := create(t, b)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
		if c != nil {
			continue
		}
		if list := must(t, b, "list", "-q"); strings.TrimSpace(list) != "" {
			t.Errorf("%s: left %q", says, list)
		}
	}
}

func isNetwork(ns specs.LinuxNamespace) bool { return ns.Type == specs.NetworkNamespace }
