# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# python: Debian with CPython's own test suite and what its tests look for:
# /etc/services and /etc/protocols, time zones, MIME types, certificates, the
# openssl command. integration/guests runs it.

PACKAGES='python3 python3-distutils python3-lib2to3 python3.11-venv libpython3.11-testsuite netbase tzdata media-types ca-certificates openssl procps iproute2 locales'
# No compression: this image is rebuilt and converted often, and never shipped.
CONFIG=(-compress none -cmd python3 -env LANG=C.UTF-8)
# locale-gen reads /usr/share/locale/locale.alias.
EXCLUDE=(/usr/share/man /usr/share/doc /usr/share/info)

customize() {
	# test_locale and test__locale want real locales, not only C.UTF-8.
	echo 'en_US.UTF-8 UTF-8' > "$root/etc/locale.gen"
	chroot "$root" locale-gen >/dev/null
	# Debian's package of the suite leaves sqlite3's tests out: they are in
	# the source package, which apt checks like any other.
	fetch_source python3.11 /source
	tar -C "$root/usr/lib/python3.11/test" -xf "$root"/source/python3.11_*.orig.tar.* \
		--strip-components=3 --wildcards '*/Lib/test/test_sqlite3'
	rm -r "$root/source"
	test -e "$root/usr/lib/python3.11/test/test_sqlite3/__init__.py"
	chroot "$root" useradd --create-home --uid 1000 tester
}
