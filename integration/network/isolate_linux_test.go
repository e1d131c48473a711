// SPDX-License-Identifier: Apache-2.0

package network

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// isolate puts the rest of the test into a network namespace of its own, made
// up by the lines of setup: what it listens on and whom it starts. The thread
// ends with the test, and the namespace with it.
func isolate(t *testing.T, setup string) {
	t.Helper()
	testbed.NeedRoot(t, "a network namespace")
	testbed.NeedCommand(t, "ip")
	getHome(t) // Built outside: it may need the network.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	script := "set -e\nip link set lo up\necho '0 2147483647' > /proc/sys/net/ipv4/ping_group_range\n" + setup
	if output, err := exec.Command("/bin/sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("set up the test's network: %v: %s", err, strings.TrimSpace(string(output)))
	}
}
