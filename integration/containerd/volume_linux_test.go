// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"compress/gzip"
	"io"
	"os/exec"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// checkVolume has e2fsprogs look at a writable layer: whole, and with what TestWhat…
// wrote where containerd looks for it.
func checkVolume(t *testing.T, path string) {
	t.Helper()
	if out, err := exec.Command(testbed.NeedCommand(t, "e2fsck"), "-fn", path).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v: %s", err, out)
	}
	debugfs := testbed.NeedCommand(t, "debugfs")
	for command, want := range map[string]string{
		"cat /upper/new":                 "written\n",
		"stat /upper/etc/debian_version": "Type: character special",
		"stat /upper/dir":                "Type: directory",
	} {
		out, err := exec.Command(debugfs, "-R", command, path).Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s", command, err, out)
		}
	}
}

func gunzip(t *testing.T, s string) string {
	t.Helper()
	r, err := gzip.NewReader(strings.NewReader(s))
	if err != nil {
		return ""
	}
	var out bytes.Buffer
	_, _ = io.Copy(&out, r)
	return out.String()
}
