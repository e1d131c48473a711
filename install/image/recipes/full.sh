# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# full: a developer's Debian: Node.js, git, a C compiler, SQLite, pip, fio, Debian
# source packages to build, and a local apt repository to install from without a
# network. integration/guests, volume and perf work in it.

PACKAGES='nodejs git gcc libc6-dev make sqlite3 dpkg-dev ca-certificates netbase procps less xz-utils python3 python3-pip fio'
CONFIG=(-compress none -cmd bash -env LANG=C.UTF-8 -user root -workdir /root)

customize() {
	fetch_source zlib /usr/src/debian
	fetch_source hello /usr/src/debian
	mkdir -p "$root/srv/repository"
	chroot "$root" apt-get -qq update
	# Packages that are not installed, of different kinds: a single program, a
	# program with a chain of libraries, one with a large data package.
	chroot "$root" sh -ec 'cd /srv/repository && apt-get -qq download tree jq libjq1 libonig5 file libmagic1 libmagic-mgc'
	chroot "$root" sh -ec 'cd /srv/repository && dpkg-scanpackages --multiversion . > Packages 2>/dev/null && gzip -k Packages'
	# From here on the image has no network: its only repository is its own.
	echo 'deb [trusted=yes] file:/srv/repository ./' > "$root/etc/apt/sources.list"
	chroot "$root" useradd --create-home --uid 1000 developer
}
