// SPDX-License-Identifier: Apache-2.0

package lockdown

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread is for a launcher: it runs f, which forks a sandbox process and
// waits for it, on a thread of its own, as [Outer.Apply] asks for. It returns
// at once.
func OnOwnThread(f func()) { onOwnThread(f) }

// onOwnThread runs f on a thread that runs nothing else, before or after, and
// ends when f returns. f may give that thread restrictions that cannot be
// taken back. It returns at once.
//
// The process' first thread is never used: the Go runtime cannot end it, so
// what f did to it would stay.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f() // never unlocked: the thread ends with this goroutine
			return
		}
		// While we occupy the first thread, the next goroutine gets another.
		done := make(chan struct{})
		onOwnThread(func() {
			close(done)
			f()
		})
		<-done
		runtime.UnlockOSThread()
	}()
}
