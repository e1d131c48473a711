#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Episodes as an agent's trainer runs them, N at once:
#
#	episodes.sh IMAGES [N]
#
# IMAGES is a folder with the OCI layouts dind, python, redis and postgres; the
# `rungv` and `docker` in PATH are used, as whoever runs this. It makes a golden
# volume with the three images in an engine, and then N clones of it at once, in
# each of which a repository is edited, built with `docker build`, started with
# `docker compose up` beside a database and a cache, tested and thrown away. A
# table says how long each part took. Everything is below a temporary folder that
# goes with the script.
set -euo pipefail
images=$(cd "${1:?usage: episodes.sh IMAGES [N]}" && pwd)
count=${2:-3}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/gvx-episodes.XXXXXX")
pids=()
# However the script ends, so do episodes and engines: those have their process
# ids in files, because episodes start engines in shells of their own.
cleanup() {
	[ ${#pids[@]} = 0 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
	for file in "$work"/*.pid; do
		[ ! -e "$file" ] || kill -KILL "$(cat "$file")" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

now() { date +%s%N; }
ms() { echo $(((${2:-$(now)} - $1) / 1000000)); }
# engine NAME FLAG…: starts one in the background.
engine() {
	local name=$1 engine
	shift
	rungv run --rm -e DOCKER_TLS_CERTDIR= -p "unix:$work/$name.sock:2375" "$@" docker:dind --tls=false > "$work/$name.log" 2>&1 &
	engine=$!
	echo "$engine" > "$work/$name.pid"
}
# below PID: it and all processes that it started, and theirs.
below() {
	local child
	echo "$1"
	for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
		below "$child"
	done
}
# end NAME SIGNAL: ends its engine by a signal, and waits until the last process
# of its sandbox is gone too.
end() {
	local pid all
	pid=$(cat "$work/$1.pid")
	all=$(below "$pid")
	closing=$(now)
	{ kill "-$2" "$pid" && wait "$pid"; } 2>/dev/null || true
	for pid in $all; do
		# One that is dead and waits for its parent is gone as well.
		while [ -e "/proc/$pid" ] && ! grep -qs '^State:.Z' "/proc/$pid/status"; do sleep 0.002; done
	done
	rm "$work/$1.pid"
}
# ready NAME: waits for its engine.
ready() {
	until docker -H "unix://$work/$1.sock" info >/dev/null 2>&1; do
		kill -0 "$(cat "$work/$1.pid")" 2>/dev/null || { cat "$work/$1.log" >&2; return 1; }
		sleep 0.05
	done
}

rungv image import --progress none "oci:$images/dind:latest" docker:dind >/dev/null

begin=$(now)
golden=$work/golden.ext4
engine golden --mount "type=volume,src=$golden,dst=/var/lib/docker,size=8g"
ready golden
for pair in python=python:3.11-slim redis=redis:7-alpine postgres=postgres:16-alpine; do
	rungv image import --progress none "oci:$images/${pair%%=*}:latest" "${pair#*=}" >/dev/null
	rungv image save -o "$work/image.tar" "${pair#*=}" >/dev/null
	docker -H "unix://$work/golden.sock" load -q -i "$work/image.tar" >/dev/null
	rm "$work/image.tar"
done
docker -H "unix://$work/golden.sock" images --format '  {{.Repository}}:{{.Tag}}  {{.Size}}'
before=$(du -h "$golden" | cut -f 1)
end golden INT
printf '  golden volume: %s on disk, %s before kill -INT compacted it; made in %d ms\n\n' "$(du -h "$golden" | cut -f 1)" "$before" "$(ms "$begin")"

# repository DIR: a small service with a test.
repository() {
	mkdir -p "$1"
	cat > "$1/service.py" <<'PY'
import socket

def ask(command):
    """Sends one command to the cache and returns its answer."""
    with socket.create_connection(("cache", 6379)) as s:
        s.sendall(command.encode() + b"\r\n")
        return s.makefile("rb").readline().strip().decode()

def answer():
    return 6 * 9
PY
	cat > "$1/test_service.py" <<'PY'
import unittest, service

class Service(unittest.TestCase):
    def test_answer(self):
        self.assertEqual(service.answer(), 42)

    def test_cache(self):
        self.assertEqual(service.ask("SET key value"), "+OK")
        self.assertEqual(service.ask("INCR count"), ":1")
PY
	cat > "$1/Dockerfile" <<'DOCKER'
FROM python:3.11-slim
WORKDIR /app
COPY . .
RUN python3 -m compileall -q .
CMD ["python3", "-m", "unittest", "-v"]
DOCKER
	cat > "$1/compose.yaml" <<'YAML'
services:
  cache: {image: redis:7-alpine, healthcheck: {test: redis-cli ping, interval: 500ms, retries: 200}}
  db:
    image: postgres:16-alpine
    environment: {POSTGRES_PASSWORD: secret}
    healthcheck: {test: pg_isready -U postgres -h 127.0.0.1, interval: 500ms, retries: 400}
YAML
}

# episode N: one from reset to close; writes its row.
episode() {
	local name=episode-$1 begin started built up tested closing closed verdict=pass
	repository "$work/$name"
	export DOCKER_HOST=unix://$work/$name.sock
	begin=$(now)
	engine "$name" -m 4g --cpus 2 --mount "type=volume,src=$golden,dst=/var/lib/docker,clone=ephemeral"
	ready "$name"
	started=$(now)
	# What the agent does: a bug fixed, the result built.
	sed -i 's/6 \* 9/6 * 7/' "$work/$name/service.py"
	docker build -q -t service "$work/$name" >/dev/null
	built=$(now)
	(cd "$work/$name" && docker compose -p app up -d --wait >/dev/null 2>&1) || verdict='compose failed'
	up=$(now)
	docker run --rm --network app_default service > "$work/$name.test" 2>&1 || verdict='test failed'
	[ "$(cd "$work/$name" && docker compose -p app exec -T db psql -U postgres -Atc 'SELECT 6 * 7' 2>&1)" = 42 ] || verdict='database failed'
	tested=$(now)
	end "$name" KILL
	closed=$(now)
	printf '  %-12s %8d %8d %8d %8d %8d   %s\n' "$name" "$(ms "$begin" "$started")" "$(ms "$started" "$built")" \
		"$(ms "$built" "$up")" "$(ms "$up" "$tested")" "$(ms "$closing" "$closed")" "$verdict" > "$work/$name.row"
	[ "$verdict" = pass ] || tail -n 20 "$work/$name.test" >&2
}

printf '  %-12s %8s %8s %8s %8s %8s\n' 'ms' reset build up test close
for i in $(seq "$count"); do
	episode "$i" &
	pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do
	wait "$pid" || failed=1
done
pids=()
cat "$work"/episode-*.row
[ $failed = 0 ] && [ "$(grep -c ' pass$' "$work"/episode-*.row | awk -F : '{ n += $NF } END { print n }')" = "$count" ]
