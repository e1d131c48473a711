// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"z.gfire.dev/gvx/pkg/gvx"
)

// What a guest is asked to see the effect of a field: each prints one line.
const (
	askRaw = `python3 - <<'END'
import socket
try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    print("raw")
except PermissionError:
    print("refused")
END`
	askPacket = `python3 - <<'END'
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
s.bind(("eth0", 0))
try:
    s.send(b"\xff" * 6 + b"\2\0\0\0\0\1" + b"\x88\xb5" + b"x" * 50)
    print("sent")
except OSError:
    print("refused")
END`
	// A program of root's with the set-user-ID bit, run by somebody else.
	askSetUID = `python3 - <<'END'
import os, shutil
shutil.copy("/usr/bin/id", "/var/id"); os.chmod("/var/id", 0o4755)
os.setgroups([]); os.setgid(1000); os.setuid(1000)
os.execv("/var/id", ["id", "-u"])
END`
	// The share of a processor that a loop gets; what it is without a limit depends on
	// the host's other work.
	askShare = `python3 - <<'END'
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() - began < 2: pass
print("held" if time.process_time() - used < 0.5 * (time.monotonic() - began) else "not held")
END`
	askTasks = `python3 - <<'END'
import os
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            os.read(os.pipe()[0], 1)
        made += 1
    print("all")
except OSError:
    print("refused at", made + 1)
END`
)

// TestFieldsHoldForTheGuest: each of Config says what a guest may, has and sees, and
// its zero value the other.
func TestFieldsHoldForTheGuest(t *testing.T) {
	w := setup(t)
	for name, test := range map[string]struct {
		script        string
		set           func(*gvx.Config)
		without, with string
	}{
		"NetRaw": {askRaw, func(c *gvx.Config) { c.NetRaw = true }, "refused", "raw"},
		"AllowPacketSocketWrite": {askPacket, func(c *gvx.Config) { c.AllowPacketSocketWrite = true },
			"refused", "sent"},
		"AllowSUID": {askSetUID, func(c *gvx.Config) { c.AllowSUID = true }, "1000", "0"},
		"CapDrop": {"chown 5 /tmp 2>/dev/null && echo changed || echo refused", func(c *gvx.Config) { c.CapDrop = []string{"CHOWN"} },
			"changed", "refused"},
		"Sysctls": {"cat /proc/sys/net/ipv4/ip_forward", func(c *gvx.Config) { c.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"} },
			"0", "1"},
		"Ulimits": {"test $(ulimit -Sn) = 123 && test $(ulimit -Hn) = 456 && echo ours || echo others",
			func(c *gvx.Config) { c.Ulimits = map[string]gvx.Ulimit{"nofile": {Soft: 123, Hard: 456}} }, "others", "ours"},
		"AddHosts": {"getent hosts db | tr -s ' '; echo .", func(c *gvx.Config) {
			c.AddHosts = map[string]netip.Addr{"db": netip.MustParseAddr("10.9.8.7")}
		}, ".", "10.9.8.7 db\n."},
		"DNS": {"grep -c 192.0.2.53 /etc/resolv.conf", func(c *gvx.Config) {
			c.DNS, c.NetworkMode = []netip.Addr{netip.MustParseAddr("192.0.2.53")}, gvx.NetModeNone
		}, "0", "1"},
		"Pids":         {askTasks, func(c *gvx.Config) { c.Resources.Pids = 20 }, "all", "refused at 19"},
		"CPUMillis":    {askShare, func(c *gvx.Config) { c.Resources.CPUMillis = 250 }, "", "held"},
		"ShmSizeBytes": {"df -k --output=size /dev/shm | tail -n 1 | tr -d ' '", func(c *gvx.Config) { c.ShmSizeBytes = 2 << 20 }, "65536", "2048"},
		"ReadOnly": {"touch /file 2>/dev/null && echo written || echo refused", func(c *gvx.Config) { c.ReadOnly = true },
			"written", "refused"},
		"RootfsBytes": {"head -c 60000000 /dev/zero 2>/dev/null >/big && echo written || echo refused", func(c *gvx.Config) { c.Resources.RootfsBytes = 32 << 20 },
			"written", "refused"},
		"Init":     {"cat /proc/1/cmdline | tr '\\0' ' ' | grep -c '^sh -c'", func(c *gvx.Config) { c.Init = true }, "1", "0"},
		"tmpfs":    {"stat -f -c %T /m 2>/dev/null || echo none", func(c *gvx.Config) { c.Mounts = []gvx.Mount{{Kind: gvx.MountTmpfs, GuestPath: "/m"}} }, "none", "tmpfs"},
		"Hostname": {"test $(hostname) = box && echo ours || echo others", func(c *gvx.Config) { c.Hostname = "box" }, "others", "ours"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, set := range []bool{false, true} {
				var out, errs bytes.Buffer
				c := w.config(test.script + "\nexit 0")
				c.NetworkMode, c.Stdout, c.Stderr = gvx.NetModeNAT, &out, &errs
				// Packet sockets are a part of NetRaw.
				c.NetRaw = name == "AllowPacketSocketWrite"
				want := test.without
				if set {
					test.set(&c)
					want = test.with
				}
				code, err := newSandbox(t, c).Run(t.Context())
				have := strings.TrimSpace(out.String())
				if code != 0 || err != nil || have != want && want != "" {
					t.Errorf("set %v: code %d, error %v, output %q, errors %q; want %q", set, code, err, have, &errs, want)
				}
			}
		})
	}
}

// TestRecordTellsTheConfiguration: what others see of a sandbox, by docker's names.
func TestRecordTellsTheConfiguration(t *testing.T) {
	w := setup(t)
	c := w.config("echo ready; sleep 1000")
	c.Name, c.Labels, c.Hostname = "told", map[string]string{"episode": "7", "empty": ""}, "box"
	c.Resources.MemoryBytes = 512 << 20
	sb := startSandbox(t, c)
	text, err := sb.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		ID, Name string
		State    struct{ Running bool }
		Config   struct {
			Hostname string
			Labels   map[string]string
			Cmd      []string
		}
		HostConfig struct{ Memory int64 }
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.ID != sb.ID() || strings.TrimPrefix(doc.Name, "/") != "told" || !doc.State.Running || doc.Config.Hostname != "box" ||
		doc.HostConfig.Memory != 512<<20 || len(doc.Config.Cmd) != 3 {
		t.Errorf("%s", text)
	}
	if l := doc.Config.Labels; len(l) < 2 || l["episode"] != "7" {
		t.Errorf("labels: %q", l)
	}
	if _, err := gvx.New(t.Context(), c); err == nil {
		t.Error("two sandboxes have one name")
	}
}

// TestEgressRulesHoldAndChange: a sandbox reaches what its rules allow, and loses it,
// open connections included, when they change.
func TestEgressRulesHoldAndChange(t *testing.T) {
	w := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
				if first {
					close(ended)
				}
			}()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	c := w.config(fmt.Sprintf(`exec python3 - <<'END'
import socket
def reach():
    try:
        return socket.create_connection(("10.0.2.2", %d), timeout=60)
    except OSError:
        return None
c = reach()
c.sendall(b"x"); c.recv(1)
print("ready", flush=True)
try:
    c.recv(1)
except OSError:
    pass
print("reached" if reach() else "refused", flush=True)
END`, port))
	out := &watched{}
	c.NetworkMode, c.Egress, c.Stdout = gvx.NetModeNAT, []string{"deny", fmt.Sprintf("allow=127.0.0.1:%d", port)}, out
	sb := newSandbox(t, c)
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready")
	if err := sb.SetEgress(t.Context(), "deny"); err != nil {
		t.Fatal(err)
	}
	<-ended
	if exit, err := sb.Wait(t.Context()); err != nil || exit.Code != 0 || out.String() != "ready\nrefused\n" {
		t.Errorf("%+v, %v, %q", exit, err, out)
	}
	// Without a rule, the host's loopback is out of reach.
	var bare bytes.Buffer
	c.Egress, c.Stdout = nil, &bare
	c.Cmd[2] = fmt.Sprintf(`python3 -c 'import socket; socket.create_connection(("10.0.2.2", %d), timeout=60)' 2>/dev/null || echo refused`, port)
	if code, err := newSandbox(t, c).Run(t.Context()); code != 0 || err != nil || bare.String() != "refused\n" {
		t.Errorf("without rules: code %d, %v, %q", code, err, &bare)
	}
}
