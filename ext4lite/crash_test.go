// SPDX-License-Identifier: Apache-2.0

// Crashes at every point of a workload. After each, the volume must hold one
// of the states the workload went through since its last sync.

package ext4lite_test

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// atomically makes operations that are one transaction each and never write
// over data in place, so that every state is all or nothing.
func (g *generator) atomic() op {
	for {
		p := g.path()
		switch g.r.IntN(8) {
		case 0:
			data, blocks := g.bytes(1+g.r.IntN(4096)), g.r.Int64N(3)
			return op{"append " + p, func(t target) ext4lite.Errno { return appendBlock(t, p, data, blocks) }}
		case 1:
			return op{"cut " + p, func(t target) ext4lite.Errno { return t.truncate(p, 0) }}
		}
		o := g.next()
		switch strings.Fields(o.what)[0] {
		case "write", "truncate", "fallocate":
			continue
		}
		return o
	}
}

// appendBlock writes one block past the end of a file, perhaps behind a hole.
func appendBlock(t target, path string, data []byte, skip int64) ext4lite.Errno {
	const bs = 4096
	var size int64
	switch t := t.(type) {
	case *model:
		n, e := t.file(path)
		if e != 0 {
			return e
		}
		size = int64(len(n.data))
	case *ours:
		i, err := t.fs.Walk(path)
		if err != nil {
			return no(err)
		}
		size = i.Attr().Size
		i.Release()
	}
	return t.write(path, (size+bs-1)/bs*bs+skip*bs, data)
}

// history is what a workload did: after each operation, the state of the tree
// and how many changes the device had seen.
type history struct {
	base   *device.Mem
	dev    *recorder
	states []string
	at     []int // changes seen when the operation ended
	synced []int // for each operation, the newest one known to be durable
}

// play runs a workload until it ends or the device fails.
func play(t *testing.T, seed uint64, ops int, o ext4lite.Options, failAt int, failBy error, closed bool) *history {
	t.Helper()
	base := device.NewMem(16 << 20)
	must(t, ext4lite.Mkfs(base, ext4lite.MkfsOptions{Journal: 4 << 20}))
	h := &history{base: base, dev: &recorder{Mem: base.Clone(), failAt: failAt, failBy: failBy, ranges: o.RangeSync}}
	m := newModel()
	note := func(durable bool) {
		last := 0
		if k := len(h.synced); k > 0 {
			last = h.synced[k-1]
		}
		if durable {
			last = len(h.states)
		}
		h.states = append(h.states, strings.Join(m.dump(), "\n"))
		h.at = append(h.at, h.dev.len())
		h.synced = append(h.synced, last)
	}
	fs, err := ext4lite.Open(h.dev, o)
	if err != nil {
		if failAt == 0 {
			t.Fatal(err)
		}
		note(true)
		return h
	}
	us := &ours{t, fs}
	note(true)
	g := &generator{r: rand.New(rand.NewPCG(seed, 3)), names: 5, maxFile: 100000}
	for range ops {
		if g.r.IntN(9) == 0 {
			if o.RangeSync {
				// A sync of a file that the running transaction has changed
				// makes all of that transaction durable.
				if root, err := fs.Root(); err == nil {
					err = root.SetAttr(ext4lite.SetAttr{Mtime: &ext4lite.Time{Sec: int64(len(h.states))}})
					if err == nil {
						err = root.SyncFile()
					}
					root.Release()
					if err == nil {
						note(true)
						continue
					}
				}
			} else if err := fs.Sync(); err == nil {
				note(true)
				continue
			}
		}
		o := g.atomic()
		b := o.do(us)
		if failAt > 0 && b != 0 && (b == ext4lite.EIO || b == ext4lite.EROFS || b == ext4lite.ENOSPC) {
			o.do(m) // it may have happened, and may not
			note(false)
			break
		}
		if a := o.do(m); a != b {
			t.Fatalf("%s: the model says %d, we %d", o.what, a, b)
		}
		note(false)
	}
	if failAt == 0 {
		must(t, fs.Sync())
		note(true)
	}
	if closed {
		must(t, fs.Close())
		note(true)
	} else {
		fs.Abandon()
	}
	return h
}

// verify opens what a crash left and compares it with what may be there. k is
// how many changes the device had seen.
func (h *history) verify(t *testing.T, m *device.Mem, k int, what string, tools bool) {
	t.Helper()
	var path string
	if tools {
		path = save(t, m)
	}
	fs, err := ext4lite.Open(m, ext4lite.Options{})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	lines, err := dumpFS(fs)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	got := strings.Join(lines, "\n")
	done := 0 // the newest operation that was over
	for done+1 < len(h.at) && h.at[done+1] <= k {
		done++
	}
	ok := false
	for s := h.synced[done]; s <= done+1 && s < len(h.states); s++ {
		ok = ok || h.states[s] == got
	}
	if !ok {
		compare(t, fmt.Sprintf("%s: state %d (durable %d) and what is there", what, done, h.synced[done]),
			strings.Split(h.states[h.synced[done]], "\n"), lines)
	}
	must(t, fs.Close())
	if !tools {
		return
	}
	check(t, save(t, m))
	// e2fsck replays the same log and must come to the same tree.
	out, err := exec.Command(tool(t, "e2fsck"), "-fy", path).CombinedOutput()
	if strings.Contains(string(out), "Superblock checksum does not match") {
		return // a torn superblock and, in a volume this small, no copy: we manage, e2fsck does not
	}
	if ee, isExit := err.(*exec.ExitError); err != nil && (!isExit || ee.ExitCode() > 1) {
		t.Fatalf("%s: e2fsck: %v\n%s", what, err, out)
	}
	for l := range strings.SplitSeq(string(out), "\n") {
		if strings.Contains(l, "FIXED") || strings.Contains(l, "? yes") {
			if !strings.Contains(l, "orphan") && !strings.Contains(l, "Clear inode") && !strings.Contains(l, "Superblock") && !strings.Contains(l, "superblock") {
				t.Fatalf("%s: e2fsck had to mend:\n%s", what, out)
			}
		}
	}
	fs = open(t, path, ext4lite.Options{ReadOnly: true})
	theirs, err := dumpFS(fs)
	must(t, err)
	compare(t, what+": our replay and e2fsck's", lines, theirs)
	closeFS(t, fs)
}

func TestCrashAtEveryWrite(t *testing.T) {
	for _, mode := range []ext4lite.Durability{ext4lite.Host, ext4lite.Process} {
		for s := range seeds(3) {
			seed := firstSeed() + uint64(s)
			t.Run(fmt.Sprintf("mode%d-%d", mode, seed), func(t *testing.T) {
				h := play(t, seed, 150, ext4lite.Options{Durability: mode}, 0, nil, s%2 == 1)
				img := h.base.Clone()
				for k, c := range h.dev.log {
					h.verify(t, img.Clone(), k, fmt.Sprintf("killed after %d of %d changes", k, len(h.dev.log)), k%40 == 7)
					c.apply(img)
				}
				h.verify(t, img, len(h.dev.log), "killed at the end", true)
			})
		}
	}
}

func TestPowerLoss(t *testing.T) {
	for s := range seeds(3) {
		seed := firstSeed() + uint64(s)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := play(t, seed, 150, ext4lite.Options{}, 0, nil, s%2 == 1)
			r := rand.New(rand.NewPCG(seed, 4))
			for n := range 200 {
				img := h.base.Clone()
				k := r.IntN(len(h.dev.log) + 1)
				powerLoss(img, h.dev.log, k, r)
				h.verify(t, img, k, fmt.Sprintf("power cut %d after %d changes", n, k), n%25 == 3)
			}
		})
	}
}

// TestPowerLossBetweenTheMarks cuts the power while a log comes into use and while it is
// emptied, where two superblocks change: e2fsck finds the one that says so with the other.
func TestPowerLossBetweenTheMarks(t *testing.T) {
	for _, ranges := range []bool{false, true} {
		h := play(t, 29, 6, ext4lite.Options{RangeSync: ranges}, 0, nil, true)
		r := rand.New(rand.NewPCG(29, 4))
		for n := range 48 {
			img := h.base.Clone()
			k := r.IntN(8)
			if n%2 == 1 {
				k = len(h.dev.log) - k
			}
			powerLoss(img, h.dev.log, k, r)
			h.verify(t, img, k, fmt.Sprintf("power cut %d after %d of %d changes", n, k, len(h.dev.log)), true)
		}
	}
}

// TestPowerLossWithRanges cuts the power of volumes that sync only what a
// transaction needs.
func TestPowerLossWithRanges(t *testing.T) {
	for s := range seeds(3) {
		seed := firstSeed() + uint64(s)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := play(t, seed, 150, ext4lite.Options{RangeSync: true}, 0, nil, s%2 == 1)
			r := rand.New(rand.NewPCG(seed, 13))
			for n := range 150 {
				img := h.base.Clone()
				k := r.IntN(len(h.dev.log) + 1)
				powerLoss(img, h.dev.log, k, r)
				h.verify(t, img, k, fmt.Sprintf("power cut %d after %d changes", n, k), n%25 == 3)
			}
		})
	}
}

func TestFailingDevice(t *testing.T) {
	for s := range seeds(2) {
		seed := firstSeed() + uint64(s)
		for _, by := range []error{errDisk, errSpace} {
			t.Run(fmt.Sprintf("%d-%v", seed, ext4lite.ErrnoOf(by)), func(t *testing.T) {
				whole := play(t, seed, 80, ext4lite.Options{}, 0, nil, false).dev.len()
				for n := 1; n <= whole; n += 1 + whole/120 {
					h := play(t, seed, 80, ext4lite.Options{}, n, by, false)
					h.verify(t, h.dev.Mem, len(h.dev.log), fmt.Sprintf("change %d of %d failed", n, whole), n%40 == 1)
				}
			})
		}
	}
}

// TestCrashWhileLargeFileGoes removes and cuts files of many extents, which
// takes many transactions; the orphan list must lead the next open through.
func TestCrashWhileLargeFileGoes(t *testing.T) {
	base := device.NewMem(32 << 20)
	must(t, ext4lite.Mkfs(base, ext4lite.MkfsOptions{BlockSize: 1024, Journal: 1 << 20}))
	fs, err := ext4lite.Open(base, ext4lite.Options{})
	must(t, err)
	for _, name := range []string{"gone", "cut"} {
		must(t, fs.WriteFile(name, nil, ext4lite.NewInode{Mode: 0o644}))
		i, err := fs.Walk(name)
		must(t, err)
		for k := range 1500 {
			_, err := i.WriteAt([]byte{1}, int64(k)*2048)
			must(t, err)
		}
		i.Release()
	}
	must(t, fs.Flush())
	img := base.Clone()
	must(t, fs.Close())
	var dev *recorder
	var want uint64
	for attempt := 0; dev == nil || len(dev.log) < 20; attempt++ {
		if attempt == 50 {
			t.Skip("the scheduler did not cut the work into transactions")
		}
		dev = &recorder{Mem: img.Clone()}
		want = removeUnderCommits(t, dev)
	}
	step := 1 + len(dev.log)/150
	for k, c := range dev.log {
		if k%step != 0 {
			c.apply(img)
			continue
		}
		m := img.Clone()
		fs, err := ext4lite.Open(m, ext4lite.Options{})
		must(t, err)
		_, gone := fs.Walk("gone")
		if i, err := fs.Walk("cut"); err != nil {
			t.Fatal(err)
		} else {
			if gone != nil && i.Attr().Size == 2048 && fs.Statfs().Free != want {
				t.Errorf("after change %d: %d blocks free, want %d", k, fs.Statfs().Free, want)
			}
			i.Release()
		}
		must(t, fs.Close())
		if k%(5*step) == 0 {
			check(t, save(t, m))
		}
		c.apply(img)
	}
}

// removeUnderCommits cuts one file and removes another while somebody else
// commits all the time, so that the work is cut into many transactions. It
// tells how much is free in the end.
func removeUnderCommits(t *testing.T, dev *recorder) uint64 {
	t.Helper()
	fs, err := ext4lite.Open(dev, ext4lite.Options{})
	must(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				fs.Sync()
			}
		}
	})
	i, err := fs.Walk("cut")
	must(t, err)
	must(t, i.Truncate(2048))
	i.Release()
	root, err := fs.Root()
	must(t, err)
	must(t, root.Unlink("gone"))
	root.Release()
	close(stop)
	wg.Wait()
	must(t, fs.Sync())
	free := fs.Statfs().Free
	must(t, fs.Abandon())
	return free
}
