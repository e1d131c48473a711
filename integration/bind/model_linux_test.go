// SPDX-License-Identifier: Apache-2.0

package bind

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestModel does the same random operations in a directory of the host and in one
// of the guest's own: they answer alike.
func TestModel(t *testing.T) {
	seeds, operations := 2, 3500
	if os.Getenv("GVX_NIGHTLY") != "" {
		seeds = 50
	}
	withBare(t, func(t *testing.T, s *side) {
		for mode, mount := range map[string]string{"shared": "", "cached": ",exclusive"} {
			t.Run(mode, func(t *testing.T) {
				words := mode
				if s.uid != 0 {
					words += " user"
				}
				if s.bare {
					words += " bare"
				}
				script := fmt.Sprintf(`for s in $(seq %d); do mkdir /b/$s /own/$s; python3 /model.py /b/$s /own/$s $s %d %s || exit 1; done`, seeds, operations, words)
				result := s.run(t, "-v", s.program(t, "model.py")+":/model.py:ro", "--mount", "type=bind,src="+s.dir(t)+",dst=/b"+mount, "--tmpfs", "/own", image, "sh", "-c", script)
				if want := strings.Repeat("alike\n", seeds); result.Stdout != want {
					t.Errorf("%v", result)
				}
			})
		}
	})
}
