// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Processes returns those that run this home's binary, as "pid command line":
// launchers, sandboxes and their stubs. Zombies do not count.
func (h *Home) Processes(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", entry.Name())
		program, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil || !strings.HasPrefix(program, h.Binary) {
			continue // gone, a zombie, or somebody else's
		}
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		found = append(found, fmt.Sprintf("%d %s", pid, bytes.ReplaceAll(bytes.TrimRight(command, "\x00"), []byte{0}, []byte{' '})))
	}
	return found
}

// emptyVolumes is where the store keeps an empty volume of each size, made when
// first wanted and kept.
const emptyVolumes = "/volumes/empty/"

// Files returns the paths below the home's runtime and data folders: state,
// sockets, upper files, the store.
func (h *Home) Files(t testing.TB) []string {
	t.Helper()
	var files []string
	for _, top := range []string{"run", "data", "tmp"} {
		err := filepath.WalkDir(h.Path(top), func(path string, entry fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err == nil && !entry.IsDir() && !strings.Contains(path, emptyVolumes) {
				files = append(files, strings.TrimPrefix(path, h.Dir))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// NothingLeft remembers what is there now, and returns a check for later: no
// process and no file more than before. Things may take a moment to go.
func (h *Home) NothingLeft(t testing.TB) func() {
	t.Helper()
	files, processes := h.Files(t), h.Processes(t)
	return func() {
		t.Helper()
		var leftFiles, leftProcesses []string
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			leftFiles, leftProcesses = subtract(h.Files(t), files), subtract(h.Processes(t), processes)
			if len(leftFiles)+len(leftProcesses) == 0 {
				return
			}
			if time.Now().After(deadline) {
				break
			}
		}
		t.Errorf("left behind: processes %q, files %q", leftProcesses, leftFiles)
	}
}

// subtract returns what is in list and not in known. Lock files stay: removing
// one is a race with whoever waits for it.
func subtract(list, known []string) []string {
	return slices.DeleteFunc(list, func(item string) bool {
		return slices.Contains(known, item) || strings.HasSuffix(item, ".lock") || strings.HasSuffix(item, "/lock")
	})
}
