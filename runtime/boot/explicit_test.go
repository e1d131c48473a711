// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/runtime/api"
)

// testLayer writes an image with a program, accounts, and what tests look for.
func testLayer(t *testing.T) api.FD {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{UUID: [16]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"bin/true": "#!", "etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "etc/secret": "secret", "srv/file": "of the root",
		"srv/sub/deep": "deep",
	} {
		e := erofs.Entry{Mode: unix.S_IFREG | 0o755, Size: int64(len(content))}
		if err := b.Add(name, e, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(f.Name(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return api.FD(fd)
}

// explicitSpec is a container with the mounts of runc's example.
func explicitSpec(t *testing.T, id string) *api.Container {
	t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	stream := func() api.FD {
		fd, err := unix.Dup(null)
		if err != nil {
			t.Fatal(err)
		}
		return api.FD(fd)
	}
	defer unix.Close(null)
	return &api.Container{
		ID: id, Explicit: true, InitFD: api.NoFD,
		Rootfs: api.Rootfs{Layers: []api.Layer{{FD: testLayer(t), Format: "erofs", DiffID: "test"}}},
		Process: api.Process{
			Args: []string{"/bin/true"}, Cwd: "/made/for/it", Account: &api.Account{UID: 1000, GID: 1000}, CapabilitySets: &api.CapabilitySets{},
			StdinFD: stream(), StdoutFD: stream(), StderrFD: stream(),
		},
		Mounts: []api.Mount{
			{Type: api.MountProc, Target: "/proc", NoSUID: true, NoExec: true, NoDev: true},
			{Type: api.MountTmpfs, Target: "/dev", NoSUID: true, Mode: 0o755, SizeBytes: 64 << 20},
			{Type: api.MountDevpts, Target: "/dev/pts", NoSUID: true, NoExec: true, Options: []string{"ptmxmode=0666", "mode=0620", "gid=5"}},
			{Type: api.MountTmpfs, Source: "shm", Target: "/dev/shm", Mode: 0o1777, SizeBytes: 1 << 20},
			{Type: api.MountMqueue, Target: "/dev/mqueue"},
			{Type: api.MountSysfs, Target: "/sys", ReadOnly: true},
			{Type: api.MountCgroup, Target: "/sys/fs/cgroup", ReadOnly: true},
		},
	}
}

var hostFeatures = sync.OnceFunc(cpuid.Initialize)

// testSandbox is a sandbox with a kernel that runs nothing.
func testSandbox(t *testing.T, first *api.Container) *sandbox {
	t.Helper()
	hostFeatures()
	sb := newSandbox(&api.HeadStart{Version: api.SpecVersion, Cores: 1}, &timeline{})
	sb.spec = &api.Sandbox{Version: api.SpecVersion, ID: first.ID, Hostname: "h", Network: api.Network{Mode: api.NetworkNone}, Container: *first}
	sb.first = newContainer(&sb.spec.Container)
	sb.containers[first.ID] = sb.first
	for _, step := range []func() error{sb.prepareKernel, sb.newKernel, sb.setupCgroups} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return sb
}

// guestFiles is what a container's processes see.
type guestFiles struct {
	t *testing.T
	*mounter
}

// prepared prepares a container and returns its files.
func prepared(t *testing.T, sb *sandbox, c *container) *guestFiles {
	t.Helper()
	if err := sb.prepareContainer(c); err != nil {
		t.Fatal(err)
	}
	return filesOf(t, sb, c)
}

func filesOf(t *testing.T, sb *sandbox, c *container) *guestFiles {
	args := sb.processArgs(c.spec, auth.NewRootCredentials(sb.userns))
	args.MountNamespace, args.PIDNamespace, args.Limits = c.mns, c.args.PIDNamespace, c.args.Limits
	ctx := inNamespace{args.NewContext(sb.k), c.mns}
	root := c.mns.Root(ctx)
	t.Cleanup(func() { root.DecRef(ctx) })
	return &guestFiles{t, &mounter{sb: sb, spec: c.spec, ctx: ctx, vfs: sb.k.VFS(), creds: args.Credentials, root: root, userns: c.userns}}
}

func (g *guestFiles) stat(name string) linux.Statx {
	g.t.Helper()
	pop := g.at(name)
	pop.FollowFinalSymlink = false
	st, err := g.vfs.StatAt(g.ctx, g.creds, pop, &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS})
	if err != nil {
		g.t.Errorf("stat %s: %v", name, err)
	}
	return st
}

func (g *guestFiles) read(name string) (string, error) {
	fd, err := g.vfs.OpenAt(g.ctx, g.creds, g.at(name), &vfs.OpenOptions{Flags: linux.O_RDONLY})
	if err != nil {
		return "", err
	}
	defer fd.DecRef(g.ctx)
	data, err := io.ReadAll(io.LimitReader(&guestReader{g.ctx, fd}, 1<<20))
	return string(data), err
}

func (g *guestFiles) write(name, data string) error {
	fd, err := g.vfs.OpenAt(g.ctx, g.creds, g.at(name), &vfs.OpenOptions{Flags: linux.O_WRONLY | linux.O_CREAT, Mode: 0o644})
	if err != nil {
		return err
	}
	defer fd.DecRef(g.ctx)
	_, err = fd.Write(g.ctx, usermem.BytesIOSequence([]byte(data)), vfs.WriteOptions{})
	return err
}

func (g *guestFiles) names(dir string) []string {
	g.t.Helper()
	p := &populator{mounter: g.mounter}
	names, err := p.list(g.root, dir)
	if err != nil {
		g.t.Errorf("list %s: %v", dir, err)
	}
	slices.Sort(names)
	return names
}

// mountTable is /proc/mounts: target, type and options.
func (g *guestFiles) mountTable() []string {
	var buf bytes.Buffer
	if err := g.vfs.GenerateProcMounts(g.ctx, g.root, &buf); err != nil {
		g.t.Error(err)
	}
	var lines []string
	for line := range strings.Lines(buf.String()) {
		f := strings.Fields(line)
		lines = append(lines, strings.Join(f[1:4], " "))
	}
	return lines
}

func TestExplicitMounts(t *testing.T) {
	spec := explicitSpec(t, "c")
	spec.Devices = []api.Device{
		{Path: "/dev/null", Type: api.DeviceChar, Major: 1, Minor: 3, Mode: 0o600, UID: 7, GID: 8},
		{Path: "/dev/net/tun", Type: api.DeviceChar, Major: 10, Minor: 200, Mode: 0o660},
		{Path: "/dev/disk", Type: api.DeviceBlock, Major: 8, Minor: 3, Mode: 0o640, GID: 6},
		{Path: "/dev/pipe", Type: api.DeviceFIFO, Mode: 0o622},
	}
	sb := testSandbox(t, spec)
	g := prepared(t, sb, sb.first)
	targets := map[string]string{}
	for _, line := range g.mountTable() {
		f := strings.Fields(line)
		targets[f[0]] = f[1] + " " + f[2]
	}
	for target, want := range map[string]string{
		"/": "overlay rw", "/proc": "proc rw,nosuid,nodev,noexec", "/dev": "tmpfs rw,nosuid", "/dev/pts": "devpts rw,nosuid,noexec", "/dev/shm": "tmpfs rw",
		"/dev/mqueue": "mqueue rw", "/sys": "sysfs ro", "/sys/fs/cgroup": "cgroup2 ro",
	} {
		if !strings.HasPrefix(targets[target], want) {
			t.Errorf("%s: %q, want %q", target, targets[target], want)
		}
		delete(targets, target)
	}
	if len(targets) > 0 {
		t.Errorf("mounts that nobody named: %v", targets)
	}
	if want := strings.Fields("disk fd full mqueue net null pipe ptmx pts random shm stderr stdin stdout tty urandom zero"); !slices.Equal(g.names("/dev"), want) {
		t.Errorf("/dev has %v, want %v", g.names("/dev"), want)
	}
	for _, d := range append(everyDevice[1:len(everyDevice):len(everyDevice)], spec.Devices...) {
		st := g.stat(d.Path)
		if st.Mode&0o777 != uint16(d.Mode) || st.RdevMajor != d.Major || st.RdevMinor != d.Minor || st.UID != d.UID || st.GID != d.GID {
			t.Errorf("%s: %+v", d.Path, st)
		}
	}
	for kind, name := range map[uint16]string{linux.S_IFCHR: "/dev/net/tun", linux.S_IFBLK: "/dev/disk", linux.S_IFIFO: "/dev/pipe", linux.S_IFLNK: "/dev/ptmx"} {
		if st := g.stat(name); st.Mode&linux.S_IFMT != kind {
			t.Errorf("%s: mode %o", name, st.Mode)
		}
	}
	if link, err := g.vfs.ReadlinkAt(g.ctx, g.creds, at(g.root, "/dev/ptmx")); err != nil || link != "pts/ptmx" {
		t.Errorf("/dev/ptmx leads to %q, %v", link, err)
	}
	if st := g.stat("/dev/pts"); st.Mode != linux.S_IFDIR|0o755 || g.stat("/dev/pts/ptmx").Mode&0o777 != 0o666 {
		t.Errorf("/dev/pts: %+v", st)
	}
	if st := g.stat("/made/for/it"); st.Mode&linux.S_IFMT != linux.S_IFDIR {
		t.Errorf("the working directory is missing: %+v", st)
	}
	if _, err := g.read("/etc/mtab"); !linuxerr.Equals(linuxerr.ENOENT, err) {
		t.Errorf("/etc/mtab: %v", err)
	}
	if env := sb.first.args.Envv; !slices.Equal(env, []string{"HOME=/home/user"}) {
		t.Errorf("environment %q", env)
	}
}

func TestGuardedPaths(t *testing.T) {
	spec := explicitSpec(t, "c")
	spec.MaskedPaths = []string{"/etc/secret", "/srv/sub", "/proc/uptime", "/not/there", "/etc/secret/below"}
	spec.ReadonlyPaths = []string{"/proc/sys", "/srv", "/not/there"}
	spec.Mounts[1].ReadOnly = true
	spec.Rootfs.ReadOnly = true
	spec.Mounts = append(spec.Mounts, api.Mount{Type: api.MountTmpfs, Target: "/srv/tmp"})
	spec.Propagation = api.PropagationRShared
	sb := testSandbox(t, spec)
	g := prepared(t, sb, sb.first)
	for _, name := range []string{"/etc/secret", "/proc/uptime"} {
		if text, err := g.read(name); text != "" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		if st := g.stat(name); st.Mode&linux.S_IFMT != linux.S_IFCHR {
			t.Errorf("%s is no device: %o", name, st.Mode)
		}
	}
	if names := g.names("/srv/sub"); len(names) != 0 {
		t.Errorf("the masked directory has %v", names)
	}
	for _, name := range []string{"/srv/sub/x", "/srv/file", "/proc/sys/kernel/pid_max", "/dev/x", "/x"} {
		if err := g.write(name, "x"); !linuxerr.Equals(linuxerr.EROFS, err) {
			t.Errorf("write %s: %v, want EROFS", name, err)
		}
	}
	if text, err := g.read("/srv/file"); text != "of the root" || err != nil {
		t.Errorf("/srv/file: %q, %v", text, err)
	}
	if names := g.names("/srv/tmp"); len(names) != 0 {
		t.Errorf("what is mounted below a read-only path: %v", names)
	}
	if _, err := g.read("/not/there"); !linuxerr.Equals(linuxerr.ENOENT, err) {
		t.Errorf("a guarded path was made: %v", err)
	}
}

func TestFilledAndSharedTmpfs(t *testing.T) {
	spec := explicitSpec(t, "c")
	// A mount point that the file system itself would not make.
	spec.Mounts[5].ReadOnly = false
	spec.Mounts = append(spec.Mounts, api.Mount{Type: api.MountTmpfs, Target: "/srv", CopyUp: true}, api.Mount{Type: api.MountTmpfs, Target: "/sys/fs/x/y"})
	spec.Mounts[3].Shared, spec.Mounts[3].ReadOnly = "pod", true
	sb := testSandbox(t, spec)
	g := prepared(t, sb, sb.first)
	if text, err := g.read("/srv/sub/deep"); text != "deep" || err != nil {
		t.Errorf("copied up: %q, %v", text, err)
	}
	if err := g.write("/srv/file", "x"); err != nil {
		t.Errorf("write on a tmpfs: %v", err)
	}
	if err := g.write("/dev/shm/x", "x"); !linuxerr.Equals(linuxerr.EROFS, err) {
		t.Errorf("shared, read-only: %v", err)
	}
	second := newContainer(explicitSpec(t, "d"))
	second.spec.Mounts[3].Shared = "pod"
	sb.containers["d"] = second
	h := prepared(t, sb, second)
	if err := h.write("/dev/shm/x", "common"); err != nil {
		t.Errorf("shared: %v", err)
	}
	if text, err := g.read("/dev/shm/x"); text != "common" || err != nil {
		t.Errorf("what the other container wrote: %q, %v", text, err)
	}
	// Nothing else is shared.
	if err := h.write("/srv/own", "x"); err != nil {
		t.Error(err)
	}
	if _, err := g.read("/srv/own"); !linuxerr.Equals(linuxerr.ENOENT, err) {
		t.Errorf("the first container sees the second one's root: %v", err)
	}
}

// TestTmpfsTakesTheModeOfWhatItCovers, unless it has one of its own.
func TestTmpfsTakesTheModeOfWhatItCovers(t *testing.T) {
	spec := explicitSpec(t, "c")
	spec.Mounts = append(spec.Mounts, api.Mount{Type: api.MountTmpfs, Target: "/srv/sub"}, api.Mount{Type: api.MountTmpfs, Target: "/new"},
		api.Mount{Type: api.MountTmpfs, Target: "/etc", Mode: 0o2710})
	sb := testSandbox(t, spec)
	g := prepared(t, sb, sb.first)
	for name, want := range map[string]uint16{"/srv/sub": g.stat("/srv").Mode & 0o7777, "/new": 0o1777, "/etc": 0o2710} {
		if got := g.stat(name).Mode & 0o7777; got != want || got == 0 {
			t.Errorf("%s: mode %o, want %o", name, got, want)
		}
	}
}

// TestDevicesWithoutNodes: where the file system takes no node, one of ours is
// mounted.
func TestDevicesWithoutNodes(t *testing.T) {
	spec := explicitSpec(t, "c")
	spec.Mounts = slices.Delete(spec.Mounts, 1, 2)
	sb := testSandbox(t, spec)
	c := sb.first
	g := prepared(t, sb, c)
	if err := g.bindNode(&api.Device{Path: "/srv/file", Type: api.DeviceChar, Major: 1, Minor: 5, Mode: 0o644, UID: 9}, "/srv/file"); err != nil {
		t.Fatal(err)
	}
	if st := g.stat("/srv/file"); st.RdevMinor != 5 || st.UID != 9 || st.Mode != linux.S_IFCHR|0o644 {
		t.Errorf("%+v", st)
	}
	if st := g.stat("/dev/zero"); st.RdevMinor != 5 {
		t.Errorf("/dev/zero in a /dev of the root's own: %+v", st)
	}
}

func TestContainerSysctls(t *testing.T) {
	spec := explicitSpec(t, "c")
	spec.Sysctls = map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0\t2147483647", "net.ipv4.ip_local_port_range": "2000 3000",
		"net.ipv4.tcp_timestamps": "1", "kernel.shmmni": "4096", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "100", "fs.mqueue.queues_max": "256",
	}
	sb := testSandbox(t, spec)
	g := prepared(t, sb, sb.first)
	if text, err := g.read("/proc/sys/net/ipv4/ip_local_port_range"); strings.Join(strings.Fields(text), " ") != "2000 3000" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	for name, want := range map[string]string{"kernel/shm_rmid_forced": "1\n", "fs/mqueue/msg_max": "100\n", "fs/mqueue/msgsize_max": "8192\n"} {
		if text, err := g.read("/proc/sys/" + name); text != want || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for name, value := range map[string]string{"fs.mqueue.msg_max": "100000", "kernel.shm_rmid_forced": "yes"} {
		if err := g.writeSysctls(map[string]string{name: value}); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	if second := filesOf(t, sb, sb.first); second.sb.ipc.value(kernel.NewIPCNamespace(sb.userns), param("msg_max")) != 10 {
		t.Error("another namespace has the first one's limits")
	}
	for name, value := range map[string]string{"fs.mqueue.queues_max": "7", "net.ipv4.ip_unprivileged_port_start": "1024", "net.ipv4.no_such": "1", "net.ipv4.tcp_timestamps": "0", "kernel.shmmni": "7"} {
		if err := g.writeSysctls(map[string]string{name: value}); api.KindOf(err) != api.KindUnsupported {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

// TestHostileExplicit: what no bundle has is refused, and nothing is left behind
// that would block others.
func TestHostileExplicit(t *testing.T) {
	for name, spoil := range map[string]func(*api.Container){
		"a mount on a file":        func(c *api.Container) { c.Mounts[3].Target = "/etc/passwd" },
		"a bad option":             func(c *api.Container) { c.Mounts[3].Options = []string{"color=red"} },
		"a program that is no":     func(c *api.Container) { c.Process.Args[0] = "/etc" },
		"an unknown capability":    func(c *api.Container) { c.Process.CapabilitySets.Bounding = []string{"CAP_X"} },
		"a limit that is unknown":  func(c *api.Container) { c.Process.Rlimits = []api.Rlimit{{Name: "x"}} },
		"a working directory file": func(c *api.Container) { c.Process.Cwd = "/etc/passwd" },
	} {
		spec := explicitSpec(t, "c")
		spoil(spec)
		sb := testSandbox(t, spec)
		if err := sb.prepareContainer(sb.first); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestUserNamespace(t *testing.T) {
	spec := explicitSpec(t, "c")
	spec.Process.Account = &api.Account{UID: 1000, GID: 1000, Groups: []uint32{5}}
	mapping := []api.IDMapping{{Inside: 0, Outside: 100000, Size: 65536}}
	spec.Namespaces.User = &api.UserNamespace{UIDs: mapping, GIDs: mapping}
	spec.Devices = []api.Device{{Path: "/dev/x", Type: api.DeviceChar, Major: 1, Minor: 3, Mode: 0o666, UID: 7, GID: 8}}
	spec.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "2000 3000"}
	sb := testSandbox(t, spec)
	g := prepared(t, sb, sb.first)
	creds := sb.first.args.Credentials
	if creds.RealKUID != 101000 || creds.ExtraKGIDs[0] != 100005 || creds.UserNamespace != sb.first.userns || sb.first.userns == sb.userns {
		t.Errorf("credentials %+v", creds)
	}
	for name, owner := range map[string]uint32{"/dev": 100000, "/dev/shm": 100000, "/dev/x": 100007, "/dev/null": 100000, "/etc": 0} {
		if st := g.stat(name); st.UID != owner {
			t.Errorf("%s belongs to %d, want %d", name, st.UID, owner)
		}
	}
	if ns := sb.k.RootNetworkNamespace().UserNamespace(); ns != sb.first.userns {
		t.Error("the network is not the container's own")
	}
	second := newContainer(explicitSpec(t, "d"))
	second.spec.Namespaces.User = &api.UserNamespace{UIDs: mapping, GIDs: mapping}
	second.spec.Process.Account.UID = 70000
	sb.containers["d"] = second
	if err := sb.prepareContainer(second); api.KindOf(err) != api.KindInvalid {
		t.Errorf("a uid without a mapping: %v", err)
	}
	if second.userns != sb.first.userns {
		t.Error("the same mappings made another user namespace")
	}
	for name, list := range map[string][]api.IDMapping{
		"overlapping": {{Inside: 0, Outside: 1000, Size: 10}, {Inside: 5, Outside: 2000, Size: 10}},
		"twice":       {{Inside: 0, Outside: 1000, Size: 10}, {Inside: 50, Outside: 1005, Size: 10}},
	} {
		if _, err := sb.usernses.of(sb.userns, &api.UserNamespace{UIDs: list, GIDs: list}); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMountTable(t *testing.T) {
	spec := explicitSpec(t, "c")
	spec.Mounts = append(spec.Mounts, api.Mount{Type: api.MountTmpfs, Source: "two words", Target: "/srv/a b"})
	sb := testSandbox(t, spec)
	prepared(t, sb, sb.first)
	for name, table := range map[string]*mountTable{"mounts": {}, "mountinfo": {info: true}} {
		table.sources = sb.first.sources
		for line, want := range map[string]string{
			"none /dev/shm tmpfs rw,size=1k 0 0\n":           "shm /dev/shm tmpfs rw,size=1k 0 0\n",
			"none /else tmpfs rw 0 0\n":                      "tmpfs /else tmpfs rw 0 0\n",
			"none / 9p ro,nodev,trans=fd,rfdno=5 0 0\n":      "host / 9p ro,nodev 0 0\n",
			"none /sys/fs/cgroup cgroup2 rw 0 0\n":           "cgroup /sys/fs/cgroup cgroup2 rw 0 0\n",
			"none /srv/a\\040b tmpfs rw 0 0\n":               "two\\040words /srv/a\\040b tmpfs rw 0 0\n",
			"1 2 0:3 / /dev/shm rw,noexec - tmpfs none rw\n": "1 2 0:3 / /dev/shm rw,noexec - tmpfs shm rw\n",
			"1 2 0:3 / / rw shared:1 - 9p none rw,aname=/\n": "1 2 0:3 / / rw shared:1 - 9p host rw\n",
			"0 0 0:0 / /x promise - promise none promise\n":  "0 0 0:0 / /x promise - promise promise promise\n",
			"what nobody expects\n":                          "what nobody expects\n",
		} {
			if strings.Contains(line, " - ") != table.info && strings.Contains(line, "none") {
				continue
			}
			got := table.mountsLine(line)
			if table.info {
				got = table.infoLine(line)
			}
			if got != want {
				t.Errorf("%s: %q became %q, want %q", name, line, got, want)
			}
		}
	}
}
