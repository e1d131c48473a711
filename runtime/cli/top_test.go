// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/runtime/control"
)

// TestFormatsOfPs: each format has the title of ps' own, and its cells.
func TestFormatsOfPs(t *testing.T) {
	now := time.Now()
	list := []control.Process{{
		PID: 7, PPID: 1, UID: 4000000000, Command: "sh", Args: []string{"sh", "-c", "true\n"}, ResidentBytes: 2 << 20, VirtualBytes: 8 << 20, ResidentPermille: 25,
		State: "S", TTY: "pts/0", CPU: 61 * time.Second, StartedAt: now.Add(-10 * time.Minute),
	}}
	today := list[0].StartedAt.Local().Format("15:04")
	for options, want := range map[string]string{
		"":             "UID PID PPID C STIME TTY TIME CMD|4000000000 7 1 10 " + today + " pts/0 00:01:01 sh -c true",
		"-ef":          "UID PID PPID C STIME TTY TIME CMD|4000000000 7 1 10 " + today + " pts/0 00:01:01 sh -c true",
		"-e":           "PID TTY TIME CMD|7 pts/0 00:01:01 sh",
		"-e -x":        "PID TTY STAT TIME COMMAND|7 pts/0 S 1:01 sh -c true",
		"aux":          "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND|4000000000 7 10.2 2.5 8192 2048 pts/0 S " + today + " 1:01 sh -c true",
		"-o uid,STATE": "UID STAT|4000000000 S",
		"-o pid=NR":    "NR|7",
	} {
		columns, err := parseTop(strings.Fields(options))
		if err != nil {
			t.Errorf("%q: %v", options, err)
			continue
		}
		var text strings.Builder
		if err := printProcesses(&text, columns, list); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
		for i := range lines {
			lines[i] = strings.Join(strings.Fields(lines[i]), " ")
		}
		if got := strings.Join(lines, "|"); got != want {
			t.Errorf("%q: %q, want %q", options, got, want)
		}
		text.Reset()
		if err := printLikePs(&text, columns, list); err != nil {
			t.Fatal(err)
		}
		// Every column ends, or begins, where its title does.
		table := strings.Split(text.String(), "\n")
		for i, title := range strings.Fields(table[0]) {
			cell := strings.Fields(table[1])[i]
			at := strings.Index(" "+table[0]+" ", " "+title+" ")
			end := at + len(title)
			if right := end <= len(table[1]) && strings.HasSuffix(table[1][:end], cell); !right && !strings.HasPrefix(table[1][at:], cell) {
				t.Errorf("%q: %q does not stand below %q:\n%s", options, cell, title, text.String())
			}
		}
	}
	for options, says := range map[string]string{"-Z": "unknown option", "-o": "without columns", "-o pid,color": "unknown column"} {
		if _, err := parseTop(strings.Fields(options)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", options, err, says)
		}
	}
	old := control.Process{StartedAt: time.Date(2020, 3, 4, 5, 6, 0, 0, time.Local)}
	if got := startTime(&old, now); got != "Mar04" {
		t.Errorf("a process of long ago began at %q", got)
	}
}
