// SPDX-License-Identifier: Apache-2.0

// Netclient is the guest's half of the network benchmark: one static program for
// every runtime, so that they differ in nothing else.
//
//	netclient push|pull|connect ADDRESS DURATION
//
// It prints one number: bytes a second that the server has counted, or
// connections a second, each opened, used for one byte both ways, and closed.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// What the first byte of a connection asks the server for.
const (
	askPush = 'u'
	askPull = 'd'
	askEcho = 'e'
)

// workers open connections side by side.
const workers = 16

func main() {
	if len(os.Args) != 4 {
		fail(fmt.Errorf("usage: netclient push|pull|connect ADDRESS DURATION"))
	}
	d, err := time.ParseDuration(os.Args[3])
	if err != nil {
		fail(err)
	}
	var rate float64
	switch os.Args[1] {
	case "push":
		rate, err = push(os.Args[2], d)
	case "pull":
		rate, err = pull(os.Args[2], d)
	case "connect":
		rate, err = connect(os.Args[2], d)
	default:
		err = fmt.Errorf("unknown mode %q", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
	fmt.Printf("%.0f\n", rate)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "netclient:", err)
	os.Exit(1)
}

func dial(address string, ask byte) (*net.TCPConn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{ask}); err != nil {
		c.Close()
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// push sends, and lets the server say how much it got.
func push(address string, d time.Duration) (float64, error) {
	c, err := dial(address, askPush)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	chunk := make([]byte, 256<<10)
	begin := time.Now()
	for time.Since(begin) < d {
		if _, err := c.Write(chunk); err != nil {
			return 0, err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	var total [8]byte
	if _, err := io.ReadFull(c, total[:]); err != nil {
		return 0, err
	}
	return float64(binary.BigEndian.Uint64(total[:])) / time.Since(begin).Seconds(), nil
}

func pull(address string, d time.Duration) (float64, error) {
	c, err := dial(address, askPull)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	buf := make([]byte, 256<<10)
	total := 0
	begin := time.Now()
	for time.Since(begin) < d {
		n, err := c.Read(buf)
		total += n
		if err != nil {
			return 0, err
		}
	}
	return float64(total) / time.Since(begin).Seconds(), nil
}

func connect(address string, d time.Duration) (float64, error) {
	var count atomic.Int64
	var group sync.WaitGroup
	var failure atomic.Pointer[error]
	begin := time.Now()
	for range workers {
		group.Go(func() {
			one := make([]byte, 1)
			for time.Since(begin) < d {
				c, err := dial(address, askEcho)
				if err == nil {
					_, err = io.ReadFull(c, one)
					c.Close()
				}
				if err != nil {
					failure.Store(&err)
					return
				}
				count.Add(1)
			}
		})
	}
	group.Wait()
	if err := failure.Load(); err != nil {
		return 0, *err
	}
	return float64(count.Load()) / time.Since(begin).Seconds(), nil
}
