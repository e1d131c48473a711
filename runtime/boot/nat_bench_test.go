// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"io"
	"net"
	"testing"
)

// benchChunk is what a program reads or writes at once.
const benchChunk = 256 << 10

// BenchmarkNAT moves bytes through the router, without the cost of a guest's
// system calls: `-bench NAT -cpuprofile` shows where the time goes.
func BenchmarkNAT(b *testing.B) {
	zeros := make([]byte, benchChunk)
	b.Run("out", func(b *testing.B) {
		n := newTestNetwork(b)
		got := make(chan int64)
		server := listen(b, func(c *net.TCPConn) {
			k, _ := io.Copy(io.Discard, struct{ io.Reader }{c})
			got <- k
		})
		c, err := n.dial(server)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(benchChunk)
		for b.Loop() {
			if _, err := c.Write(zeros); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
		<-got
	})
	b.Run("in", func(b *testing.B) {
		n := newTestNetwork(b)
		server := listen(b, func(c *net.TCPConn) {
			for {
				if _, err := c.Write(zeros); err != nil {
					return
				}
			}
		})
		c, err := n.dial(server)
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, benchChunk)
		b.SetBytes(benchChunk)
		for b.Loop() {
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
	})
}

// BenchmarkNATConnect opens and closes connections, several at once.
func BenchmarkNATConnect(b *testing.B) {
	n := newTestNetwork(b)
	server := listen(b, func(c *net.TCPConn) { _, _ = io.Copy(c, struct{ io.Reader }{c}) })
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		buf := make([]byte, 1)
		for pb.Next() {
			c, err := n.dial(server)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = c.Write(buf)
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Error(err)
			}
			c.Close()
		}
	})
}
