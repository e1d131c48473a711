// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPullErrorNamesTheSource: an image that is bad is called what the user
// called it, and not what it would have been called in the store.
func TestPullErrorNamesTheSource(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.tar")
	if err := os.WriteFile(bad, []byte(strings.Repeat("this is no tar ", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, t.TempDir())
	ref := "rootfs-tar:" + bad
	if _, err := s.Pull(context.Background(), ref, PullOptions{}); err == nil || !strings.HasPrefix(err.Error(), "image "+ref) {
		t.Errorf("got %v", err)
	}
}
