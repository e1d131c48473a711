// SPDX-License-Identifier: Apache-2.0

// Bitmaps against a slice of booleans.

package alloc

import (
	"math/rand/v2"
	"testing"
)

func TestBits(t *testing.T) {
	const size = 512
	r := rand.New(rand.NewPCG(1, 1))
	m, want := make([]byte, size/8), make([]bool, size)
	first := func(from, end uint64, set bool) uint64 {
		for ; from < end && want[from] != set; from++ {
		}
		return from
	}
	for range 20000 {
		from := r.Uint64N(size + 1)
		to := from + r.Uint64N(min(size-from, 100)+1)
		set := r.IntN(2) == 0
		if set {
			setBits(m, from, to)
		} else {
			clearBits(m, from, to)
		}
		for i := from; i < to; i++ {
			want[i] = set
		}
		at := r.Uint64N(size)
		end := at + r.Uint64N(size-at+1)
		if testBit(m, at) != want[at] {
			t.Fatalf("bit %d is %v", at, !want[at])
		}
		if got := nextSet(m, at, end); got != first(at, end, true) {
			t.Fatalf("set bit in [%d, %d): %d, wanted %d", at, end, got, first(at, end, true))
		}
		if got := nextClear(m, at, end); got != first(at, end, false) {
			t.Fatalf("clear bit in [%d, %d): %d, wanted %d", at, end, got, first(at, end, false))
		}
		checkRun(t, m, want, at, end, 1+r.Uint64N(60), first)
	}
}

// checkRun compares findRun with a search bit by bit.
func checkRun(t *testing.T, m []byte, want []bool, from, end, n uint64, first func(from, end uint64, set bool) uint64) {
	t.Helper()
	at, got := findRun(m, from, end, n)
	longest := uint64(0)
	for i := from; i < end; {
		s := first(i, end, false)
		e := first(s, end, true)
		if e-s >= n {
			if at != s || got != n {
				t.Fatalf("run of %d in [%d, %d): %d at %d, wanted it at %d", n, from, end, got, at, s)
			}
			return
		}
		longest = max(longest, e-s)
		i = max(e, i+1)
	}
	if got != longest {
		t.Fatalf("longest run in [%d, %d): %d at %d, wanted %d", from, end, got, at, longest)
	}
	for i := at; i < at+got; i++ {
		if want[i] {
			t.Fatalf("run of %d at %d holds bit %d", got, at, i)
		}
	}
}
