// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// resultsTitle begins a results file.
const resultsTitle = "# Results of the long runs\n\nWritten by `make nightly`: each section is the latest run of one suite.\n"

// Record replaces one section of integration/RESULTS.md: what a long run gave,
// when, of which commit, on what machine, with which peers.
func Record(t testing.TB, section, body string) {
	t.Helper()
	name := filepath.Join(Tree(), "integration", "RESULTS.md")
	before, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%s\n\n%s\n%s", time.Now().UTC().Format(time.DateOnly), machine(), strings.TrimSpace(body))
	if err := os.WriteFile(name, []byte(replaceSection(string(before), section, text)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replaceSection returns the document with the section's text in place of what
// it was, or added at the end.
func replaceSection(document, section, text string) string {
	if document == "" {
		document = resultsTitle
	}
	heading := "\n## " + section + "\n"
	text = heading + "\n" + text + "\n"
	before, rest, found := strings.Cut(document, heading)
	if !found {
		return document + text
	}
	if i := strings.Index(rest, "\n## "); i >= 0 {
		return before + text + rest[i:]
	}
	return before + text
}

// machine says what the results were taken on.
func machine() string {
	var line strings.Builder
	fmt.Fprintf(&line, "%s/%s, %d processors, Linux %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), firstLine("/proc/sys/kernel/osrelease"))
	if commit, err := exec.Command("git", "-C", Tree(), "describe", "--always", "--dirty").Output(); err == nil {
		fmt.Fprintf(&line, "; commit %s", bytes.TrimSpace(commit))
	}
	versions, err := os.ReadFile(filepath.Join(Tree(), "integration", "testbed", "versions.env"))
	if err == nil {
		for entry := range strings.Lines(string(versions)) {
			if name, version, ok := strings.Cut(strings.TrimSpace(entry), "_VERSION="); ok {
				fmt.Fprintf(&line, "; %s %s", strings.ToLower(name), version)
			}
		}
	}
	return line.String() + "\n"
}

func firstLine(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return "?"
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}
