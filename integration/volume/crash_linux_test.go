// SPDX-License-Identifier: Apache-2.0

// Databases in guests that are killed: what was acknowledged is there.

package volume

import (
	"bufio"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// writer inserts rows one by one and says each number once it is committed.
const writer = `exec python3 -u -c '
import sqlite3
db = sqlite3.connect("/v/db", isolation_level=None)
db.execute("pragma journal_mode=JOURNAL")
# A kill of the sandbox is a power cut for its kernel: EXTRA is what SQLite has
# for that where a commit is the removal of a journal.
db.execute("pragma synchronous=EXTRA")
db.execute("create table if not exists t (n integer primary key, data blob)")
n = db.execute("select coalesce(max(n), 0) from t").fetchone()[0]
while True:
    n += 1
    db.execute("begin")
    db.execute("insert into t values (?, randomblob(3000))", (n,))
    db.execute("update t set data = randomblob(2000) where n = ?", (n // 2,))
    db.execute("commit")
    print(n)
'`

// reader checks the database and says its last row.
const reader = `exec python3 -c '
import sqlite3
db = sqlite3.connect("/v/db")
print(db.execute("pragma integrity_check").fetchone()[0], db.execute("select max(n), count(*) from t").fetchone())
'`

// TestSQLiteSurvivesKills kills sandboxes at random moments of a load of
// commits. Every commit that the guest reported is there afterwards.
func TestSQLiteSurvivesKills(t *testing.T) {
	rounds := 4
	if testbed.Nightly() {
		rounds = 200
	}
	for _, mode := range []string{"wal", "delete"} {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t)
			script := strings.Replace(writer, "JOURNAL", mode, 1)
			last := 0
			for round := range rounds / 2 {
				s := b.start(script, "--mount", b.mount("db.ext4"))
				said := make(chan int)
				go func() {
					n := 0
					lines := bufio.NewScanner(s.out)
					for lines.Scan() {
						if k, err := strconv.Atoi(lines.Text()); err == nil {
							n = k
						}
					}
					said <- n
				}()
				time.Sleep(time.Duration(rand.IntN(1200)) * time.Millisecond)
				s.end(syscall.SIGKILL)
				last = max(last, <-said)
				out := b.must(reader, "--mount", b.mount("db.ext4"))
				if !strings.HasPrefix(out, "ok ") {
					t.Fatalf("the database is damaged: %s", out)
				}
				first, _, _ := strings.Cut(strings.TrimPrefix(out, "ok ("), ",")
				if n, err := strconv.Atoi(first); err != nil || n < last {
					t.Fatalf("%d was acknowledged, the database says %q", last, out)
				}
				b.check(b.path("db.ext4"))
				b.progress(round+1, rounds/2, "%d commits acknowledged, all there", last)
			}
			if last == 0 {
				t.Error("no commit was ever acknowledged: the test shows nothing")
			}
		})
	}
}

// postgres starts the server, says the rows that it has, then inserts and says
// each row once it is committed; with LOAD, beside pgbench.
const postgres = `docker-entrypoint.sh postgres >/tmp/log 2>&1 &
	until psql -U postgres -qtAc 'select 1' >/dev/null 2>&1; do
		kill -0 $! || { cat /tmp/log; exit 1; }
		sleep 0.1
	done
	psql -U postgres -qAt -c 'set client_min_messages = error' -c 'create table if not exists acked (n serial primary key, data text)'
	psql -U postgres -qAt -c 'select n from acked' | sed 's/^/have /'
	if [ -n "$LOAD" ]; then
		psql -U postgres -qAt -c 'select 1 from pgbench_accounts limit 1' >/dev/null 2>&1 || pgbench -U postgres -q -i -s 1 postgres >/dev/null 2>&1
		pgbench -U postgres -c 4 -T 1000 postgres >/dev/null 2>&1 &
	fi
	echo ready
	yes "insert into acked(data) values (repeat('x', 700)) returning n;" | stdbuf -oL psql -U postgres -qAt`

// TestPostgresSurvivesKills is the same with PostgreSQL on a volume, which also
// recovers its own log each time.
func TestPostgresSurvivesKills(t *testing.T) {
	rounds := 1
	if testbed.Nightly() {
		rounds = 200
	}
	b := newBed(t)
	flags := []string{"-e", "POSTGRES_PASSWORD=secret", "--mount",
		"type=volume,src=" + b.path("pg.ext4") + ",dst=/var/lib/postgresql/data"}
	if testbed.Nightly() {
		flags = append(flags, "-e", "LOAD=1")
	}
	b.image = b.h.Image(t, "postgres")
	acked := map[string]bool{}
	for round := range rounds + 1 {
		s := b.launch(postgres, flags...)
		have := map[string]bool{}
		lines := bufio.NewScanner(s.out)
		for lines.Scan() && lines.Text() != "ready" {
			if n, ok := strings.CutPrefix(lines.Text(), "have "); ok {
				have[n] = true
				continue
			}
			t.Fatalf("round %d: the server did not start: %s", round, lines.Text())
		}
		for n := range acked {
			if !have[n] {
				t.Fatalf("round %d: row %s was acknowledged and is gone; %d are there", round, n, len(have))
			}
		}
		// So many commits on, wherever that finds it; a slow machine gets there too.
		timer := time.AfterFunc(patience, func() { s.cmd.Process.Kill() })
		for after := 1 + rand.IntN(150); lines.Scan(); after-- {
			acked[lines.Text()] = true
			if after == 0 {
				s.cmd.Process.Kill()
			}
		}
		timer.Stop()
		<-s.done
		b.h.MustRungv(t, "ps", "-a")
		if r := b.h.Rungv(t, nil, "volume", "fsck", "--replay", b.path("pg.ext4")); r.Code > 1 {
			t.Fatalf("round %d: %v", round, r)
		}
		b.check(b.path("pg.ext4"))
		b.progress(round, rounds, "%d rows acknowledged, those of the rounds before all there", len(acked))
	}
	if len(acked) == 0 {
		t.Error("no row was ever acknowledged: the test shows nothing")
	}
}

// TestCopiesKilled ends the tools that make files in the middle of it: what
// they read is as before, and nothing is half there.
func TestCopiesKilled(t *testing.T) {
	b := newBed(t)
	b.must(`dd if=/dev/urandom of=/v/big bs=1M count=96 2>/dev/null; echo content > /v/f`, "--mount", b.mount("golden.ext4"))
	b.h.MustRungv(t, "volume", "clone", b.path("golden.ext4"), b.path("ep.delta"))
	before := b.hash(b.path("golden.ext4")) + b.hash(b.path("ep.delta"))
	for k, args := range [][]string{
		{"volume", "clone", "--copy", b.path("golden.ext4"), b.path("copy.ext4")},
		{"volume", "flatten", b.path("ep.delta")},
		{"volume", "flatten", b.path("ep.delta"), b.path("flat.ext4")},
	} {
		cmd := b.h.Command(t.Context(), args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(20+10*k) * time.Millisecond)
		cmd.Process.Kill()
		if err := cmd.Wait(); err == nil {
			t.Skipf("%q was done before it could be killed", args[:2])
		}
		b.only("ep.delta", "golden.ext4")
	}
	if b.hash(b.path("golden.ext4"))+b.hash(b.path("ep.delta")) != before {
		t.Error("a killed copy changed what it read")
	}
	if out := b.h.MustRungv(t, "volume", "cat", b.path("ep.delta")+":/f"); out != "content\n" {
		t.Errorf("the clone holds %q", out)
	}
}
