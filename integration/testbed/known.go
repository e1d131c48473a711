// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"os"
	"strings"
	"testing"
)

// KnownFailures reads the list of what is known to fail in somebody's suite: a
// line has a test's name, a colon, a space and the reason; empty lines and comments
// (#) do not count. A line without a reason fails the test.
func KnownFailures(t testing.TB, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok || reason == "" {
			t.Fatalf("%s: %q has no reason", file, line)
		}
		known[name] = reason
	}
	return known
}
