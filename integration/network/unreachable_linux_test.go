// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestOtherHosts runs a launcher in a network namespace of its own, where one
// address exists, others have no route or are refused by the host, and its
// user may ping.
func TestOtherHosts(t *testing.T) {
	testbed.NeedRoot(t, "a network namespace")
	testbed.NeedCommand(t, "ip")
	h := getHome(t)
	setup := `set -e
ip link set lo up
ip addr add 198.51.100.7/32 dev lo
ip route add prohibit 198.51.100.9/32
ip route add unreachable 198.51.100.10/32
echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range
exec "$@"`
	guest := `
ping -c 1 -W 20 198.51.100.7 | grep -o '1 received'
for to in 198.51.100.7 198.51.100.9 198.51.100.10 203.0.113.1; do
	nc -v -w 20 $to 80 2>&1 | grep -o 'Connection refused\|No route to host\|Network is unreachable'
done`
	want := "1 received\nConnection refused\nNo route to host\nNo route to host\nNetwork is unreachable"
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	inner := h.Command(ctx, "run", "--rm", image, "bash", "-c", guest)
	args := append([]string{"-c", setup, "sh", testbed.NeedCommand(t, "setpriv"),
		"--reuid", strconv.Itoa(h.UID), "--regid", strconv.Itoa(h.GID), "--clear-groups"}, inner.Args...)
	cmd := h.CommandAs(ctx, "/bin/sh", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	result := testbed.Run(t, cmd, nil)
	if result.Code != 0 || strings.TrimSpace(result.Stdout) != want {
		t.Errorf("%v, want %q", result, want)
	}
}
