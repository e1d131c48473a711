// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// toolTimeout bounds one script: building and testing a C library takes the
// longest.
const toolTimeout = 8 * time.Minute

// lines compares a script's output, line by line, with what it has to be.
func wantLines(t *testing.T, output string, want ...string) {
	t.Helper()
	if got := strings.TrimSpace(output); got != strings.Join(want, "\n") {
		t.Errorf("output:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// TestNode runs a program that uses what servers are made of: the event loop,
// worker threads, child processes, sockets on the loopback, file watching.
func TestNode(t *testing.T) {
	output := mustGuest(t, "full", toolTimeout, `
cat > /tmp/server.mjs <<'JS'
import http from 'node:http';
import fs from 'node:fs/promises';
import { watch } from 'node:fs';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { Worker } from 'node:worker_threads';
import { createHash } from 'node:crypto';
import { gzipSync, gunzipSync } from 'node:zlib';
import { once } from 'node:events';

const run = promisify(execFile);
const server = http.createServer(async (request, response) => {
	let size = 0;
	for await (const chunk of request) size += chunk.length;
	response.end(JSON.stringify({ method: request.method, path: request.url, size }));
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const base = 'http://127.0.0.1:' + server.address().port;
const answers = await Promise.all(Array.from({ length: 50 }, (_, i) =>
	fetch(base + '/' + i, { method: 'POST', body: 'x'.repeat(i * 1000) }).then(answer => answer.json())));
console.log('http', answers.every((a, i) => a.size === i * 1000 && a.path === '/' + i));
server.close();

const { stdout } = await run('/bin/sh', ['-c', 'echo $((6 * 7)) from pid $(test $$ -gt 1 && echo child)']);
console.log('child', stdout.trim());

const sums = await Promise.all([1, 2, 3, 4].map(async n => {
	const worker = new Worker('const { parentPort, workerData } = require("worker_threads"); let s = 0; for (let i = 0; i < 3e6; i++) s += i % workerData; parentPort.postMessage(s);',
		{ eval: true, workerData: n });
	return (await once(worker, 'message'))[0];
}));
console.log('workers', sums.join(' '));

const data = Buffer.alloc(8 << 20, 'gvx');
await fs.writeFile('/tmp/blob', data);
const back = gunzipSync(gzipSync(await fs.readFile('/tmp/blob')));
console.log('sha256', createHash('sha256').update(back).digest('hex') === createHash('sha256').update(data).digest('hex'));

await fs.mkdir('/tmp/watched');
const seen = new Promise(resolve => { const w = watch('/tmp/watched', (event, name) => { w.close(); resolve(name); }); });
setTimeout(() => fs.writeFile('/tmp/watched/new', ''), 50);
console.log('inotify', await seen);
JS
node /tmp/server.mjs
`)
	wantLines(t, output, "http true", "child 42 from pid child", "workers 0 1500000 3000000 4500000", "sha256 true", "inotify new")
}

// TestGit makes a repository of 5,000 files, clones it in three ways, packs it,
// checks it, and walks its history.
func TestGit(t *testing.T) {
	output := mustGuest(t, "full", toolTimeout, `
export HOME=/root GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git config --global user.name Gvx; git config --global user.email gvx@example.org
git config --global init.defaultBranch main; git config --global advice.detachedHead false
git config --global protocol.file.allow always
mkdir /root/source && cd /root/source && git init -q
i=0
while [ $i -lt 5000 ]; do
	d=d$((i % 50)); [ -d $d ] || mkdir $d
	echo "file $i" > $d/f$i; i=$((i + 1))
done
chmod +x d0/f0; ln -s f0 d0/link
git add . && git commit -qm first
sed -i 's/^/changed /' d1/* && git commit -qam second
git checkout -q -b side HEAD~1 && echo side > side && git add side && git commit -qm side
git checkout -q main && git merge -q -m merge side
git gc -q && git fsck --full --strict 2>&1 | grep -v '^notice' || true
cd /root
git clone -q source hardlinks && git clone -q --no-local source copied && git clone -q --bare source bare.git
for clone in hardlinks copied; do
	echo "$clone $(git -C $clone ls-files | wc -l) $(git -C $clone rev-list --count HEAD) $(git -C $clone status --porcelain | wc -l)"
done
git -C copied fsck --full 2>&1 | grep -v '^notice' || true
git -C copied gc -q --aggressive --prune=now && git -C copied fsck --full | grep -v '^notice' || true
test "$(git -C source rev-parse HEAD^{tree})" = "$(git -C bare.git rev-parse HEAD^{tree})" && echo same tree
git -C copied rev-parse HEAD^{tree}
stat -c %A copied/d0/f0; readlink copied/d0/link
cd copied && echo x > d2/f2 && git stash -q && git stash pop -q && git diff --stat | tail -n 1
git worktree add -q ../tree HEAD~1 && ls ../tree | wc -l
`)
	wantLines(t, output,
		"hardlinks 5002 4 0", "copied 5002 4 0", "same tree",
		// The tree's name follows from its content alone.
		treeOfTestGit, "-rwxr-xr-x", "f0",
		" 1 file changed, 1 insertion(+), 1 deletion(-)", "50")
}

// treeOfTestGit is the name that git gives the tree that TestGit's script makes,
// on any machine.
const treeOfTestGit = "e03ee3ff56935d92d0311e0301270656099aa82d"

// TestCompiler unpacks a C library as Debian's source package has it, builds it
// with gcc and make, and runs its own tests.
func TestCompiler(t *testing.T) {
	output := mustGuest(t, "full", toolTimeout, `
mkdir /root/build && cd /root/build
dpkg-source --no-check -x /usr/src/debian/zlib_*.dsc source >/dev/null 2>&1
cd source
./configure --prefix=/root/installed > /tmp/log 2>&1 || { cat /tmp/log >&2; exit 1; }
make -j2 >> /tmp/log 2>&1 || { tail -n 50 /tmp/log >&2; exit 1; }
make test 2>&1 | grep -o 'zlib.*test OK'
make install >> /tmp/log 2>&1
cat > /tmp/use.c <<'C'
#include <stdio.h>
#include <string.h>
#include <zlib.h>
int main(void) {
	static unsigned char in[1 << 20], packed[1 << 20], out[1 << 20];
	for (size_t i = 0; i < sizeof in; i++) in[i] = (unsigned char)(i / 100);
	uLongf packed_size = sizeof packed, out_size = sizeof out;
	if (compress(packed, &packed_size, in, sizeof in) != Z_OK) return 1;
	if (uncompress(out, &out_size, packed, packed_size) != Z_OK) return 2;
	printf("round trip %s, smaller %s\n", memcmp(in, out, sizeof in) ? "differs" : "same", packed_size < sizeof in / 50 ? "yes" : "no");
	return 0;
}
C
gcc -O2 -Wall -Werror -I/root/installed/include /tmp/use.c -L/root/installed/lib -Wl,-rpath,/root/installed/lib -lz -o /tmp/use
/tmp/use
`)
	wantLines(t, output, "zlib test OK", "zlib shared test OK", "zlib 64-bit test OK", "round trip same, smaller yes")
}

// TestAutotools is the long sister of TestCompiler: GNU hello's configure script
// starts thousands of processes.
func TestAutotools(t *testing.T) {
	if !testbed.Nightly() {
		t.Skip("long: runs nightly (GVX_NIGHTLY=1)")
	}
	output := mustGuest(t, "full", 3*toolTimeout, `
mkdir /root/build && cd /root/build
dpkg-source --no-check -x /usr/src/debian/hello_*.dsc source >/dev/null 2>&1
cd source
FORCE_UNSAFE_CONFIGURE=1 ./configure > /tmp/log 2>&1 || { tail -n 50 /tmp/log >&2; exit 1; }
touch doc/hello.info man/hello.1 2>/dev/null || true
make -j2 hello >> /tmp/log 2>&1 || { tail -n 50 /tmp/log >&2; exit 1; }
./hello; ./hello -t; ./hello -g 'built inside'
`)
	wantLines(t, output, "Hello, world!", "hello, world", "built inside")
}

// TestApt installs packages, with dependencies and maintainer scripts, from the
// image's own repository, uses them and removes them.
func TestApt(t *testing.T) {
	output := mustGuest(t, "full", toolTimeout, `
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends tree jq file >/tmp/log 2>&1 || { cat /tmp/log >&2; exit 1; }
dpkg-query -W -f '${Package} ${db:Status-Status}\n' tree jq libjq1 libonig5 file libmagic1
echo '{"a":[1,2,{"b":"c"}]}' | jq -c '.a[2].b, (.a[:2] | add)'
mkdir -p /tmp/t/a/b && touch /tmp/t/a/b/c && tree --noreport -i /tmp/t | tail -n 1
file -b /bin/sh | cut -d, -f1
apt-get -qq remove -y tree >/dev/null 2>&1
[ -e /usr/bin/tree ] || echo removed
dpkg --audit && echo consistent
`)
	wantLines(t, output,
		"file installed", "jq installed", "libjq1 installed", "libmagic1 installed", "libonig5 installed", "tree installed",
		`"c"`, "3", "c", "symbolic link to dash", "removed", "consistent")
}

// TestSQLite works with a database in both journal modes, with two processes at
// once, and checks its integrity after one of them is killed.
func TestSQLite(t *testing.T) {
	output := mustGuest(t, "full", toolTimeout, `
cd /root
for mode in delete wal; do
	rm -f db*
	sqlite3 db "PRAGMA journal_mode=$mode; CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, n INT); CREATE INDEX i ON t(n);"
	sqlite3 db "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<100000) INSERT INTO t(v,n) SELECT printf('row %d',x), x%97 FROM c;"
	sqlite3 db "SELECT count(*), sum(n), max(v) FROM t WHERE n < 10;"
	# Two writers, one by one by SQLite's own locks.
	for w in 1 2; do
		(for i in 1 2 3 4 5 6 7 8 9 10; do sqlite3 -cmd '.timeout 60000' db "INSERT INTO t(v,n) VALUES('writer $w', 1000);" ; done) &
	done
	wait
	sqlite3 db "SELECT count(*) FROM t WHERE n=1000;"
	# A writer that dies in the middle of a transaction.
	(echo 'BEGIN; UPDATE t SET v=v||v;'; sleep 30) | sqlite3 db & writer=$!
	sleep 2; pkill -9 -x sqlite3 || true; pkill -x sleep || true; wait || true
	sqlite3 db "PRAGMA integrity_check; SELECT count(*) FROM t WHERE v LIKE 'row 1row 1';"
done
`)
	wantLines(t, output, "delete", "10309|46395|row 9999", "20", "ok", "0", "wal", "10309|46395|row 9999", "20", "ok", "0")
}
