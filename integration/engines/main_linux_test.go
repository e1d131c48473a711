// SPDX-License-Identifier: Apache-2.0

// Package engines has container engines that know nothing of gvx run containers by
// rungv, as the OCI runtime that each of them calls: containerd through runc's own
// shim, podman, and dockerd.
//
// All of it happens in namespaces of the tests' own (testbed.MainAlone).
package engines

import (
	"os"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// shim has containerd's shim.
var shim testbed.SharedShim

func TestMain(m *testing.M) { os.Exit(testbed.MainAlone(m, shim.Remove)) }
