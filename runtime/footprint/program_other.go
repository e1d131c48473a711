// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package footprint

// forgetProgram does nothing where no process waits for a guest.
func forgetProgram() {}
