// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package gvx

import (
	"net"
	"os"
	"os/exec"
)

var errNoSockets = errorf(KindUnsupported, opSockets, "sandboxes are not supported on this system: use Linux")

func socketPair() (net.Conn, *os.File, error) { return nil, nil, errNoSockets }

func prepareCommand(*exec.Cmd) {}

func hangUp(conn net.Conn) { _ = conn.Close() }
