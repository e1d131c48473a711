// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// writeBundle makes a bundle with the example's document, changed by edit.
func writeBundle(t *testing.T, edit func(*specs.Spec)) string {
	t.Helper()
	dir := t.TempDir()
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	spec := Example()
	if edit != nil {
		edit(spec)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ConfigName), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLoad(t *testing.T) {
	dir := writeBundle(t, nil)
	b, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	root, err := b.Rootfs()
	if err != nil || root != filepath.Join(dir, "rootfs") || b.Dir != dir {
		t.Errorf("bundle %q with root %q, %v; want %q", b.Dir, root, err, dir)
	}
	if got := b.Spec.Process.Args[0]; got != "sh" {
		t.Errorf("command %q", got)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Skip(err)
	}
	if b, err = Load(link); err != nil || b.Dir != dir {
		t.Errorf("through a symbolic link: %v, %+v", err, b)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(dir string) error
		kind  api.Kind
		says  string
	}{
		"no document":        {func(dir string) error { return os.Remove(filepath.Join(dir, ConfigName)) }, api.KindNotFound, "JSON specification file config.json not found"},
		"no bundle":          {func(dir string) error { return os.RemoveAll(dir) }, api.KindNotFound, "no such file"},
		"document is null":   {func(dir string) error { return os.WriteFile(filepath.Join(dir, ConfigName), []byte("null"), 0o600) }, api.KindInvalid, "config cannot be null"},
		"document is cut":    {func(dir string) error { return os.Truncate(filepath.Join(dir, ConfigName), 50) }, api.KindInvalid, "unexpected EOF"},
		"document too large": {func(dir string) error { return os.Truncate(filepath.Join(dir, ConfigName), MaxDocumentBytes+1) }, api.KindLimit, "more than"},
		"document is a directory": {func(dir string) error {
			name := filepath.Join(dir, ConfigName)
			if err := os.Remove(name); err != nil {
				return err
			}
			return os.Mkdir(name, 0o700)
		}, api.KindInvalid, "not a regular file"},
	} {
		dir := writeBundle(t, nil)
		if err := c.spoil(dir); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir)
		if api.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v (%s), want %q (%s)", name, err, api.KindOf(err), c.says, c.kind)
		}
	}
}

func TestRootfs(t *testing.T) {
	outside := t.TempDir()
	for name, c := range map[string]struct {
		path string
		make func(dir string) error
		says string
	}{
		"absolute":       {path: outside},
		"above":          {path: "../" + filepath.Base(outside)},
		"missing":        {path: "nothing", says: "invalid rootfs: stat"},
		"symbolic link":  {path: "link", make: func(dir string) error { return os.Symlink("rootfs", filepath.Join(dir, "link")) }, says: "invalid rootfs: not an absolute path, or a symlink"},
		"through a link": {path: "up/rootfs", make: func(dir string) error { return os.Symlink(".", filepath.Join(dir, "up")) }, says: "invalid rootfs: not an absolute path, or a symlink"},
		"a file":         {path: ConfigName, says: "is not a directory"},
	} {
		dir := writeBundle(t, func(s *specs.Spec) { s.Root.Path = c.path })
		if c.make != nil {
			if err := c.make(dir); err != nil {
				t.Skip(err)
			}
		}
		b, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Rootfs()
		switch {
		case name == "above": // Where it leads depends on the host; that it is no escape from anything is the point.
		case c.says == "" && err != nil, c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	zero := 0
	linux := func(f func(*specs.Linux)) func(*specs.Spec) { return func(s *specs.Spec) { f(s.Linux) } }
	process := func(f func(*specs.Process)) func(*specs.Spec) { return func(s *specs.Spec) { f(s.Process) } }
	without := func(t specs.LinuxNamespaceType) func(*specs.Spec) {
		return linux(func(l *specs.Linux) {
			var left []specs.LinuxNamespace
			for _, ns := range l.Namespaces {
				if ns.Type != t {
					left = append(left, ns)
				}
			}
			l.Namespaces = left
		})
	}
	sysctl := func(name string) func(*specs.Spec) {
		return linux(func(l *specs.Linux) { l.Sysctl = map[string]string{name: "1"} })
	}
	both := func(a, b func(*specs.Spec)) func(*specs.Spec) { return func(s *specs.Spec) { a(s); b(s) } }
	for _, c := range []struct {
		says  string
		spoil func(*specs.Spec)
	}{
		{"process property must not be empty", func(s *specs.Spec) { s.Process = nil }},
		{"Cwd property must not be empty", process(func(p *specs.Process) { p.Cwd = "" })},
		{"Cwd must be an absolute path", process(func(p *specs.Process) { p.Cwd = "tmp" })},
		{"args must not be empty", process(func(p *specs.Process) { p.Args = nil })},
		{"null byte", process(func(p *specs.Process) { p.Args = []string{"a\x00b"} })},
		{"missing '='", process(func(p *specs.Process) { p.Env = []string{"HOME"} })},
		{"name cannot be empty", process(func(p *specs.Process) { p.Env = []string{"=x"} })},
		{"contains nul byte", process(func(p *specs.Process) { p.Env = []string{"A=\x00"} })},
		{"wrong rlimit value: RLIMIT_TEST", process(func(p *specs.Process) { p.Rlimits[0].Type = "RLIMIT_TEST" })},
		{"given twice", process(func(p *specs.Process) { p.Rlimits = append(p.Rlimits, p.Rlimits[0]) })},
		{"above the hard limit", process(func(p *specs.Process) { p.Rlimits[0].Soft++ })},
		{"scheduler policy is required", process(func(p *specs.Process) { p.Scheduler = &specs.Scheduler{} })},
		{"invalid scheduler.nice", process(func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: specs.SchedOther, Nice: 20} })},
		{"invalid ioPriority.Priority", process(func(p *specs.Process) { p.IOPriority = &specs.LinuxIOPriority{Priority: 8} })},
		{"invalid ioPriority.Class", process(func(p *specs.Process) { p.IOPriority = &specs.LinuxIOPriority{Class: "X"} })},
		{"root must be specified", func(s *specs.Spec) { s.Root = nil }},
		{"versions up to", func(s *specs.Spec) { s.Version = "2.0.0" }},
		{"is no version", func(s *specs.Spec) { s.Version = "newest" }},
		{"mount destination is empty", func(s *specs.Spec) { s.Mounts[0].Destination = "" }},
		{"mount field contains null byte", func(s *specs.Spec) { s.Mounts[0].Source = "\x00" }},
		{"createRuntime hook #0: path", func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "true"}}} }},
		{"poststop hook #0: timeout", func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true", Timeout: &zero}}}
		}},
		{"does not exist", linux(func(l *specs.Linux) { l.Namespaces[0].Type = "moon" })},
		{"malformed spec file: duplicated ns", linux(func(l *specs.Linux) { l.Namespaces[1] = l.Namespaces[0] })},
		{"is not absolute", linux(func(l *specs.Linux) { l.Namespaces[0].Path = "ns" })},
		{"unable to set hostname without a private UTS namespace", without(specs.UTSNamespace)},
		{"unable to restrict sys entries without a private MNT namespace", without(specs.MountNamespace)},
		{"no namespace path to join nor mappings", linux(func(l *specs.Linux) {
			l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		})},
		{"user namespace isn't enabled", linux(func(l *specs.Linux) { l.UIDMappings = []specs.LinuxIDMapping{{Size: 1}} })},
		{"time namespace isn't enabled", linux(func(l *specs.Linux) { l.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {}} })},
		{"not in a separate kernel namespace", sysctl("vm.overcommit_memory")},
		{"not in a separate kernel namespace", sysctl("kernel/panic")},
		{"conflicts with the OCI", sysctl("kernel.hostname")},
		{"is no name of a parameter", sysctl("net..ipv4")},
		{"setting ucounts", sysctl("user.max_user_namespaces")},
		{"hosts ipc namespace", both(sysctl("kernel.shmmax"), without(specs.IPCNamespace))},
		{"host network namespace", both(sysctl("net.ipv4.ip_forward"), without(specs.NetworkNamespace))},
		{"rootfsPropagation=x is not supported", linux(func(l *specs.Linux) { l.RootfsPropagation = "x" })},
		{"invalid device type", linux(func(l *specs.Linux) { l.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "d"}} })},
		{"out of range", linux(func(l *specs.Linux) { l.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "c", Major: -1}} })},
		{"invalid personality domain", linux(func(l *specs.Linux) { l.Personality = &specs.LinuxPersonality{Domain: "VMS"} })},
		{"path \"proc\" is not absolute", linux(func(l *specs.Linux) { l.MaskedPaths[0] = "proc" })},
		{"device access at 0 field cannot be empty", linux(func(l *specs.Linux) { l.Resources.Devices[0].Access = "" })},
	} {
		s := Example()
		c.spoil(s)
		if err := Validate(s); api.KindOf(err) != api.KindInvalid && api.KindOf(err) != api.KindUnsupported || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}

func TestValidateTakes(t *testing.T) {
	for name, edit := range map[string]func(*specs.Spec){
		"the example":      func(*specs.Spec) {},
		"no version":       func(s *specs.Spec) { s.Version = "" },
		"no linux section": func(s *specs.Spec) { s.Linux, s.Hostname = nil, "" },
		"sysctls of its own": func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{"net/ipv4/ip_forward": "1", "fs.mqueue.msg_max": "9"}
		},
		"relative mount":          func(s *specs.Spec) { s.Mounts[0].Destination = "proc" },
		"unbuffered device":       func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "u", Major: 1}} },
		"unknown capability":      func(s *specs.Spec) { s.Process.Capabilities.Bounding[0] = "CAP_FUTURE" },
		"propagation of the root": func(s *specs.Spec) { s.Linux.RootfsPropagation = "rslave" },
	} {
		s := Example()
		edit(s)
		if err := Validate(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Validate(RootlessExample(1000, 1000)); err != nil {
		t.Errorf("the rootless example: %v", err)
	}
}

func TestSysctlName(t *testing.T) {
	for given, want := range map[string]string{
		"net.ipv4.ip_forward":              "net.ipv4.ip_forward",
		"net/ipv4/ip_forward":              "net.ipv4.ip_forward",
		"net/ipv4/conf/eno2.100.rp_filter": "net.ipv4.conf.eno2/100/rp_filter",
		"net.ipv4.conf.eno2/100.rp_filter": "net.ipv4.conf.eno2/100.rp_filter",
		"":                                 "",
	} {
		if got := SysctlName(given); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}

// TestParseBounds checks that small documents do not become large structures.
func TestParseBounds(t *testing.T) {
	for name, doc := range map[string]string{
		"many values": `{"mounts":[` + strings.Repeat("{},", MaxDocumentValues) + `{}]}`,
		"deep":        strings.Repeat("[", MaxDocumentDepth+1),
		"large":       `"` + strings.Repeat("x", MaxDocumentBytes) + `"`,
	} {
		if _, err := Parse([]byte(doc)); api.KindOf(err) != api.KindLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is in strings is not counted.
	if err := measure([]byte(`"` + strings.Repeat(`{,[\"`, MaxDocumentValues) + `"`)); err != nil {
		t.Error(err)
	}
}

func TestLoadProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "process.json")
	if err := os.WriteFile(file, []byte(`{"args":["id"],"cwd":"/","user":{"uid":5,"gid":6}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := LoadProcess(file)
	if err != nil || p.User.UID != 5 || p.Args[0] != "id" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := ParseProcess([]byte("null")); err == nil || !strings.Contains(err.Error(), "must not be empty") {
		t.Errorf("null: %v", err)
	}
}

// FuzzParse looks for documents that are taken and then cannot be relied on.
func FuzzParse(f *testing.F) {
	for _, s := range []*specs.Spec{Example(), RootlessExample(1000, 100)} {
		data, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := Parse(data)
		if err != nil {
			if kind := api.KindOf(err); kind == api.KindInternal {
				t.Errorf("%v: an error without a kind", err)
			}
			return
		}
		if spec.Process == nil || len(spec.Process.Args) == 0 || spec.Root == nil || spec.Root.Path == "" {
			t.Error("taken without command or root")
		}
		if err := Validate(spec); err != nil {
			t.Errorf("taken, and then refused: %v", err)
		}
	})
}
