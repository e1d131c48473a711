// SPDX-License-Identifier: Apache-2.0

// Command pause is process 1 of the test bed's pods where CRI wants a container for
// them: it does nothing, reaps what is orphaned, and ends when asked to. Called
// "nnp" it is the program by which critest finds out whether set-user-id bits work.
// It belongs to the test bed, and is never part of what gvx installs.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == "nnp" {
		fmt.Println("Effective uid:", os.Geteuid())
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
