// SPDX-License-Identifier: Apache-2.0

// Gen compiles the seccomp tables for both architectures and writes the
// programs as Go source into the current directory: see the go:generate line
// in package lockdown, whose test fails when they are out of date.
package main

import (
	"fmt"
	"os"

	"z.gfire.dev/gvx/runtime/lockdown/internal/source"
)

func main() {
	for _, p := range source.Programs {
		for _, arch := range source.Arches {
			text, err := p.Generate(arch)
			if err == nil {
				err = os.WriteFile(p.FileName(arch), text, 0o644)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "gen:", err)
				os.Exit(1)
			}
		}
	}
}
