// SPDX-License-Identifier: Apache-2.0

package perf

import "testing"

// databaseWork is a PostgreSQL server with its own load: what it makes, transactions
// that each wait for the disk (TPC-B, 4 clients), reads, and a restart.
const databaseWork = `set -eu
mkdir -p /w/data && chown postgres /w/data
as() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
pg() { as pg_ctl -s -w -D /w/data -l /tmp/server.log -o "-k /tmp -c listen_addresses=" "$@" || { cat /tmp/server.log >&2; exit 1; }; }
now() { date +%s.%N; }
passed() { echo "$1 $(echo "$2 $(now)" | awk '{ print $2 - $1 }')"; }
tps() { name=$1; shift; as pgbench -h /tmp "$@" postgres 2>/tmp/err | awk -v name="$name" '/^tps = / { print name, $3 }'; }
begun=$(now); as initdb -A trust -D /w/data > /tmp/log; passed initdb "$begun"
pg start
begun=$(now); as pgbench -h /tmp -q -i -s 10 postgres > /tmp/log 2>&1; passed load "$begun"
tps commits -c 4 -T 8
tps reads -S -c 4 -T 4
begun=$(now); pg restart; passed restart "$begun"
pg stop`

var databaseRows = []storageRow{
	{"initdb", "initdb", "s", false},
	{"load", "pgbench -i -s 10", "s", false},
	{"commits", "pgbench, 4 clients", "/s", true},
	{"reads", "pgbench -S, 4 clients", "/s", true},
	{"restart", "pg_ctl restart", "s", false},
}

// TestDatabase measures PostgreSQL on a volume beside the same contenders as
// TestStorage. It demands nothing.
func TestDatabase(t *testing.T) {
	needBench(t)
	compareStorage(t, "postgres", databaseWork, databaseRows)
}
