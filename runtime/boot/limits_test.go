// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/limits"

	"z.gfire.dev/gvx/runtime/api"
)

func TestMemoryPollIntervalShrinksWithHeadroom(t *testing.T) {
	if d := memoryPollInterval(1 << 40); d != memoryPollMax {
		t.Errorf("far from the limit: %v, want %v", d, memoryPollMax)
	}
	if d := memoryPollInterval(1 << 20); d != memoryPollMin {
		t.Errorf("near the limit: %v, want %v", d, memoryPollMin)
	}
	last := time.Duration(0)
	for headroom := uint64(1 << 20); headroom < 1<<36; headroom *= 2 {
		d := memoryPollInterval(headroom)
		if d < last {
			t.Errorf("%d bytes left: interval %v below that of half as many, %v", headroom, d, last)
		}
		last = d
		// What the fastest guest can take meanwhile stays below what is left.
		if d > memoryPollMin && d.Seconds()*fastestBytesPerSecond > float64(headroom) {
			t.Errorf("%d bytes left: a guest could pass the limit within %v", headroom, d)
		}
	}
}

// TestNoMemoryLimitIsRarelyLookedAt: one that was taken away costs as little as
// one that is far.
func TestNoMemoryLimitIsRarelyLookedAt(t *testing.T) {
	var m memoryEnforcer
	for limit, want := range map[uint64]time.Duration{0: memoryPollMax, 1 << 30: memoryPollMin, 1 << 40: memoryPollMax} {
		m.limit.Store(limit)
		if d := memoryPollInterval(m.headroom(1 << 30)); d != want {
			t.Errorf("limit %d: %v, want %v", limit, d, want)
		}
	}
}

// TestCPUBudgetHoldsTheShare runs a guest that wants all it can get against
// the budget, in simulated time, and measures what it got.
func TestCPUBudgetHoldsTheShare(t *testing.T) {
	for _, c := range []struct {
		millis int64
		cores  int
	}{{100, 1}, {500, 1}, {900, 1}, {1500, 2}, {2500, 8}, {100, 16}, {50, 64}} {
		quota := cpuQuota(c.millis)
		b := newCPUBudget(quota, 0, c.cores)
		var now, used time.Duration
		for now < 60*time.Second {
			now += cpuTick
			used += cpuTick * time.Duration(c.cores)
			for pause := b.spend(used, cpuTick); pause > 0; {
				look := min(pause, maxLookGap)
				now += look
				pause = b.spend(used, look)
			}
		}
		share := float64(used) / float64(now) * 1000
		if share > float64(c.millis)*1.05 || share < float64(c.millis)*0.8 {
			t.Errorf("limit %d on %d cores: guest got %.0f thousandths of a processor", c.millis, c.cores, share)
		}
	}
}

func TestCPUBudgetForgetsOldDebt(t *testing.T) {
	quota := cpuQuota(100)
	b := newCPUBudget(quota, 0, 2)
	if pause := b.spend(time.Hour, cpuTick); pause > 10*(maxDebtPeriods*cpuPeriod+2*maxLookGap) {
		t.Errorf("after an hour's burst the guest would stop for %v", pause)
	}
}

func TestQuotaOfCPUMax(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"max 100000\n":            0,
		"50000 100000\n":          cpuPeriod / 2,
		"1000 1000000\n":          cpuPeriod / 1000,
		"10000 10000\n":           cpuPeriod,
		"200000 100000\n":         0, // As many as there are.
		"9223372036854775806 1\n": 0,
		"1 9223372036854775807\n": leastQuota,
		"-5 100000\n":             0,
		"":                        0,
		"1000\n":                  0,
	} {
		if got := quotaOf(text, 2); got != want {
			t.Errorf("cpu.max %q of two processors: %v in %v, want %v", text, got, cpuPeriod, want)
		}
	}
}

func TestLimitSet(t *testing.T) {
	ls, err := limitSet([]api.Rlimit{{Name: "nofile", Soft: 64, Hard: 128}})
	if err != nil {
		t.Fatal(err)
	}
	if got := ls.Get(limits.NumberOfFiles); got.Cur != 64 || got.Max != 128 {
		t.Errorf("nofile is %+v", got)
	}
	for _, bad := range []api.Rlimit{{Name: "nosuch"}, {Name: "nofile", Soft: 2, Hard: 1}} {
		if _, err := limitSet([]api.Rlimit{bad}); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%+v: %v, want invalid", bad, err)
		}
	}
}

func TestTaskCapabilities(t *testing.T) {
	names := []string{"CAP_CHOWN", "CAP_NET_RAW"}
	root, err := taskCapabilities(names, 0)
	if err != nil {
		t.Fatal(err)
	}
	if root.EffectiveCaps != root.BoundingCaps || root.BoundingCaps == 0 {
		t.Errorf("root: %+v", root)
	}
	user, err := taskCapabilities(names, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if user.EffectiveCaps != 0 || user.PermittedCaps != 0 || user.BoundingCaps != root.BoundingCaps {
		t.Errorf("user: %+v", user)
	}
	if _, err := taskCapabilities([]string{"CAP_NOSUCH"}, 0); api.KindOf(err) != api.KindInvalid {
		t.Errorf("unknown capability: %v", err)
	}
}
