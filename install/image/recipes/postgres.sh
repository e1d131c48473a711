# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# postgres: Debian's PostgreSQL behind an entry point with the environment
# variables of Docker's official image of that name: stands in for it in an
# episode.

PACKAGES='postgresql'
CONFIG=(-compress gzip -entrypoint docker-entrypoint.sh -cmd postgres -env LANG=C.UTF-8 -env PGDATA=/var/lib/postgresql/data
	-expose 5432/tcp -volume /var/lib/postgresql/data -stop-signal SIGINT)
TREES=(files/postgres)

customize() {
	# The cluster that the package makes is not the container's.
	rm -rf "$root"/var/lib/postgresql/[0-9]* "$root"/etc/postgresql/[0-9]*
	chroot "$root" install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data
	for program in "$root"/usr/lib/postgresql/*/bin/*; do
		ln -sf "${program#"$root"}" "$root/usr/local/bin/"
	done
}
