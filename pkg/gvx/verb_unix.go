// SPDX-License-Identifier: Apache-2.0

//go:build unix

package gvx

import (
	"net"
	"os"
	"os/exec"
	"syscall"
)

// socketPair returns the two ends of the channel between us and rungv.
func socketPair() (near net.Conn, far *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, errorf(KindLimit, opSockets, "make a socket pair: %w", err)
	}
	file := os.NewFile(uintptr(fds[0]), "rungv")
	far = os.NewFile(uintptr(fds[1]), "caller")
	defer file.Close() // FileConn duplicates it.
	if near, err = net.FileConn(file); err != nil {
		far.Close()
		return nil, nil, errorf(KindLimit, opSockets, "make a socket pair: %w", err)
	}
	return near, far, nil
}

// prepareCommand keeps signals that a terminal sends to our process group from
// rungv: what becomes of a sandbox is our user's decision.
func prepareCommand(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// hangUp tells rungv that we are done, while its last events can still come.
func hangUp(conn net.Conn) {
	if c, ok := conn.(*net.UnixConn); ok {
		_ = c.CloseWrite()
	}
}
