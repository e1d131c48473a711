// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package gvx

import "os/exec"

type terminal struct{}

func openTerminal(op string, _ *streams) (*terminal, error) {
	return nil, errorf(KindUnsupported, op, "terminals are not supported on this system")
}

func (*terminal) control(*exec.Cmd)           {}
func (*terminal) abort()                      {}
func (*terminal) start()                      {}
func (*terminal) close()                      {}
func (*terminal) watched() *watchedWriter     { return nil }
func (*terminal) resize(uint16, uint16) error { return nil }
