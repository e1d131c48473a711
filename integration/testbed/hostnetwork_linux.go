// SPDX-License-Identifier: Apache-2.0

// The host's network, as guests that are given it find it.

package testbed

import (
	"io"
	"net"
	"slices"
	"strings"
	"testing"
)

// HostSays is what a server of [SayOnLoopback] says.
const HostSays = "of the host\n"

// SayOnLoopback says [HostSays] to whoever connects to a port of the loopback in the
// network namespace of the calling process, for the test's duration.
func SayOnLoopback(t testing.TB) (port int) {
	t.Helper()
	return ServeTCP(t, "127.0.0.1:0", func(c *net.TCPConn) { _, _ = io.WriteString(c, HostSays) }).(*net.TCPAddr).Port
}

// Interfaces are the names of the calling process' network interfaces in their order,
// a line each: what `ls /sys/class/net` says.
func Interfaces(t testing.TB) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name+"\n")
	}
	slices.Sort(names)
	return strings.Join(names, "")
}
