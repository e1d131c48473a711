// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

func input(img ispec.ImageConfig, o Options) Input {
	return Input{ID: strings.Repeat("0123456789abcdef", 4), Image: img, Layers: []string{"sha256:1", "sha256:2"}, Cores: 4, Options: o}
}

func convertOK(t *testing.T, img ispec.ImageConfig, o Options) *api.Sandbox {
	t.Helper()
	s, err := Sandbox(input(img, o))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCommandIsDockers(t *testing.T) {
	img := ispec.ImageConfig{Entrypoint: []string{"/entry", "-x"}, Cmd: []string{"cmd", "arg"}}
	for _, c := range []struct {
		name string
		img  ispec.ImageConfig
		o    Options
		want []string
	}{
		{"image alone", img, Options{}, []string{"/entry", "-x", "cmd", "arg"}},
		{"arguments replace the command", img, Options{Args: []string{"a"}}, []string{"/entry", "-x", "a"}},
		{"entry point drops the command", img, Options{SetEntrypoint: true, Entrypoint: "sh"}, []string{"sh"}},
		{"entry point with arguments", img, Options{SetEntrypoint: true, Entrypoint: "sh", Args: []string{"-c", "x"}}, []string{"sh", "-c", "x"}},
		{"entry point cleared", img, Options{SetEntrypoint: true, Args: []string{"a"}}, []string{"a"}},
		{"command alone", ispec.ImageConfig{Cmd: []string{"sh"}}, Options{}, []string{"sh"}},
	} {
		if s := convertOK(t, c.img, c.o); !slices.Equal(s.Container.Process.Args, c.want) {
			t.Errorf("%s: %q, want %q", c.name, s.Container.Process.Args, c.want)
		}
	}
	if len(img.Entrypoint) != 2 || len(img.Cmd) != 2 {
		t.Error("the image's configuration was changed")
	}
}

func TestEnvironment(t *testing.T) {
	img := ispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/image", "A=1", "B=2", "=x"}}
	s := convertOK(t, img, Options{Env: []string{"B=3", "C=4", "A", "NONE"}, TTY: true, Hostname: "h"})
	want := []string{"PATH=/image", "HOSTNAME=h", "TERM=xterm", "B=3", "C=4"}
	if !slices.Equal(s.Container.Process.Env, want) {
		t.Errorf("environment %q, want %q", s.Container.Process.Env, want)
	}
	s = convertOK(t, ispec.ImageConfig{Cmd: []string{"sh"}}, Options{Env: []string{"A=1", "A", "A=2"}})
	if got := s.Container.Process.Env; got[len(got)-1] != "A=2" {
		t.Errorf("a variable removed and set again: %q", got)
	}
	if err := s.Validate(); api.KindOf(err) != api.KindInvalid {
		t.Errorf("a spec without descriptors must not be valid: %v", err)
	}
}

func TestDefaultsAndOverrides(t *testing.T) {
	img := ispec.ImageConfig{Cmd: []string{"sh"}, User: "app", WorkingDir: "/srv", StopSignal: "SIGQUIT"}
	s := convertOK(t, img, Options{})
	p := s.Container.Process
	if s.Hostname != "0123456789ab" || p.User != "app" || p.Cwd != "/srv" ||
		s.Container.ShmSizeBytes != DefaultShmSizeBytes || len(s.Container.Rootfs.Layers) != 2 {
		t.Errorf("defaults: %+v", s)
	}
	s = convertOK(t, img, Options{User: "0:0", Workdir: "/w", Hostname: "h", Domainname: "d"})
	if p = s.Container.Process; p.User != "0:0" || p.Cwd != "/w" || s.Hostname != "h" {
		t.Errorf("overrides: %+v", p)
	}
	for _, f := range s.Container.Files {
		if f.Path == "/etc/hosts" && !strings.Contains(string(f.Data), "127.0.1.1\th.d h\n") {
			t.Errorf("hosts: %s", f.Data)
		}
	}
	if n, err := StopSignal(img, &Options{}); n != 3 || err != nil {
		t.Errorf("stop signal %d, %v", n, err)
	}
	if n, err := StopSignal(ispec.ImageConfig{}, &Options{}); n != 15 || err != nil {
		t.Errorf("default stop signal %d, %v", n, err)
	}
	if s = convertOK(t, ispec.ImageConfig{Cmd: []string{"sh"}}, Options{}); s.Container.Process.Cwd != "/" {
		t.Errorf("working directory %q", s.Container.Process.Cwd)
	}
}

func TestVolumesAreDirectories(t *testing.T) {
	img := ispec.ImageConfig{Cmd: []string{"sh"}, Volumes: map[string]struct{}{"/data": {}, "b/../c/": {}, "/": {}, "/x\x00": {}}}
	if got := convertOK(t, img, Options{}).Container.Directories; !slices.Equal(got, []string{"/data", "/c"}) {
		t.Errorf("directories %q", got)
	}
}

func TestFiles(t *testing.T) {
	s := convertOK(t, ispec.ImageConfig{Cmd: []string{"sh"}}, Options{
		AddHosts: []Host{{"db", "10.1.2.3"}}, DNS: []string{"1.1.1.1"}, DNSSearch: []string{"a", "b"}, DNSOption: []string{"ndots:2"}})
	want := map[string]string{
		"/etc/hostname":    "0123456789ab\n",
		"/etc/hosts":       "10.1.2.3\tdb\n",
		"/etc/resolv.conf": "nameserver 1.1.1.1\nsearch a b\noptions ndots:2\n",
	}
	for _, f := range s.Container.Files {
		if !strings.Contains(string(f.Data), want[f.Path]) || f.Mode != 0o644 {
			t.Errorf("%s (%o): %q", f.Path, f.Mode, f.Data)
		}
		delete(want, f.Path)
	}
	if len(want) != 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestRefusals(t *testing.T) {
	cmd := ispec.ImageConfig{Cmd: []string{"sh"}}
	for _, c := range []struct {
		img  ispec.ImageConfig
		o    Options
		want string
	}{
		{ispec.ImageConfig{}, Options{}, "no command specified"},
		{ispec.ImageConfig{Cmd: []string{""}}, Options{}, "name is empty"},
		{cmd, Options{SetEntrypoint: true}, "no command specified"},
		{cmd, Options{MemoryBytes: 1 << 20}, "minimum memory limit"},
		{cmd, Options{CPUMillis: 4001}, "range of CPUs is from 0.01 to 4.00"},
		{cmd, Options{CPUMillis: 5}, "range of CPUs"},
		{cmd, Options{CapAdd: []string{"EVERYTHING"}}, "invalid capability to add"},
		{cmd, Options{CapDrop: []string{"x"}}, "invalid capability to drop"},
	} {
		_, err := Sandbox(input(c.img, c.o))
		if api.KindOf(err) != api.KindInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	if _, err := StopSignal(ispec.ImageConfig{StopSignal: "SIGNONE"}, &Options{}); api.KindOf(err) != api.KindInvalid {
		t.Errorf("an image's bad stop signal: %v", err)
	}
}

func TestCapabilities(t *testing.T) {
	for _, c := range []struct {
		add, drop []string
		want      int
		has       string
	}{
		{nil, nil, len(capabilityNames), "CAP_SYS_ADMIN"},
		{[]string{"all"}, nil, len(capabilityNames), "CAP_SYS_ADMIN"},
		{nil, []string{"net_raw", "CAP_MKNOD"}, len(capabilityNames) - 2, "CAP_CHOWN"},
		{nil, []string{"ALL"}, 0, ""},
		{[]string{"chown"}, []string{"all"}, 1, "CAP_CHOWN"},
		{[]string{"ALL"}, []string{"ALL"}, len(capabilityNames), "CAP_CHOWN"},
		{[]string{"ALL"}, []string{"CHOWN"}, len(capabilityNames) - 1, "CAP_KILL"},
		{nil, []string{"PERFMON"}, len(capabilityNames) - 1, "CAP_KILL"},
	} {
		got, err := Capabilities(c.add, c.drop)
		if err != nil || len(got) != c.want || c.has != "" && !slices.Contains(got, c.has) {
			t.Errorf("add %v drop %v: %d capabilities, %v", c.add, c.drop, len(got), err)
		}
	}
}

func TestParsers(t *testing.T) {
	if n, err := ParseBytes("1.5g"); n != 3<<29 || err != nil {
		t.Errorf("1.5g: %d, %v", n, err)
	}
	if n, err := ParseCPUs("1.25"); n != 1250 || err != nil {
		t.Errorf("1.25 CPUs: %d, %v", n, err)
	}
	if l, err := ParseUlimit("nofile=10:-1"); err != nil || l != (api.Rlimit{Name: "nofile", Soft: 10, Hard: unlimited}) {
		t.Errorf("ulimit: %+v, %v", l, err)
	}
	if h, err := ParseHost("db=[2001:db8::1]"); err != nil || h != (Host{"db", "2001:db8::1"}) {
		t.Errorf("host: %+v, %v", h, err)
	}
	m, err := ParseTmpfs("/run/x/:rw,exec,size=64m,mode=755,uid=7,gid=8")
	want := api.Mount{Type: api.MountTmpfs, Target: "/run/x", NoSUID: true, NoDev: true, SizeBytes: 64 << 20, Mode: 0o755, UID: 7, GID: 8}
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Errorf("tmpfs: %+v, %v", m, err)
	}
	if name, value, err := ParseSysctl("net/core/somaxconn=a=b"); name != "net.core.somaxconn" || value != "a=b" || err != nil {
		t.Errorf("sysctl: %q %q %v", name, value, err)
	}
	for in, want := range map[string]int{"9": 9, "KILL": 9, "sigterm": 15, "SIGRTMIN+1": 35, "RTMAX-1": 63, "POLL": 29, "SYS": 31} {
		if n, err := ParseSignal(in); n != want || err != nil {
			t.Errorf("signal %s: %d, %v", in, n, err)
		}
	}
	for in, want := range map[string]bool{"no-new-privileges": true, "no-new-privileges:false": false, "no-new-privileges=true": true, "seccomp=unconfined": false} {
		if b, err := ParseSecurityOpt(in); b != want || err != nil {
			t.Errorf("security option %s: %v, %v", in, b, err)
		}
	}
}

func TestParsersRefuse(t *testing.T) {
	refuse := func(what, in string, err error) {
		t.Helper()
		if k := api.KindOf(err); k != api.KindInvalid && k != api.KindUnsupported {
			t.Errorf("%s %q: %v", what, in, err)
		}
	}
	for _, s := range []string{"", "x", "-1", "1q", "9999999999999999999999t"} {
		_, err := ParseBytes(s)
		refuse("size", s, err)
	}
	for _, s := range []string{"", "x", "-1", "1e999999999", "5000"} {
		_, err := ParseCPUs(s)
		refuse("cpus", s, err)
	}
	for _, s := range []string{"", "nofile", "files=1", "nofile=x", "nofile=2:1", "nofile=1:x", "core=-2"} {
		_, err := ParseUlimit(s)
		refuse("ulimit", s, err)
	}
	for _, s := range []string{"", "x", "x:", ":1.2.3.4", "a b:1.2.3.4", "h:nope"} {
		_, err := ParseHost(s)
		refuse("host", s, err)
	}
	for _, s := range []string{"", "x", "/", "/a:size=x", "/a:mode=9", "/a:uid=-1", "/a:what"} {
		_, err := ParseTmpfs(s)
		refuse("tmpfs", s, err)
	}
	for _, s := range []string{"", "x", "=1", "..=1", "a..b=1", "a b=1", "../x=1"} {
		_, _, err := ParseSysctl(s)
		refuse("sysctl", s, err)
	}
	for _, s := range []string{"", "0", "65", "NONE", "RTMIN+99", "RTMAX+1", "RTMIN1"} {
		_, err := ParseSignal(s)
		refuse("signal", s, err)
	}
	for _, s := range []string{"", "seccomp=profile.json", "no-new-privileges=perhaps"} {
		_, err := ParseSecurityOpt(s)
		refuse("security option", s, err)
	}
	for _, s := range []string{strings.Repeat("h", 65), "a b", "a/b", "ü"} {
		refuse("hostname", s, CheckHostname(s))
	}
	_, err := ParseDNS("dns.example")
	refuse("name server", "dns.example", err)
}
