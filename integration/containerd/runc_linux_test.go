// SPDX-License-Identifier: Apache-2.0

// Package containerd runs containers through a real containerd of the tests' own,
// by its stock client and over CRI, with each snapshotter: first with runc, which
// tells a fault of the test bed from ours, then with gvx's shim.
//
// All of it happens in namespaces of the tests' own (testbed.MainAlone).
package containerd

import (
	"os"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

var shim testbed.SharedShim

func TestMain(m *testing.M) { os.Exit(testbed.MainAlone(m, shim.Remove)) }

// snapshotters are those that a node may have.
var snapshotters = []string{"overlayfs", "native", "erofs"}

// TestRunc proves the test bed: a container of each snapshotter with something to
// stack runs, writes, and leaves nothing.
func TestRunc(t *testing.T) {
	c := testbed.NewContainerd(t, testbed.ContainerdOptions{})
	defer c.Close(t)
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		t.Run(snapshotter, func(t *testing.T) {
			image := c.Image(t, snapshotter, "demo")
			output := c.MustCtr(t, "run", "--rm", "--snapshotter", snapshotter, image, "once",
				"sh", "-c", "echo hello > /file && cat /file && head -n 1 /etc/os-release")
			if !strings.HasPrefix(output, "hello\nPRETTY_NAME=") {
				t.Errorf("printed %q", output)
			}
			nothingLeft(t, c)
		})
	}
}

// nothingLeft checks that no task has left anything. Things may take a moment.
func nothingLeft(t *testing.T, c *testbed.Containerd) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if left = c.Left(t); len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %q", left)
		}
	}
}
