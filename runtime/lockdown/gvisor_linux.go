// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"bytes"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

const (
	// gvisorGreeting is the first line of the kernel log of every gVisor
	// sandbox, and gVisor lets everybody read it.
	gvisorGreeting = "Starting gVisor..."
	// gvisorBuild is what every gVisor sandbox gives as its kernel's build.
	gvisorBuild = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
	// syslogReadAll is syslog(2)'s action of that name.
	syslogReadAll = 3
)

// DetectGVisor reports whether the process runs inside a gVisor sandbox,
// where systrap cannot work. It takes a few microseconds.
//
// Either of two signs is enough: the kernel log begins with gVisor's greeting;
// or the kernel claims gVisor's build and, unlike any Linux since 4.14, cannot
// say which seccomp actions it knows. A host that forbids both questions is
// not gVisor, which forbids neither.
func DetectGVisor() bool {
	var log [256]byte
	n, err := unix.Klogctl(syslogReadAll, log[:])
	if err == nil && greets(log[:max(n, 0)]) {
		return true
	}
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	return unix.ByteSliceToString(u.Version[:]) == gvisorBuild && !actionAvailable(uint32(linux.SECCOMP_RET_ALLOW))
}

// greets says whether a kernel log's first line is gVisor's greeting. On Linux
// the same call returns the log's end, where anybody's text may stand: so only
// the whole first line counts, with its timestamp of zero.
func greets(log []byte) bool {
	line, _, _ := bytes.Cut(log, []byte("\n"))
	stamp, text, ok := bytes.Cut(line, []byte("] "))
	return ok && string(text) == gvisorGreeting && bytes.HasSuffix(stamp, []byte(" 0.000000"))
}
