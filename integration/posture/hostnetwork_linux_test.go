// SPDX-License-Identifier: Apache-2.0

package posture

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// abstractSocket is the name in package compromised.
const abstractSocket = "@gvx-attack"

// Attacks on a sandbox that has the host's network by configuration: those that are
// what it was given, and those whose system call it needs, so that the kernel is asked
// and refuses.
var (
	givenWithHostNetwork = []string{"TCP socket", "TCP6 socket"}
	askedWithHostNetwork = []string{
		"connect", "bind", "listen", "sendto", "sendmsg", "setsockopt", "accept on another descriptor",
		"connect to an abstract socket",
	}
)

// sendToAbstract is judged by what arrives: a packet socket to the gofer takes what is
// sent to any address.
const sendToAbstract = "send to an abstract socket"

// arrives says whether something is sent to a socket within a moment.
func arrives(t *testing.T, at *net.UnixConn) bool {
	t.Helper()
	if err := at.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := at.Read(make([]byte, 100))
	return err == nil
}

// hostNetworkBundle is a bundle without a network namespace whose guest says that it
// is alive.
func (l *launcher) hostNetworkBundle(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(l.home.Path("bin"), "bundle-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	shell, err := os.ReadFile("/bin/busybox")
	if err != nil {
		testbed.Missing(t, "busybox-static: %v", err)
	}
	spec := specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs", Readonly: true},
		Process: &specs.Process{Args: []string{"/bin/busybox", "echo", "alive"}, Cwd: "/", User: specs.User{UID: uint32(l.uid), GID: uint32(l.uid)}},
		Mounts:  []specs.Mount{{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}, {Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	document, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "rootfs", "bin")
	for _, d := range []string{bin, filepath.Join(dir, "rootfs", "dev"), filepath.Join(dir, "rootfs", "proc")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range map[string][]byte{filepath.Join(bin, "busybox"): shell, filepath.Join(dir, "config.json"): document} {
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAttacksWithHostNetwork: who has taken over a sandbox on the host's network has
// the sockets that its guest has, and nothing else that another would not have: no
// unix socket of the host's, no filters, no netlink but questions about the network.
func TestAttacksWithHostNetwork(t *testing.T) {
	for _, l := range launchers(t) {
		t.Run(l.name, func(t *testing.T) {
			listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: abstractSocket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			own, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: abstractSocket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close()
			if _, err := own.Write([]byte("test")); err != nil || !arrives(t, listener) {
				t.Fatalf("nobody reaches the abstract socket: %v", err)
			}
			neighbour := l.start(t)
			result, attempts := l.compromisedCommand(t, mode{Action: "refuse", Attack: "all", Without: -1, Neighbour: neighbour.pid},
				"--allow-host-network", "run", "--bundle", l.hostNetworkBundle(t), "attacked-"+l.name)
			if result.Code != 0 || result.Stdout != "alive\n" {
				t.Errorf("the guest after the attacks: %v", result)
			}
			if len(attempts) < minAttacks {
				t.Errorf("%d attacks, want at least %d", len(attempts), minAttacks)
			}
			seen := 0
			for _, a := range attempts {
				switch {
				case slices.Contains(givenWithHostNetwork, a.Name):
					seen++
					if a.Errno != 0 {
						t.Errorf("%s, which the guest has: %s", a.Name, a.Err)
					}
				case a.Name == sendToAbstract:
					seen++
					if arrives(t, listener) {
						t.Errorf("attack succeeded: %s", a.Name)
					}
				case a.Errno == 0:
					t.Errorf("attack succeeded: %s", a.Name)
				case slices.Contains(askedWithHostNetwork, a.Name):
					seen++
				case !a.Permitted && a.Errno != int(unix.EPERM):
					t.Errorf("attack %q reached the kernel, which answered: %s", a.Name, a.Err)
				}
			}
			if want := len(givenWithHostNetwork) + len(askedWithHostNetwork) + 1; seen != want {
				t.Errorf("%d of %d attacks on what it has", seen, want)
			}
			if gone(neighbour.pid) {
				t.Error("the neighbour did not survive")
			}
		})
	}
}
