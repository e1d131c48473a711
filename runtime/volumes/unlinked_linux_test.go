// SPDX-License-Identifier: Apache-2.0

// Names of new files on file systems without hard links.

package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestAFileMadeMeanwhileIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, p := range []string{one, two} {
		if err := os.WriteFile(p, []byte(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := renameNew(one, two); !errors.Is(err, os.ErrExist) {
		t.Errorf("renamed over a file: %v", err)
	}
	if err := renameNew(one, filepath.Join(dir, "three")); err != nil {
		t.Error(err)
	}
}
