// SPDX-License-Identifier: Apache-2.0

package gvx

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRunArgs: what each field becomes. A zero configuration adds nothing but
// what the SDK itself needs and the privileges it does not give.
func TestRunArgs(t *testing.T) {
	always := []string{"run", "--rm", "--wait-start", "--progress", "none", "--detach-keys=", "--env-zero-file", newEnvFile}
	bare := []string{"--packet-socket-write=false", "--cap-drop=NET_RAW", "--security-opt=no-new-privileges"}
	open := Config{OCIImage: "i", NetRaw: true, AllowPacketSocketWrite: true, AllowSUID: true}
	for name, test := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"nothing":    {func(*Config) {}, []string{"i"}},
		"zero":       {func(c *Config) { *c = Config{OCIImage: "i"} }, append(slices.Clone(bare), "i")},
		"command":    {func(c *Config) { c.Cmd = []string{"--rm", "x"} }, []string{"i", "--rm", "x"}},
		"entrypoint": {func(c *Config) { c.Entrypoint, c.Cmd = []string{"sh", "-c"}, []string{"true"} }, []string{"--entrypoint=sh", "i", "-c", "true"}},
		"no entrypoint": {func(c *Config) { c.EntrypointSet, c.Cmd = true, []string{"true"} },
			[]string{"--entrypoint=", "i", "true"}},
		"limits": {func(c *Config) {
			c.Resources = Resources{MemoryBytes: 4 << 30, CPUMillis: 1500, Pids: 9, RootfsBytes: 7}
			c.StopTimeout, c.ShmSizeBytes = 1500*time.Millisecond, 3
		}, []string{"--stop-timeout=2", "--shm-size=3", "--memory=4294967296", "--pids-limit=9", "--rootfs-size=7", "--cpus=1.5", "i"}},
		"maps are in order": {func(c *Config) {
			c.Labels, c.Ulimits = map[string]string{"b": "2", "a": "1"}, map[string]Ulimit{"nofile": {1, 2}}
		}, []string{"--label=a=1", "--label=b=2", "--ulimit=nofile=1:2", "i"}},
		"volume": {func(c *Config) {
			c.Mounts = []Mount{{Kind: MountVolume, ImagePath: `/a "b",c`, GuestPath: "/d", ReadOnly: true, SizeBytes: 5, Clone: CloneEphemeral, Durability: DurabilityHost}}
		}, []string{`--mount=type=volume,"src=/a ""b"",c",dst=/d,readonly,size=5,clone=ephemeral,durability=host`, "i"}},
		"tmpfs": {func(c *Config) { c.Mounts = []Mount{{Kind: MountTmpfs, GuestPath: "/d", SizeBytes: 5}} },
			[]string{"--mount=type=tmpfs,dst=/d,tmpfs-size=5", "i"}},
		"bind": {func(c *Config) {
			c.Mounts = []Mount{{Kind: MountBind, ImagePath: "/a", GuestPath: "/d", ReadOnly: true}, {Kind: MountBind, ImagePath: "b/c", GuestPath: "/e"}}
		}, []string{"--mount=type=bind,src=/a,dst=/d,readonly", "--mount=type=bind,src=./b/c,dst=/e", "i"}},
		"network": {func(c *Config) {
			c.Publish = []Port{{Guest: 80}, {Guest: 53, HostPort: 5353, Transport: UDP, HostIP: netip.IPv6Loopback()}, {Guest: 1, Path: "/s"}}
			c.Egress, c.DNS = []string{"deny"}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}, []string{"--publish=127.0.0.1:0:80", "--publish=[::1]:5353:53/udp", "--publish=unix:/s:1", "--egress=deny", "--dns=192.0.2.1", "i"}},
		"docker": {func(c *Config) { c.Docker = true }, []string{"--publish=unix:/docker.sock:2375", "i"}},
	} {
		c := open
		test.change(&c)
		if have, want := c.runArgs("/docker.sock"), append(slices.Clone(always), test.want...); !slices.Equal(have, want) {
			t.Errorf("%s:\nhave %s\nwant %s", name, strings.Join(have, " "), strings.Join(want, " "))
		}
	}
}

// TestParsePort reads what `rungv port` prints.
func TestParsePort(t *testing.T) {
	for line, want := range map[string]Port{
		"80/tcp -> 127.0.0.1:8080": {Guest: 80, HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: 8080, Transport: TCP},
		"53/udp -> [::1]:53":       {Guest: 53, HostIP: netip.IPv6Loopback(), HostPort: 53, Transport: UDP},
		"1/tcp -> unix:/a -> b":    {Guest: 1, Path: "/a -> b", Transport: TCP},
	} {
		if have, err := parsePort(line); err != nil || have != want {
			t.Errorf("%q: %+v, %v", line, have, err)
		}
	}
	for _, line := range []string{"", "x", "80/tcp", "99999/tcp -> 127.0.0.1:1"} {
		if p, err := parsePort(line); err == nil {
			t.Errorf("%q: taken as %+v", line, p)
		}
	}
}
