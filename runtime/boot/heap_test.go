// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		live, garbage uint64
		want          int
	}{
		{0, garbageBytes, gcPercentMost},
		{1 << 20, garbageBytes, gcPercentMost},
		{4 << 20, garbageBytes, 400},
		{16 << 20, garbageBytes, 100},
		{1 << 30, garbageBytes, guestGCPercent},
		{4 << 20, 0, guestGCPercent},
		{4 << 20, 64 << 20 / garbageShare, guestGCPercent},
	} {
		if got := gcPercent(c.live, c.garbage); got != c.want {
			t.Errorf("%d bytes live, %d of garbage: %d, want %d", c.live, c.garbage, got, c.want)
		}
	}
}

// TestEachCollectionSaysWhenTheNextIs: a heap that has grown, or shrunk, since.
func TestEachCollectionSaysWhenTheNextIs(t *testing.T) {
	percent := func() int {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: still %d percent", what, percent())
			}
			runtime.GC()
		}
	}
	afterCollections(garbageBytes, guestGCPercent)
	await("a small heap", func() bool { return percent() > 2*guestGCPercent })
	held := make([]byte, 64<<20)
	await("a large one", func() bool { return percent() == guestGCPercent })
	runtime.KeepAlive(held)
	held = nil
	await("a small one again", func() bool { return percent() > 2*guestGCPercent })
}
