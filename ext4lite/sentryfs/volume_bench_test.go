// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"fmt"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// BenchmarkOperations compares a volume with gVisor's file system in memory,
// without a guest.
func BenchmarkOperations(b *testing.B) {
	worlds := map[string]func(b *testing.B) *world{
		"ext4": func(b *testing.B) *world { return mountExt4(b, newVolume(b)) },
		"tmpfs": func(b *testing.B) *world {
			w := newWorld(b)
			mnt, err := w.vfs.MountDisconnected(w.ctx, w.creds, "test", "tmpfs", &vfs.MountOptions{
				GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true},
			})
			w.must(err)
			return w.use(mnt)
		},
	}
	block := usermem.BytesIOSequence(make([]byte, 4096))
	for _, op := range []struct {
		name string
		run  func(b *testing.B, w *world)
	}{
		{"create and unlink", func(b *testing.B, w *world) {
			for k := 0; b.Loop(); k++ {
				name := fmt.Sprintf("/f%d", k)
				fd, err := w.create(name, linux.O_WRONLY, 0o644)
				w.must(err)
				fd.Write(w.ctx, block, vfs.WriteOptions{})
				fd.DecRef(w.ctx)
				w.must(w.unlink(name))
			}
		}},
		{"stat", func(b *testing.B, w *world) {
			w.must(w.mkdir("/d"))
			w.writeFile("/d/f", "x")
			for b.Loop() {
				_, err := w.lstat("/d/f")
				w.must(err)
			}
		}},
		{"read 4 KiB", func(b *testing.B, w *world) {
			fd := w.mustCreate("/f")
			defer fd.DecRef(w.ctx)
			w.pwrite(fd, pattern(1<<20), 0)
			for k := 0; b.Loop(); k++ {
				_, err := fd.PRead(w.ctx, block, int64(k%256)*4096, vfs.ReadOptions{})
				w.must(err)
			}
		}},
		{"write 4 KiB", func(b *testing.B, w *world) {
			fd := w.mustCreate("/f")
			defer fd.DecRef(w.ctx)
			w.pwrite(fd, pattern(1<<20), 0)
			for k := 0; b.Loop(); k++ {
				_, err := fd.PWrite(w.ctx, block, int64(k%256)*4096, vfs.WriteOptions{})
				w.must(err)
			}
		}},
	} {
		for _, name := range []string{"ext4", "tmpfs"} {
			if name == "tmpfs" && op.name == "create and unlink" {
				continue // which asks for a mount namespace
			}
			b.Run(op.name+"/"+name, func(b *testing.B) {
				w := worlds[name](b)
				op.run(b, w)
			})
		}
	}
}
