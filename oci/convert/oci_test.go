// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/runtime/api"
)

// document reads a bundle's document of testdata, as an engine writes it.
func document(t *testing.T, name string) *specs.Spec {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "oci_"+name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := bundle.Parse(data)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return spec
}

// ociOf converts a document, and checks that a sandbox would take the result.
func ociOf(t *testing.T, in OCIInput) *OCI {
	t.Helper()
	before, err := json.Marshal(in.Spec)
	if err != nil {
		t.Fatal(err)
	}
	in.ID, in.Dir, in.HostName = "c1", "/bundles/c1", "host"
	if in.Rootfs == "" {
		in.Rootfs = "/bundles/c1/rootfs"
	}
	out, err := FromOCI(in)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := json.Marshal(in.Spec); err != nil || string(after) != string(before) {
		t.Errorf("the document was changed: %v", err)
	}
	if out.Sandbox != nil {
		s := *out.Sandbox
		s.Network.Mode, s.ControlFD = api.NetworkNone, 3
		fd := api.FD(5)
		_ = s.EachFD(func(f *api.FD) error { *f = fd; fd++; return nil })
		s.Network.BrokerFD = api.NoFD
		for i := range s.Container.Mounts {
			if v := s.Container.Mounts[i].Volume; v != nil {
				v.FDs = []api.FD{fd}
			}
		}
		if err := s.Validate(); err != nil {
			t.Errorf("a sandbox would not take it: %v", err)
		}
	}
	return out
}

// mountAt finds a mount by its target.
func mountAt(t *testing.T, c *api.Container, target string) api.Mount {
	t.Helper()
	for _, m := range c.Mounts {
		if m.Target == target {
			return m
		}
	}
	t.Fatalf("nothing is mounted on %s", target)
	return api.Mount{}
}

func hasNote(o *OCI, text string) bool {
	return slices.ContainsFunc(o.Notes, func(n string) bool { return strings.Contains(n, text) })
}

func TestOCIExample(t *testing.T) {
	o := ociOf(t, OCIInput{Spec: bundle.Example()})
	c := o.Container
	if o.Sandbox.Hostname != "rungv" || !c.Rootfs.ReadOnly || c.Rootfs.Host.Name != "/bundles/c1/rootfs" || !c.Explicit || o.Network.Kind != NetworkOfItsOwn {
		t.Errorf("sandbox %+v", o.Sandbox)
	}
	targets := make([]string, 0, len(c.Mounts))
	for _, m := range c.Mounts {
		targets = append(targets, m.Target)
	}
	if want := []string{"/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys", "/sys/fs/cgroup"}; !slices.Equal(targets, want) {
		t.Errorf("mounts %v, want %v", targets, want)
	}
	if dev := mountAt(t, c, "/dev"); dev.SizeBytes != 64<<20 || dev.Mode != 0o755 || !dev.NoSUID || dev.NoDev {
		t.Errorf("/dev %+v", dev)
	}
	if shm := mountAt(t, c, "/dev/shm"); shm.Source != "shm" {
		t.Errorf("/dev/shm %+v", shm)
	}
	if pts := mountAt(t, c, "/dev/pts"); !slices.Equal(pts.Options, []string{"ptmxmode=0666", "mode=0620", "gid=5"}) {
		t.Errorf("/dev/pts %+v", pts)
	}
	p := c.Process
	if !p.NoNewPrivileges || !p.Terminal || len(p.CapabilitySets.Bounding) != 3 || p.CapabilitySets.Ambient != nil ||
		!reflect.DeepEqual(p.Rlimits, []api.Rlimit{{Name: "nofile", Soft: 1024, Hard: 1024}}) {
		t.Errorf("process %+v", p)
	}
	if len(o.Notes) != 0 {
		t.Errorf("notes %q", o.Notes)
	}
	ociOf(t, OCIInput{Spec: bundle.RootlessExample(1000, 1000)})
}

func TestOCIDockerd(t *testing.T) {
	o := ociOf(t, OCIInput{Spec: document(t, "dockerd")})
	c := o.Container
	if want := (api.Resources{MemoryBytes: 512 << 20, CPUMillis: 1500, Pids: 200}); c.Resources != want || o.Sandbox.Resources != want || o.Cores != 2 {
		t.Errorf("resources %+v, %d cores", c.Resources, o.Cores)
	}
	p := c.Process
	if p.Rows != 50 || p.Columns != 132 || !slices.Equal(p.Account.Groups, []uint32{0, 10}) || p.Env[len(p.Env)-1] != "LANG=C.UTF-8" || len(p.Env) != 4 {
		t.Errorf("process %+v", p)
	}
	if b := mountAt(t, c, "/data"); b.Type != api.MountBind || b.Host.Name != "/srv/data" || !b.ReadOnly || b.Propagation != api.PropagationRPrivate {
		t.Errorf("/data %+v", b)
	}
	if s := mountAt(t, c, "/scratch"); s.UID != 1000 || s.SizeBytes != 64<<20 {
		t.Errorf("/scratch %+v", s)
	}
	s := p.Seccomp
	if s == nil || s.Default != api.SeccompErrno || s.Errno != 1 || len(s.Rules) != 6 || s.Rules[5].Errno != 38 ||
		s.Rules[4].Args[0] != (api.SeccompArg{Index: 0, Op: api.SeccompMasked, Value: 2114060288}) {
		t.Errorf("seccomp %+v", s)
	}
	if c.Sysctls["net.ipv4.ip_unprivileged_port_start"] != "0" || len(c.MaskedPaths) != 12 || len(c.ReadonlyPaths) != 5 {
		t.Errorf("sysctls %v, masked %v", c.Sysctls, c.MaskedPaths)
	}
	if !hasNote(o, "AppArmor profile docker-default") {
		t.Errorf("notes %q", o.Notes)
	}
}

func TestGuardedPathsAreGuardedOnce(t *testing.T) {
	spec := document(t, "dockerd")
	spec.Linux.MaskedPaths, spec.Linux.ReadonlyPaths = []string{"/a", "/b", "/a/", "/"}, []string{"/c", "/c"}
	c := ociOf(t, OCIInput{Spec: spec}).Container
	if !slices.Equal(c.MaskedPaths, []string{"/a", "/b"}) || !slices.Equal(c.ReadonlyPaths, []string{"/c"}) {
		t.Errorf("masked %q, read-only %q", c.MaskedPaths, c.ReadonlyPaths)
	}
}

func TestOCIPod(t *testing.T) {
	sandbox := document(t, "cri_sandbox")
	kind, id := PodOf(sandbox)
	if kind != PodSandbox || !strings.HasPrefix(id, "7c0de9f1") {
		t.Errorf("%s of %s", kind, id)
	}
	o := ociOf(t, OCIInput{Spec: sandbox, SizeOf: func(string) int64 { return 1 << 20 }})
	if want := (api.Resources{MemoryBytes: 256 << 20, CPUMillis: 500}); o.Sandbox.Resources != want || len(o.Volumes) != 0 {
		t.Errorf("pod's resources %+v, volumes %v", o.Sandbox.Resources, o.Volumes)
	}
	if want := (OCINetwork{Kind: NetworkOfPath, Path: "/var/run/netns/cni-3b1f2a9c-77d0-4f0e-9e55-0b6b2d0c4f11"}); o.Network != want {
		t.Errorf("network %+v", o.Network)
	}
	shm := mountAt(t, o.Container, "/dev/shm")
	if shm.Type != api.MountTmpfs || !shm.ReadOnly || shm.SizeBytes != 1<<20 || shm.Shared == "" {
		t.Errorf("/dev/shm %+v", shm)
	}

	container := document(t, "cri_container")
	if kind, other := PodOf(container); kind != PodContainer || other != id {
		t.Errorf("%s of %s", kind, other)
	}
	var asked []string
	o = ociOf(t, OCIInput{Spec: container, Joins: id, ContainerOf: func(t specs.LinuxNamespaceType, p string) (string, bool) {
		asked = append(asked, p)
		return "owner", p == "/proc/4242/ns/ipc"
	}})
	c := o.Container
	if o.Sandbox != nil || c.Namespaces != (api.Namespaces{IPC: "owner", UTS: id}) || len(asked) != 2 {
		t.Errorf("namespaces %+v, asked for %v", c.Namespaces, asked)
	}
	if m := mountAt(t, c, "/dev/shm"); m.Shared != shm.Shared || m.ReadOnly {
		t.Errorf("/dev/shm %+v", m)
	}
	if len(o.Volumes) != 1 || o.Volumes[0].Source != "/srv/golden.ext4" || o.Volumes[0].Clone != CloneEphemeral || mountAt(t, c, "/var/lib/docker").Type != api.MountVolume {
		t.Errorf("volumes %+v", o.Volumes)
	}
	p := c.Process
	if *p.Account.Umask != 0o22 || slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "HOME") }) ||
		!slices.Equal(p.CapabilitySets.Inheritable, []string{"CAP_NET_BIND_SERVICE"}) || !slices.Equal(p.CapabilitySets.Ambient, p.CapabilitySets.Inheritable) ||
		len(p.CapabilitySets.Effective) != 0 || *p.OOMScoreAdj != 968 {
		t.Errorf("process %+v with %+v", p, p.CapabilitySets)
	}
	if !hasNote(o, "CAP_OF_TOMORROW") || o.Cores != 1 || c.Resources.CPUMillis != 200 {
		t.Errorf("notes %q, %d cores, %+v", o.Notes, o.Cores, c.Resources)
	}
}

func TestOCIPodman(t *testing.T) {
	o := ociOf(t, OCIInput{Spec: document(t, "podman")})
	c := o.Container
	if m := mountAt(t, c, "/sys"); m.Type != api.MountSysfs || !m.ReadOnly || !hasNote(o, "in place of the host's /sys") {
		t.Errorf("/sys %+v", m)
	}
	if m := mountAt(t, c, "/dev/mqueue"); m.Type != api.MountMqueue {
		t.Errorf("/dev/mqueue %+v", m)
	}
	if u := c.Namespaces.User; u == nil || len(u.UIDs) != 2 || u.UIDs[1] != (api.IDMapping{Inside: 1, Outside: 100000, Size: 65536}) {
		t.Errorf("user namespace %+v", u)
	}
	if o.Network.Path != "/run/user/1000/netns/netns-2f0a" || c.Resources.Pids != 2048 {
		t.Errorf("network %+v", o.Network)
	}
}

func TestOCIPrivilegedGuest(t *testing.T) {
	s := document(t, "dockerd")
	s.Annotations = map[string]string{AnnotationPrivileged: "true", AnnotationRootfs: RootfsExclusive}
	c := ociOf(t, OCIInput{Spec: s}).Container
	if len(c.Process.CapabilitySets.Effective) != len(capabilityNames) || c.Process.Seccomp != nil || len(c.MaskedPaths)+len(c.ReadonlyPaths) > 0 ||
		mountAt(t, c, "/sys").ReadOnly || mountAt(t, c, "/sys/fs/cgroup").ReadOnly || !mountAt(t, c, "/data").ReadOnly || !c.Rootfs.Host.Exclusive {
		t.Errorf("%+v", c)
	}
}

func TestOCIRootfs(t *testing.T) {
	for mode, want := range map[string][2]bool{"": {}, RootfsShared: {}, RootfsExclusive: {true, false}, RootfsPrivate: {true, true}} {
		s := bundle.Example()
		s.Annotations = map[string]string{AnnotationRootfs: mode}
		o := ociOf(t, OCIInput{Spec: s})
		if h := o.Container.Rootfs.Host; h.Exclusive != want[0] || o.PrivateRoot != want[1] || o.Container.Rootfs.Upper != nil {
			t.Errorf("%q: %+v, a layer of its own %t", mode, h, o.PrivateRoot)
		}
	}
}

func TestOCIVolume(t *testing.T) {
	s := bundle.Example()
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/data", Type: "ext4", Source: "golden", Options: []string{"ro", "loop", "clone=ep.delta", "durability=process"}})
	s.Annotations = map[string]string{AnnotationVolume + "a": "src=named,dst=/named"}
	o := ociOf(t, OCIInput{Spec: s})
	v := o.Volumes[0]
	if v.Source != "/bundles/c1/golden" || v.Clone != "/bundles/c1/ep.delta" || !v.ReadOnly || !v.MustExist || v.Durability != api.DurabilityProcess || !v.NoCopy {
		t.Errorf("%+v", v)
	}
	if v := o.Volumes[1]; v.Source != "named" || v.Target != "/named" || v.MustExist {
		t.Errorf("%+v", v)
	}
	if m := mountAt(t, o.Container, "/data"); m.Type != api.MountVolume || !m.ReadOnly || m.Populate {
		t.Errorf("%+v", m)
	}
}

// TestOCIHostNetwork: a bundle without a network namespace has the host's where that
// is allowed; what has one, or joins a sandbox, is as it was.
func TestOCIHostNetwork(t *testing.T) {
	spec := bundle.Example()
	spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.NetworkNamespace })
	o := ociOf(t, OCIInput{Spec: spec, HostNetwork: true})
	if o.Network.Kind != NetworkOfHost || o.Sandbox.Network.Mode != api.NetworkHost {
		t.Errorf("%+v, %+v", o.Network, o.Sandbox.Network)
	}
	if o := ociOf(t, OCIInput{Spec: bundle.Example(), HostNetwork: true}); o.Network.Kind != NetworkOfItsOwn || o.Sandbox.Network.Mode != api.NetworkNetns {
		t.Errorf("with a namespace of its own: %+v, %+v", o.Network, o.Sandbox.Network)
	}
	if o := ociOf(t, OCIInput{Spec: spec, Joins: "pod"}); o.Sandbox != nil {
		t.Errorf("a sandbox of its own for who joins one: %+v", o.Sandbox)
	}
}

func TestOCIRefuses(t *testing.T) {
	mount := func(m specs.Mount) func(*specs.Spec) {
		return func(s *specs.Spec) { s.Mounts = append(s.Mounts, m) }
	}
	seccomp := func(f specs.LinuxSeccomp) func(*specs.Spec) { return func(s *specs.Spec) { s.Linux.Seccomp = &f } }
	big := uint(5000)
	for _, c := range []struct {
		says  string
		kind  api.Kind
		spoil func(*specs.Spec)
	}{
		{"does not get the host's network", api.KindUnsupported, func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[2:] }},
		{"id-mapped mounts", api.KindUnsupported, mount(specs.Mount{Destination: "/x", Source: "/y", Options: []string{"bind", "idmap"}})},
		{"cannot have any filesystem-specific", api.KindInvalid, mount(specs.Mount{Destination: "/x", Source: "/y", Options: []string{"bind", "size=5"}})},
		{"without a source", api.KindInvalid, mount(specs.Mount{Destination: "/x", Type: "bind"})},
		{"type \"securityfs\" is not supported", api.KindUnsupported, mount(specs.Mount{Destination: "/x", Type: "securityfs"})},
		{"unknown option \"color\" of a tmpfs", api.KindInvalid, mount(specs.Mount{Destination: "/x", Type: "tmpfs", Options: []string{"color=red"}})},
		{"is no size", api.KindInvalid, mount(specs.Mount{Destination: "/x", Type: "tmpfs", Options: []string{"size=9999999t"}})},
		{"is no number in range", api.KindInvalid, mount(specs.Mount{Destination: "/x", Type: "devpts", Options: []string{"gid=tty"}})},
		{"cannot mix", api.KindInvalid, mount(specs.Mount{Destination: "/x", Type: "ext4", Source: "v", Options: []string{"type=tmpfs"}})},
		{"over the root", api.KindUnsupported, mount(specs.Mount{Destination: "//", Type: "tmpfs"})},
		{"remount", api.KindUnsupported, mount(specs.Mount{Destination: "/x", Type: "tmpfs", Options: []string{"remount"}})},
		{"unexpected key", api.KindInvalid, mount(specs.Mount{Destination: "/x", Type: "ext4", Source: "v", Options: []string{"data=ordered"}})},
		{"quote", api.KindInvalid, mount(specs.Mount{Destination: "/x", Type: "ext4", Source: "v", Options: []string{`clone="`}})},
		{"annotation dev.gvx.volume.v: want src=", api.KindInvalid, func(s *specs.Spec) {
			s.Annotations = map[string]string{AnnotationVolume + "v": "dst=/x"}
		}},
		{"annotation dev.gvx.rootfs", api.KindInvalid, func(s *specs.Spec) { s.Annotations = map[string]string{AnnotationRootfs: "fast"} }},
		{"valid action", api.KindInvalid, seccomp(specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_X"})},
		{"notifies nobody", api.KindUnsupported, seccomp(specs.LinuxSeccomp{DefaultAction: specs.ActNotify})},
		{"seccomp flag", api.KindInvalid, seccomp(specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{"X"}})},
		{"valid operator", api.KindInvalid, seccomp(specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Op: "X"}}}}})},
		{"no argument 6", api.KindInvalid, seccomp(specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 6, Op: specs.OpEqualTo}}}}})},
		{"error number 5000", api.KindInvalid, seccomp(specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &big})},
		{"LINUX32", api.KindUnsupported, func(s *specs.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32} }},
		{"Intel RDT", api.KindUnsupported, func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{} }},
		{"netDevices", api.KindUnsupported, func(s *specs.Spec) { s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"eth0": {}} }},
		{"invalid hostname", api.KindInvalid, func(s *specs.Spec) { s.Hostname = "a b" }},
		{"no list of processors", api.KindInvalid, func(s *specs.Spec) { s.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "3-1"} }},
		{"umask", api.KindInvalid, func(s *specs.Spec) { s.Process.User.Umask = new(uint32); *s.Process.User.Umask = 0o1000 }},
		{"console size", api.KindInvalid, func(s *specs.Spec) { s.Process.ConsoleSize = &specs.Box{Height: 1 << 16} }},
		{"time namespaces", api.KindUnsupported, func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace, Path: "/proc/1/ns/time"})
		}},
	} {
		s := bundle.Example()
		c.spoil(s)
		_, err := FromOCI(OCIInput{ID: "c", Spec: s, Dir: "/b", Rootfs: "/b/rootfs"})
		if api.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v (%s), want %q (%s)", err, api.KindOf(err), c.says, c.kind)
		}
	}
}

func TestOCIDevices(t *testing.T) {
	mode, id := os.FileMode(0o640)|os.ModeCharDevice, uint32(7)
	s := bundle.Example()
	s.Linux.Devices = []specs.LinuxDevice{
		{Path: "/dev/net/tun", Type: "c", Major: 10, Minor: 200, FileMode: &mode, UID: &id, GID: &id},
		{Path: "/dev/kvm", Type: "u", Major: 10, Minor: 232}, {Path: "/dev/sda", Type: "b", Major: 8},
	}
	o := ociOf(t, OCIInput{Spec: s})
	want := []api.Device{
		{Path: "/dev/net/tun", Type: "c", Major: 10, Minor: 200, Mode: 0o640, UID: 7, GID: 7},
		{Path: "/dev/kvm", Type: "c", Major: 10, Minor: 232, Mode: 0o666}, {Path: "/dev/sda", Type: "b", Major: 8, Mode: 0o666},
	}
	if !reflect.DeepEqual(o.Container.Devices, want) || !hasNote(o, "2 devices have nodes and no driver") {
		t.Errorf("%+v, %q", o.Container.Devices, o.Notes)
	}
}

func TestOCIProcess(t *testing.T) {
	spec := document(t, "dockerd")
	p, _, err := OCIProcess(&specs.Process{Args: []string{"id"}, Cwd: "/", User: specs.User{UID: 5}}, spec)
	if err != nil || p.Seccomp == nil || len(p.CapabilitySets.Effective) != 14 || p.Account.UID != 5 {
		t.Errorf("%+v, %v", p, err)
	}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"": 0, "0": 1, "0-3": 4, "0-3,2-5,9": 7, " 1, 2 ": 2} {
		if got, err := countCPUs(list); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", list, got, err, want)
		}
	}
	for _, list := range []string{"x", "1-", "-1", "3-2", "0-99999999", ","} {
		if n, err := countCPUs(list); err == nil {
			t.Errorf("%q: %d", list, n)
		}
	}
}

func TestFeatures(t *testing.T) {
	f := Features("1.0")
	if f.Annotations[AnnotationVersion] != "1.0" || !*f.Linux.Seccomp.Enabled || *f.Linux.Apparmor.Enabled || !slices.Contains(f.MountOptions, "rslave") ||
		!slices.Contains(f.MountOptions, "ro") || slices.Contains(f.Linux.Seccomp.Actions, string(specs.ActNotify)) || slices.Contains(f.Linux.Namespaces, "time") {
		t.Errorf("%+v", f)
	}
}

// FuzzOCI checks that whatever package bundle takes is converted to something that
// a sandbox takes too, or refused.
func FuzzOCI(f *testing.F) {
	for _, name := range []string{"dockerd", "cri_sandbox", "cri_container", "podman"} {
		data, err := os.ReadFile(filepath.Join("testdata", "oci_"+name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := bundle.Parse(data)
		if err != nil {
			return
		}
		o, err := FromOCI(OCIInput{ID: "c", Spec: spec, Dir: "/b", Rootfs: "/b/rootfs"})
		if err != nil {
			if api.KindOf(err) == api.KindInternal {
				t.Errorf("%v: an error without a kind", err)
			}
			return
		}
		for _, m := range o.Container.Mounts {
			if !path.IsAbs(m.Target) || m.Target == "/" {
				t.Errorf("mount on %q", m.Target)
			}
		}
	})
}

func TestOCISubmounts(t *testing.T) {
	s := bundle.Example()
	s.Mounts = append(s.Mounts,
		specs.Mount{Destination: "/a", Source: "/srv", Options: []string{"rbind", "ro", "nosuid"}},
		specs.Mount{Destination: "/b", Source: "/srv", Options: []string{"rbind", "ro", "rro"}},
		specs.Mount{Destination: "/c", Source: "/srv", Options: []string{"bind", "ro"}},
		specs.Mount{Destination: "/d", Source: "/many", Options: []string{"rbind", "ro"}})
	o := ociOf(t, OCIInput{Spec: s, Submounts: func(dir string) []string {
		if dir == "/many" {
			return make([]string, maxSubmounts+1)
		}
		return []string{"/srv/x", "/srv/x/y"}
	}})
	var binds []string
	for _, m := range o.Container.Mounts {
		if m.Type == api.MountBind {
			binds = append(binds, fmt.Sprint(m.Target, " ", m.Host.Name, " ", m.ReadOnly, " ", m.NoSUID))
		}
	}
	want := []string{"/a /srv true true", "/a/x /srv/x false true", "/a/x/y /srv/x/y false true", "/b /srv true false", "/c /srv true false", "/d /many true false"}
	if !slices.Equal(binds, want) || !hasNote(o, "are not told apart") {
		t.Errorf("%q, want %q; notes %q", binds, want, o.Notes)
	}
}

// TestAmbientWithoutInheritable: runc warns of such a capability, and it is not raised.
func TestAmbientWithoutInheritable(t *testing.T) {
	spec := bundle.Example()
	kill, chown := "CAP_KILL", "CAP_CHOWN"
	spec.Process.Capabilities = &specs.LinuxCapabilities{
		Permitted: []string{kill, chown}, Inheritable: []string{kill}, Ambient: []string{kill, chown},
	}
	o := ociOf(t, OCIInput{Spec: spec})
	if len(o.Warnings) != 1 || !strings.HasPrefix(o.Warnings[0], "can't raise ambient capability CAP_CHOWN: ") {
		t.Errorf("warnings %q", o.Warnings)
	}
}

// TestNoProcesses: a limit of none is one of one, as in runc; a negative one is none.
func TestNoProcesses(t *testing.T) {
	for limit, want := range map[int64]int64{-1: 0, 0: 1, 7: 7} {
		if got := OCILimits(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}); got.Pids != want {
			t.Errorf("%d became %d, want %d", limit, got.Pids, want)
		}
	}
}
