# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# full: a developer's Debian: Node.js, git, a C compiler, SQLite, Debian source
# packages to build, and a local apt repository to install from without a
# network. integration/guests works in it.

PACKAGES='nodejs git gcc libc6-dev make sqlite3 dpkg-dev ca-certificates netbase procps less xz-utils python3'
CONFIG=(-compress none -cmd bash -env LANG=C.UTF-8 -user root -workdir /root)

customize() {
	# Sources as Debian has them, checked by apt against its signed indexes.
	sed 's/^deb /deb-src /' "$root/etc/apt/sources.list" > "$root/etc/apt/sources.list.d/source.list"
	chroot "$root" apt-get -qq update
	mkdir -p "$root/usr/src/debian" "$root/srv/repository"
	chown _apt "$root/usr/src/debian" "$root/srv/repository" 2>/dev/null || true
	chroot "$root" sh -ec 'cd /usr/src/debian && apt-get -qq source --download-only zlib hello'
	# Packages that are not installed, of different kinds: a single program, a
	# program with a chain of libraries, one with a service account in postinst.
	chroot "$root" sh -ec 'cd /srv/repository && apt-get -qq download tree jq libjq1 libonig5 file libmagic1 libmagic-mgc'
	chroot "$root" sh -ec 'cd /srv/repository && dpkg-scanpackages --multiversion . > Packages 2>/dev/null && gzip -k Packages'
	rm "$root/etc/apt/sources.list.d/source.list"
	# From here on the image has no network: its only repository is its own.
	echo 'deb [trusted=yes] file:/srv/repository ./' > "$root/etc/apt/sources.list"
	chroot "$root" useradd --create-home --uid 1000 developer
}
