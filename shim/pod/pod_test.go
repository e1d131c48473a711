// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"

	"z.gfire.dev/gvx/runtime/api"
)

// message builds one, as CRI's clients do.
type message []byte

func (m message) text(n protowire.Number, s string) message {
	return protowire.AppendString(protowire.AppendTag(m, n, protowire.BytesType), s)
}

func (m message) sub(n protowire.Number, s message) message {
	return protowire.AppendBytes(protowire.AppendTag(m, n, protowire.BytesType), s)
}

func (m message) number(n protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), v)
}

func mapped(inside, outside, size uint64) message {
	return message{}.number(1, outside).number(2, inside).number(3, size)
}

// whole is a description with all that counts, and some that does not.
func whole() message {
	namespaces := message{}.number(1, 0).number(2, 1).sub(5, message{}.number(1, 0).sub(2, mapped(0, 1000, 65536)).sub(3, mapped(0, 2000, 65536)))
	linux := message{}.text(1, "/kubepods/pod1").sub(2, message{}.number(4, 1).sub(1, namespaces)).
		sub(3, message{}.text(1, "kernel.shmmax").text(2, "4096")).
		sub(5, message{}.number(1, 100000).number(2, 50000).number(3, 2).number(4, 1<<30))
	return message{}.sub(1, message{}.text(1, "name")).text(2, "box").
		sub(4, message{}.text(1, "192.0.2.1").text(1, "192.0.2.2").text(2, "a.test").text(3, "ndots:5")).
		sub(6, message{}.text(1, "label").text(2, "value")).sub(8, linux)
}

func TestWhatCountsOfADescription(t *testing.T) {
	got, err := Parse("types.test/"+configType, whole())
	want := &Config{
		Hostname: "box", DNS: true, Servers: []string{"192.0.2.1", "192.0.2.2"}, Searches: []string{"a.test"}, Options: []string{"ndots:5"},
		CgroupParent: "/kubepods/pod1", Sysctls: map[string]string{"kernel.shmmax": "4096"}, HasUser: true,
		UIDs: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1000, Size: 65536}}, GIDs: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 2000, Size: 65536}},
		CPUPeriod: 100000, CPUQuota: 50000, MemoryBytes: 1 << 30,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Parse = %+v, %v", got, err)
	}
	if got, err := Parse("", nil); err != nil || !reflect.DeepEqual(got, &Config{}) {
		t.Errorf("without a description: %+v, %v", got, err)
	}
}

// TestDamagedDescriptions end in errors, wherever they end.
func TestDamagedDescriptions(t *testing.T) {
	if _, err := Parse("another.Type", whole()); api.KindOf(err) != api.KindInvalid {
		t.Errorf("another type: %v", err)
	}
	m, failed := whole(), 0
	for i := range m {
		if _, err := Parse(configType, m[:i]); err != nil {
			failed++
		}
	}
	if failed < len(m)*3/4 {
		t.Errorf("%d of %d cut descriptions are refused", failed, len(m))
	}
	var many message
	for range maxListed + 1 {
		many = many.text(1, "x")
	}
	if _, err := Parse(configType, message{}.sub(4, many)); api.KindOf(err) != api.KindLimit {
		t.Errorf("too many name servers: %v", err)
	}
}

// TestWordsOfADescriptionAddNoLines: a pod's files have the lines that they shall have.
func TestWordsOfADescriptionAddNoLines(t *testing.T) {
	for name, m := range map[string]message{
		"host name":   message{}.text(2, "a\nb"),
		"name server": message{}.sub(4, message{}.text(1, "192.0.2.1\nsearch elsewhere")),
		"search":      message{}.sub(4, message{}.text(2, "a\rb")),
		"option":      message{}.sub(4, message{}.text(3, "a\x00")),
	} {
		if _, err := Parse(configType, m); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%s with a line of its own: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole()))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := Parse(configType, data); err == nil {
			_ = c.Spec("id", "")
		}
	})
}

func TestDocumentOfASandbox(t *testing.T) {
	c, err := Parse(configType, whole())
	if err != nil {
		t.Fatal(err)
	}
	s := c.Spec("id", "/run/netns/x")
	path := func(kind specs.LinuxNamespaceType) string {
		for _, n := range s.Linux.Namespaces {
			if n.Type == kind {
				return "at " + n.Path
			}
		}
		return "none"
	}
	if s.Hostname != "box" || s.Linux.CgroupsPath != "/kubepods/pod1/id" || s.Linux.Sysctl["kernel.shmmax"] != "4096" || path(specs.NetworkNamespace) != "at /run/netns/x" ||
		path(specs.UserNamespace) != "at " || len(s.Linux.UIDMappings) != 1 || s.Annotations[annotationMemory] != "1073741824" {
		t.Errorf("spec %+v, %+v", s, s.Linux)
	}
	s = (&Config{Network: ModeNode, CgroupParent: "/a.slice/b.slice"}).Spec("id", "")
	if path(specs.NetworkNamespace) != "none" || path(specs.UserNamespace) != "none" || s.Linux.CgroupsPath != "b.slice:cri-containerd:id" {
		t.Errorf("of the node: %+v", s.Linux)
	}
	if s := (&Config{}).Spec("id", ""); s.Linux.CgroupsPath != "" {
		t.Errorf("without a parent: %q", s.Linux.CgroupsPath)
	}
}

func TestFilesOfAPod(t *testing.T) {
	host := t.TempDir()
	for name, text := range map[string]string{"hosts": "127.0.0.1 localhost\n", "resolv.conf": "nameserver 192.0.2.9\n"} {
		if err := os.WriteFile(filepath.Join(host, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	from := hostFiles{hosts: filepath.Join(host, "hosts"), resolver: filepath.Join(host, "resolv.conf"), name: "node"}
	c, err := Parse(configType, whole())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		c        *Config
		from     hostFiles
		resolver string
		hosts    string
		name     string
	}{
		{c, from, "search a.test\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions ndots:5\n", "127.0.0.1 localhost\n", "box\n"},
		{&Config{}, from, "nameserver 192.0.2.9\n", "127.0.0.1 localhost\n", "node\n"},
		{&Config{DNS: true}, hostFiles{hosts: "/no/such", resolver: "/no/such", name: "node"}, "", "", "node\n"},
	} {
		dir := t.TempDir()
		f, err := test.c.makeFiles(dir, test.from)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"resolv.conf": test.resolver, "hosts": test.hosts, "hostname": test.name} {
			if got, err := os.ReadFile(filepath.Join(f.dir, name)); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v, want %q", name, got, err, want)
			}
		}
	}
}

// TestWhatAContainerGets: what it has of its own stays.
func TestWhatAContainerGets(t *testing.T) {
	f := &Files{dir: "/pod"}
	s := &specs.Spec{Root: &specs.Root{Readonly: true}, Mounts: []specs.Mount{
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm"},
		{Destination: "/etc/hosts/", Type: "bind", Source: "/kubelet/hosts"},
	}}
	f.AddTo(s)
	source := func(s *specs.Spec, at string) string {
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return strings.TrimSuffix(m.Destination, "/") == at })
		if i < 0 {
			return ""
		}
		if slices.Contains(s.Mounts[i].Options, "ro") {
			return s.Mounts[i].Source + " ro"
		}
		return s.Mounts[i].Source
	}
	for at, want := range map[string]string{
		"/etc/hosts": "/kubelet/hosts", "/etc/hostname": "/pod/hostname ro", "/etc/resolv.conf": "/pod/resolv.conf ro", "/dev/shm": "/pod/shm",
	} {
		if got := source(s, at); got != want {
			t.Errorf("%s is %q, want %q", at, got, want)
		}
	}
	if len(s.Mounts) != 4 {
		t.Errorf("mounts %+v", s.Mounts)
	}
	volume := &specs.Spec{Mounts: []specs.Mount{{Destination: "/dev/shm", Type: "bind", Source: "/volume"}}}
	f.AddTo(volume)
	if got := source(volume, "/dev/shm"); got != "/volume" {
		t.Errorf("a volume on shared memory: %q", got)
	}
	if got := source(volume, "/etc/hosts"); got != "/pod/hosts" {
		t.Errorf("/etc/hosts is %q", got)
	}
}
