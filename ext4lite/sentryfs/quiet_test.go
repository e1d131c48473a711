// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// mappedPages counts the pages of memory that this process has in its page tables:
// proc(5), pagemap.
func mappedPages(t *testing.T, of []byte) int {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries := make([]byte, len(of)/hostarch.PageSize*8)
	if _, err := f.ReadAt(entries, int64(uintptr(unsafe.Pointer(&of[0])))/hostarch.PageSize*8); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := 7; i < len(entries); i += 8 {
		n += int(entries[i] >> 7)
	}
	return n
}

// randomFile is a file that is mapped, and its content.
func randomFile(t *testing.T, pages int) (*HostFile, []byte) {
	t.Helper()
	content := make([]byte, pages*hostarch.PageSize)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(content)
	return hostFileOf(t, content), content
}

// hostFileOf makes a file of some content, mapped.
func hostFileOf(t *testing.T, content []byte) *HostFile {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenHostFile(fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestQuietMappingsAreLetGoOf(t *testing.T) {
	const pages = 512
	f, content := randomFile(t, pages)
	read := func() {
		t.Helper()
		got := make([]byte, len(content))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("read: %v, the same: %t", err, bytes.Equal(got, content))
		}
		if n := mappedPages(t, f.data); n != pages {
			t.Errorf("of %d pages that were read %d are mapped", pages, n)
		}
	}
	isQuiet := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); mappedPages(t, f.data) != 0; time.Sleep(quietLook / 4) {
			if time.Now().After(deadline) {
				t.Fatalf("%d pages are mapped for good", mappedPages(t, f.data))
			}
		}
	}
	for range 2 {
		read()
		isQuiet()
	}
	// What is being read stays.
	for begin := time.Now(); time.Since(begin) < 4*quietLook; time.Sleep(quietLook / 10) {
		read()
	}
	// So does what is read by the way that guests' copies go.
	if _, err := f.MapInternal(memmap.FileRange{End: hostarch.PageSize}, hostarch.Read); err != nil {
		t.Fatal(err)
	}
	if f.use.Load() != usedLately {
		t.Error("a mapping that was handed out is not noted")
	}
	f.close()
	quiet.mu.Lock()
	defer quiet.mu.Unlock()
	if _, is := quiet.files[f]; is {
		t.Error("a file that was closed is looked at")
	}
}

// TestQuietMappingsAndClosing has files closed while they are let go of: the addresses
// of a mapping that went are others' at once.
func TestQuietMappingsAndClosing(t *testing.T) {
	awaitNoWatcher(t)
	normal := quietLook
	quietLook = 100 * time.Microsecond
	t.Cleanup(func() {
		awaitNoWatcher(t)
		quietLook = normal
	})
	const pages = 64
	content := make([]byte, pages*hostarch.PageSize)
	for i := range content {
		content[i] = byte(i)
	}
	letGo := 0
	for begin := time.Now(); time.Since(begin) < 2*time.Second; {
		f, want := randomFile(t, pages)
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read: %v", err)
		}
		// Some are let go of before, some while, some after they are closed.
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
		if f.use.Load() == unused {
			letGo++
		}
		f.close()
		// Private memory, likely where the file was: its content would be gone.
		memory, err := unix.Mmap(-1, 0, len(content), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		copy(memory, content)
		time.Sleep(time.Millisecond)
		if !bytes.Equal(memory, content) {
			t.Fatal("memory was taken away that is not the file's any more")
		}
		unix.Munmap(memory)
	}
	if letGo == 0 {
		t.Error("no file was let go of before it was closed")
	}
}

// awaitNoWatcher waits until nobody looks at mappings.
func awaitNoWatcher(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		quiet.mu.Lock()
		watching := quiet.watching
		quiet.mu.Unlock()
		if !watching {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("mappings are looked at for ever")
		}
	}
}
