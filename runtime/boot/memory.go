// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

const (
	// A guest that writes fresh pages needs about a quarter of a second for
	// each gigabyte on the fastest machines; the next look at its usage comes
	// before it could have eaten half of what is left.
	fastestBytesPerSecond = 4 << 30

	// memoryPollMin keeps a guest near its limit from costing more than a
	// percent of a processor; memoryPollMax bounds how stale the peak may be.
	memoryPollMin = 2 * time.Millisecond
	memoryPollMax = 250 * time.Millisecond

	// killPatience is how long a killed process may take to die before the
	// next one is chosen: on a busy host, or held back by the processor limit,
	// it may not come to it at once, and an innocent one would be killed.
	killPatience = 5 * time.Second
	// killGrace is how long the memory of a process that is dead may take to be
	// given back to the host.
	killGrace = 300 * time.Millisecond
	// releaseGrace is how long memory that no process holds may take to become
	// less before the next look: what an ended process had is given back to the
	// host page by page, and killing another one would not hurry it.
	releaseGrace = time.Second
	// killGrowthBytes is how much more the others may take meanwhile; above it
	// the next one is chosen at once.
	killGrowthBytes = 32 << 20

	// sentryAllowanceBytes is what the Sentry may hold on behalf of guests
	// (tasks, open files, inodes, what waits in sockets and pipes) before it
	// counts against their limit, as kernel memory does in a memory cgroup. A
	// few hundred processes fit; a guest that hoards full sockets does not.
	sentryAllowanceBytes = 64 << 20
)

// memoryEnforcer holds guests to their memory limit. No host cgroup is needed:
// all guest memory is in one memfd, whose allocated blocks the host counts
// exactly, and what the Sentry holds for guests is in its Go heap. Above the
// limit the guest process that holds most is killed, as Linux' out-of-memory
// killer does in a memory cgroup; the sandbox lives on.
type memoryEnforcer struct {
	// limit may change while guests run; 0 is none.
	limit atomic.Uint64
	watch sync.Once
	peak  atomic.Uint64
	kills atomic.Uint64
}

// killed reports whether the limit ended any process: docker's OOMKilled does
// not ask whether it was the first.
func (m *memoryEnforcer) killed() bool { return m.kills.Load() > 0 }

// guestMemoryBytes is what guests hold now: anonymous and shared memory and
// memory-backed files.
func (sb *sandbox) guestMemoryBytes() uint64 {
	var st unix.Stat_t
	if err := unix.Fstat(sb.memoryFD, &st); err != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}

// The Go runtime's figures for what the Sentry holds: objects found alive by
// the last collection, and stacks.
const (
	metricLiveHeap = "/gc/heap/live:bytes"
	metricStacks   = "/memory/classes/heap/stacks:bytes"
)

// sentryExcessBytes is what the Sentry holds beyond its allowance.
func sentryExcessBytes() uint64 {
	samples := []metrics.Sample{{Name: metricLiveHeap}, {Name: metricStacks}}
	metrics.Read(samples)
	var held uint64
	for _, s := range samples {
		held += s.Value.Uint64()
	}
	return held - min(held, sentryAllowanceBytes)
}

// chargedBytes is what counts against the guests' limit.
func (sb *sandbox) chargedBytes() uint64 {
	return sb.guestMemoryBytes() + sentryExcessBytes()
}

// overLimit measures again after a collection where garbage of the Sentry's
// could be what is too much.
func (sb *sandbox) overLimit(charged uint64) bool {
	limit := sb.memory.limit.Load()
	if limit == 0 || charged <= limit || sb.guestMemoryBytes() > limit {
		return limit > 0 && charged > limit
	}
	runtime.GC()
	return sb.chargedBytes() > limit
}

// enforceMemory starts the enforcer when there is a limit.
func (sb *sandbox) enforceMemory() { sb.limitMemory(uint64(sb.spec.Resources.MemoryBytes)) }

// limitMemory sets the limit, and starts the enforcer with the first one.
func (sb *sandbox) limitMemory(bytes uint64) {
	m := &sb.memory
	m.limit.Store(bytes)
	if bytes == 0 {
		return
	}
	m.watch.Do(func() { go sb.watchMemory() })
}

// watchMemory is the enforcer.
func (sb *sandbox) watchMemory() {
	m := &sb.memory
	for {
		used := sb.chargedBytes()
		if used > m.peak.Load() {
			m.peak.Store(used)
		}
		if sb.overLimit(used) {
			if !sb.awaitRelease(used) {
				sb.killLargest(used)
			}
			continue
		}
		time.Sleep(memoryPollInterval(m.headroom(used)))
	}
}

// headroom is how much guests may take beyond used: without a limit, any amount.
func (m *memoryEnforcer) headroom(used uint64) uint64 {
	limit := m.limit.Load()
	if limit == 0 {
		return math.MaxUint64
	}
	return limit - min(used, limit)
}

// memoryPollInterval is how long usage may go unseen with headroom bytes left.
func memoryPollInterval(headroom uint64) time.Duration {
	d := time.Duration(float64(headroom) / 2 / fastestBytesPerSecond * float64(time.Second))
	return min(max(d, memoryPollMin), memoryPollMax)
}

// awaitRelease waits while what is too much is given back: the processes hold less
// than the limit between them, and the sum falls. It reports whether that is done.
// Where files in memory are what is too much, nothing falls.
func (sb *sandbox) awaitRelease(used uint64) bool {
	var held uint64
	for _, tg := range sb.k.RootPIDNamespace().ThreadGroups() {
		held += residentBytes(tg)
	}
	if held > sb.memory.limit.Load() {
		return false
	}
	least := used
	for fell := time.Now(); time.Since(fell) < releaseGrace; time.Sleep(memoryPollMin) {
		now := sb.chargedBytes()
		switch {
		case !sb.overLimit(now):
			return true
		case now > used+killGrowthBytes:
			return false
		case now < least:
			least, fell = now, time.Now()
		}
	}
	return false
}

// killLargest kills the guest process that holds most memory and waits until
// it has given it back.
func (sb *sandbox) killLargest(used uint64) {
	victim, held := largestProcess(sb.k)
	if victim == nil {
		time.Sleep(memoryPollMin)
		return
	}
	sb.memory.kills.Add(1)
	log.Warningf("memory limit: guests hold %d bytes of %d: killing %q, which holds %d", used, sb.memory.limit.Load(), victim.Leader().Name(), held)
	if err := sb.k.SendExternalSignalThreadGroup(victim, &linux.SignalInfo{Signo: int32(linux.SIGKILL)}); err != nil {
		log.Warningf("memory limit: kill %q: %v", victim.Leader().Name(), err)
	}
	sb.awaitDeath(victim, used)
}

// awaitDeath waits until a killed process has given its memory back, as long as
// the others do not take more; used is what all held when it was killed.
func (sb *sandbox) awaitDeath(victim *kernel.ThreadGroup, used uint64) {
	end := time.Now().Add(killPatience)
	dead := false
	for ; time.Now().Before(end); time.Sleep(memoryPollMin) {
		now := sb.chargedBytes()
		if now <= sb.memory.limit.Load() || now > used+killGrowthBytes {
			return
		}
		if !dead && residentBytes(victim) == 0 {
			dead, end = true, time.Now().Add(killGrace)
		}
	}
}

// largestProcess returns the living guest process with the largest resident
// set and its size in bytes.
func largestProcess(k *kernel.Kernel) (*kernel.ThreadGroup, uint64) {
	var (
		largest *kernel.ThreadGroup
		most    uint64
	)
	for _, tg := range k.RootPIDNamespace().ThreadGroups() {
		if n := residentBytes(tg); n > most {
			largest, most = tg, n
		}
	}
	return largest, most
}

// residentBytes is the resident set of tg, 0 once it has exited.
func residentBytes(tg *kernel.ThreadGroup) uint64 {
	resident, _ := memoryBytes(tg)
	return resident
}

// memoryBytes is the resident set of tg, and the size of its address space.
func memoryBytes(tg *kernel.ThreadGroup) (resident, virtual uint64) {
	leader := tg.Leader()
	if leader == nil {
		return 0, 0
	}
	leader.WithMuLocked(func(t *kernel.Task) {
		if mm := t.MemoryManager(); mm != nil {
			resident, virtual = mm.ResidentSetSize(), mm.VirtualMemorySize()
		}
	})
	return resident, virtual
}
