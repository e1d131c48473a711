// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// becomeSandbox returns: sandboxes need Linux.
func becomeSandbox() {}

func serve(run func() int) int { return run() }
