#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Entry point of the postgres image: makes the cluster that PGDATA names if there
# is none, by POSTGRES_PASSWORD, POSTGRES_USER and POSTGRES_DB, and runs the
# command as the user postgres. Any other command than postgres runs as it is.
set -eu

if [ "${1:-postgres}" != postgres ]; then
	exec "$@"
fi
if [ "$(id -u)" = 0 ]; then
	install -d -o postgres -g postgres -m 0700 "$PGDATA"
	install -d -o postgres -g postgres /var/run/postgresql
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

user=${POSTGRES_USER:-postgres} database=${POSTGRES_DB:-${POSTGRES_USER:-postgres}}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	if [ -z "${POSTGRES_PASSWORD:-}" ]; then
		echo 'postgres: no cluster yet, and POSTGRES_PASSWORD is empty: set it' >&2
		exit 1
	fi
	secret=$(mktemp)
	printf '%s\n' "$POSTGRES_PASSWORD" > "$secret"
	initdb --username="$user" --pwfile="$secret" --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 -D "$PGDATA" >/dev/null
	rm "$secret"
	printf 'host all all all scram-sha-256\n' >> "$PGDATA/pg_hba.conf"
	if [ "$database" != postgres ]; then
		echo "CREATE DATABASE \"$database\"" | postgres --single -D "$PGDATA" postgres >/dev/null
	fi
fi
exec "$@" -c listen_addresses='*'
