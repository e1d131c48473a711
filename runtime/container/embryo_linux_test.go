// SPDX-License-Identifier: Apache-2.0

package container

import "os"

// A run forks this very binary before it knows whether it can come to anything.
// As a sandbox process a test binary has nothing to do.
func init() {
	if os.Args[0] == "gvx-sandbox" {
		os.Exit(0)
	}
}
