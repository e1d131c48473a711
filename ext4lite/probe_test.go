// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ext4lite_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
)

func TestProbe(t *testing.T) {
	path := newVolume(t, 64<<20, ext4lite.MkfsOptions{Label: "golden"})
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	s, err := ext4lite.Probe(f)
	must(t, err)
	if s.Label != "golden" || s.SizeBytes != 64<<20 || s.BlockSize != 4096 || s.InUse || s.FreeBytes <= 0 || s.FreeBytes >= s.SizeBytes {
		t.Errorf("a new volume: %+v", s)
	}
	fs := open(t, path, ext4lite.Options{})
	must(t, fs.WriteFile("f", []byte("x"), ext4lite.NewInode{Mode: 0o644}))
	must(t, fs.Sync())
	if s, err = ext4lite.Probe(f); err != nil || !s.InUse {
		t.Errorf("an open volume: in use %v, %v", s.InUse, err)
	}
	closeFS(t, fs)
	if s, err = ext4lite.Probe(f); err != nil || s.InUse {
		t.Errorf("a closed volume: in use %v, %v", s.InUse, err)
	}
	for name, p := range map[string][]byte{"nothing": nil, "short": make([]byte, 1500), "zeros": make([]byte, 4096)} {
		if _, err := ext4lite.Probe(bytes.NewReader(p)); err == nil || !strings.Contains(err.Error(), "not an ext4 volume") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpenOfAPipeReturns: a path that a hostile delta names its base by may
// lead to anything.
func TestOpenOfAPipeReturns(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "base.ext4")
	must(t, syscall.Mkfifo(pipe, 0o600))
	for _, p := range []string{pipe, dir, os.DevNull} {
		if _, err := delta.OpenAny(p, device.ReadOnly); err == nil || !strings.Contains(err.Error(), "no file") {
			t.Errorf("%s: %v", p, err)
		}
	}
	path, _ := golden(t, 3)
	d := filepath.Join(filepath.Dir(path), "ep.delta")
	must(t, delta.Create(d, path, delta.Options{}))
	must(t, os.Rename(path, path+".away"))
	must(t, syscall.Mkfifo(path, 0o600))
	if _, err := delta.OpenChain(d, device.ReadWrite); err == nil || !strings.Contains(err.Error(), "no file") {
		t.Errorf("a delta on a pipe: %v", err)
	}
}

func FuzzProbe(f *testing.F) {
	p, err := os.ReadFile(newVolume(f, 8<<20, ext4lite.MkfsOptions{}))
	must(f, err)
	f.Add(p[1024:2048])
	f.Fuzz(func(t *testing.T, super []byte) {
		s, err := ext4lite.Probe(bytes.NewReader(append(make([]byte, 1024), super...)))
		if err == nil && (s.SizeBytes <= 0 || s.FreeBytes < 0 || s.FreeBytes > s.SizeBytes) {
			t.Errorf("%d bytes, %d of them free", s.SizeBytes, s.FreeBytes)
		}
	})
}

// TestTheLargestVolumeHasASize: 2^48 blocks of 64 KiB are more bytes than a
// number holds.
func TestTheLargestVolumeHasASize(t *testing.T) {
	p, err := os.ReadFile(newVolume(t, 8<<20, ext4lite.MkfsOptions{}))
	must(t, err)
	s := p[1024:2048]
	for at, v := range map[int]uint32{
		0x04: 0, 0x150: 1 << 16, // blocks
		0x18: 6, 0x1C: 20, 0x20: 1 << 31, 0x24: 1 << 17, // sizes of blocks, clusters and groups
		0x28: 256, 0x00: 1 << 25, 0x64: 0x200, // inodes, bigalloc
	} {
		for k := range 4 {
			s[at+k] = byte(v >> (8 * k))
		}
	}
	if got, err := ext4lite.Probe(bytes.NewReader(p)); err == nil || !strings.Contains(err.Error(), "blocks of 65536 bytes") {
		t.Errorf("%+v, %v", got, err)
	}
}
