// SPDX-License-Identifier: Apache-2.0

// Package netns tests `rungv run --network ns:PATH` end to end, as root, in
// network namespaces that the tests make by iproute2:
//
//	pod ── eth0 ══ p0 ── router ── s0 ══ eth0 ── server
//	10.44.0.2            10.44.0.1, 10.45.0.1     10.45.0.2    and the same in fd44::, fd45::
//
// The guest is in the pod; whom it talks to are ordinary processes in the others.
package netns

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
	"z.gfire.dev/gvx/runtime/netns"
)

// image is the guest: Debian with ping, iperf3, iproute2, iptables and Python.
const image = "net"

// The addresses of the world.
const (
	podIP, podIP6       = "10.44.0.2", "fd44::2"
	routerIP, routerIP6 = "10.44.0.1", "fd44::1"
	serverIP, serverIP6 = "10.45.0.2", "fd45::2"
)

// commandTimeout bounds a sandbox of these tests.
const commandTimeout = 3 * time.Minute

var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// imported says that root's store has the image.
var imported sync.Once

// rungv makes a command that runs rungv as root, with a store of its own.
func rungv(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	testbed.NeedRoot(t, "network namespaces")
	testbed.Need(t, image)
	h := home.Get(t)
	command := func(args ...string) *exec.Cmd {
		cmd := h.CommandAs(ctx, h.Binary, append([]string{"--root", h.Path("root")}, args...)...)
		cmd.SysProcAttr.Credential = nil
		return cmd
	}
	imported.Do(func() {
		if output, err := command("image", "import", "--progress", "none", "oci:"+h.Layout(t, image)+":latest", image).CombinedOutput(); err != nil {
			t.Fatalf("import image: %v: %s", err, output)
		}
	})
	return command(args...)
}

// worlds numbers the worlds of this process: names of namespaces are the host's.
var worlds atomic.Int64

// world is three namespaces.
type world struct {
	pod, router, server string
}

// newWorld makes them; mtu is that of the pod's cable, and farMTU of the server's.
func newWorld(t *testing.T, mtu, farMTU int) *world {
	t.Helper()
	testbed.NeedRoot(t, "network namespaces")
	testbed.NeedCommand(t, "ip")
	n := worlds.Add(1)
	name := func(role string) string { return fmt.Sprintf("gvxt%d-%d-%s", os.Getpid(), n, role) }
	w := &world{pod: name("pod"), router: name("router"), server: name("server")}
	for _, ns := range []string{w.pod, w.router, w.server} {
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
		// No waiting for addresses that nobody else has.
		ip(t, "netns", "exec", ns, "sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
		ip(t, "-n", ns, "link", "set", "lo", "up")
	}
	w.cable(t, w.pod, "eth0", podIP, podIP6, w.router, "p0", routerIP, routerIP6, mtu)
	w.cable(t, w.server, "eth0", serverIP, serverIP6, w.router, "s0", "10.45.0.1", "fd45::1", farMTU)
	for ns, gateways := range map[string][2]string{w.pod: {routerIP, routerIP6}, w.server: {"10.45.0.1", "fd45::1"}} {
		ip(t, "-n", ns, "route", "add", "default", "via", gateways[0])
		ip(t, "-n", ns, "-6", "route", "add", "default", "via", gateways[1])
	}
	// The kernel takes up addresses of version 6 when it hears that the link is up, by and by.
	for _, a := range [][2]string{{w.pod, podIP6}, {w.router, routerIP6}, {w.router, "fd45::1"}, {w.server, serverIP6}} {
		for deadline := time.Now().Add(time.Minute); !strings.HasPrefix(ip(t, "-n", a[0], "-6", "route", "get", a[1]), "local "); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("address %s is not there", a[1])
			}
		}
	}
	for _, setting := range []string{"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"} {
		ip(t, "netns", "exec", w.router, "sysctl", "-qw", setting)
	}
	return w
}

// cable connects two namespaces.
func (w *world) cable(t *testing.T, a, aName, aIP, aIP6, b, bName, bIP, bIP6 string, mtu int) {
	t.Helper()
	ip(t, "-n", a, "link", "add", aName, "mtu", fmt.Sprint(mtu), "type", "veth", "peer", "name", bName, "netns", b, "mtu", fmt.Sprint(mtu))
	for _, end := range [][4]string{{a, aName, aIP, aIP6}, {b, bName, bIP, bIP6}} {
		ip(t, "-n", end[0], "addr", "add", end[2]+"/24", "dev", end[1])
		ip(t, "-n", end[0], "-6", "addr", "add", end[3]+"/64", "dev", end[1], "nodad")
		ip(t, "-n", end[0], "link", "set", end[1], "up")
	}
}

// ip runs iproute2 and returns what it says.
func ip(t *testing.T, args ...string) string {
	t.Helper()
	output, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// path is where a namespace is.
func path(ns string) string { return "/run/netns/" + ns }

// in calls f in a namespace.
func in(t *testing.T, ns string, f func() error) {
	t.Helper()
	n, err := netns.Open(path(ns))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Do(f); err != nil {
		t.Fatal(err)
	}
}

// listen listens in a namespace and calls serve for each connection.
func listen(t *testing.T, ns, address string, serve func(net.Conn)) {
	t.Helper()
	var l net.Listener
	in(t, ns, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

// sh runs a script in a guest of the pod.
func (w *world) sh(t *testing.T, script string, flags ...string) testbed.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	args := append([]string{"run", "--rm", "--network", "ns:" + path(w.pod)}, flags...)
	return testbed.Run(t, rungv(ctx, t, append(args, image, "bash", "-c", script)...), nil)
}

// expect runs a script that has to succeed and print what is wanted.
func (w *world) expect(t *testing.T, want, script string, flags ...string) {
	t.Helper()
	result := w.sh(t, script, flags...)
	if result.Code != 0 || strings.TrimSpace(result.Stdout) != want {
		t.Errorf("script %q: %v, want %q", script, result, want)
	}
}

// serve starts a guest that prints "ready" once it serves; it ends with the test,
// or when stop is called.
func (w *world) serve(t *testing.T, name, script string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	cmd := rungv(ctx, t, "run", "--rm", "--name", name, "--network", "ns:"+path(w.pod), image, "bash", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			defer cancel()
			_ = rungv(ctx, t, "rm", "-f", name).Run()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(stop)
	buf := make([]byte, 16)
	if n, _ := out.Read(buf); !strings.Contains(string(buf[:n]), "ready") {
		stop()
		t.Fatalf("the guest did not get ready: %s", problems.String())
	}
	return stop
}
