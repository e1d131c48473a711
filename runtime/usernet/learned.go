// SPDX-License-Identifier: Apache-2.0

// What the name server has told the guest: by which names it knows an address.

package usernet

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxLearned bounds the pairs of an address and a name. A guest that asks
	// for more forgets some of its own.
	maxLearned = 8192
	// maxNamesPerAddress bounds the names that a check of an address looks at:
	// large hosters have many names for one.
	maxNamesPerAddress = 32
	// maxAnswerRecords bounds how much of one answer is learnt from.
	maxAnswerRecords = 256
	// An address is known for as long as its record lives, but long enough to
	// be connected to, and not for ever.
	minLearnedTTL, maxLearnedTTL = time.Minute, 24 * time.Hour
)

// learned knows the names of addresses, under what those are without disguise:
// that is what the policy judges. The zero value knows none.
type learned struct {
	// fixed are those of the list of hosts, which do not end.
	fixed map[netip.Addr][]string

	mu    sync.Mutex
	ends  map[netip.Addr]map[string]time.Time
	count int
	swept time.Time
	clock func() time.Time // for tests
}

// newLearned begins with what the list of hosts says.
func newLearned(list hosts) *learned {
	l := &learned{fixed: make(map[netip.Addr][]string), ends: make(map[netip.Addr]map[string]time.Time), clock: time.Now}
	for name, addrs := range list {
		for _, a := range addrs {
			a = undisguise(a)
			l.fixed[a] = append(l.fixed[a], name)
		}
	}
	return l
}

// names are those by which the guest knows an address now.
func (l *learned) names(a netip.Addr) []string {
	a, now := undisguise(a), l.clock()
	list := append([]string(nil), l.fixed[a]...)
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, end := range l.ends[a] {
		if end.After(now) {
			list = append(list, name)
		}
	}
	return list
}

// add enters one pair.
func (l *learned) add(a netip.Addr, name string, ttl time.Duration) {
	a, now := undisguise(a), l.clock()
	end := now.Add(min(max(ttl, minLearnedTTL), maxLearnedTTL))
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, known := l.ends[a][name]; known {
		if end.After(before) {
			l.ends[a][name] = end
		}
		return
	}
	if l.count >= maxLearned {
		l.makeRoom(now)
	}
	if l.ends[a] == nil {
		l.ends[a] = make(map[string]time.Time)
	}
	if len(l.ends[a]) >= maxNamesPerAddress {
		l.forgetOne(a)
	}
	l.ends[a][name] = end
	l.count++
}

// makeRoom forgets what has ended, though it does not look for that all the
// time, or else anything. The caller holds l.mu.
func (l *learned) makeRoom(now time.Time) {
	if now.Sub(l.swept) > time.Second {
		l.swept = now
		for a, names := range l.ends {
			for name, end := range names {
				if !end.After(now) {
					l.forget(a, name)
				}
			}
		}
	}
	for a := range l.ends {
		if l.count < maxLearned {
			return
		}
		l.forgetOne(a)
	}
}

func (l *learned) forgetOne(a netip.Addr) {
	for name := range l.ends[a] {
		l.forget(a, name)
		return
	}
}

func (l *learned) forget(a netip.Addr, name string) {
	delete(l.ends[a], name)
	l.count--
	if len(l.ends[a]) == 0 {
		delete(l.ends, a)
	}
}

// learn reads the addresses from a server's answer to a question. A server may
// send what it likes: what counts is reached from the name that was asked for.
func (l *learned) learn(answer []byte, q question) {
	if q.class != classIN || q.kind != typeA && q.kind != typeAAAA {
		return
	}
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil || h.RCode != dnsmessage.RCodeSuccess || p.SkipAllQuestions() != nil {
		return
	}
	// Aliases come before what they lead to.
	aliases := map[string]bool{q.name: true}
	for range maxAnswerRecords {
		rh, err := p.AnswerHeader()
		if err != nil {
			return
		}
		if !aliases[plainName(rh.Name)] || rh.Class != dnsmessage.ClassINET {
			if p.SkipAnswer() != nil {
				return
			}
			continue
		}
		ttl := time.Duration(rh.TTL) * time.Second
		switch rh.Type {
		case dnsmessage.TypeA:
			if r, err := p.AResource(); err == nil {
				l.add(netip.AddrFrom4(r.A), q.name, ttl)
				continue
			}
			return
		case dnsmessage.TypeAAAA:
			if r, err := p.AAAAResource(); err == nil {
				l.add(netip.AddrFrom16(r.AAAA), q.name, ttl)
				continue
			}
			return
		case dnsmessage.TypeCNAME:
			r, err := p.CNAMEResource()
			if err != nil {
				return
			}
			aliases[plainName(r.CNAME)] = true
		default:
			if p.SkipAnswer() != nil {
				return
			}
		}
	}
}
