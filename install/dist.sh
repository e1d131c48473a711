#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What a node installs, as files to hand on: for each architecture a tarball and,
# where dpkg-deb is at hand, a Debian package; and their checksums.
#
#	install/dist.sh VERSION [DIR]
#
# The same sources, toolchain and VERSION give the same bytes: times are the
# commit's, owners are root, nothing names the machine. Nothing is installed or
# started by the packages but two programs: `rungv install` is the user's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:?usage: dist.sh VERSION [DIR]}
out=${2:-dist}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export CGO_ENABLED=0 GOFLAGS='-buildvcs=false -trimpath' GOOS=linux LC_ALL=C TZ=UTC
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"

# A Debian version begins with a digit and has no dash of ours.
debian=$(printf %s "${version#v}" | tr -c 'A-Za-z0-9.+~\n' '+')
case $debian in [0-9]*) ;; *) debian=0+$debian ;; esac

for arch in amd64 arm64; do
	name=gvx-$version-linux-$arch
	mkdir -p "$work/$name"
	GOARCH=$arch go build -ldflags "-s -w -X z.gfire.dev/gvx/runtime/cli.Version=$version" -o "$work/$name/" ./cmd/rungv ./cmd/containerd-shim-gvx-v2
	cp LICENSE README.md SECURITY.md CHANGELOG.md "$work/$name/"
	chmod -R u=rwX,go=rX "$work/$name"
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -cf - "$name" | gzip -n -9 > "$out/$name.tar.gz"

	command -v dpkg-deb >/dev/null || continue
	root=$work/deb-$arch
	mkdir -p "$root/DEBIAN" "$root/usr/bin" "$root/usr/share/doc/gvx"
	cp "$work/$name/rungv" "$work/$name/containerd-shim-gvx-v2" "$root/usr/bin/"
	cp README.md SECURITY.md CHANGELOG.md "$root/usr/share/doc/gvx/"
	cp LICENSE "$root/usr/share/doc/gvx/copyright"
	cat > "$root/DEBIAN/control" <<CONTROL
Package: gvx
Version: $debian
Architecture: $arch
Maintainer: gvx maintainers
Section: admin
Priority: optional
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Homepage: https://z.gfire.dev/gvx
Description: containers in unprivileged, self-locked user-space kernels
 rungv runs each container in one unprivileged process that is its own kernel,
 by itself or as the OCI runtime of other engines; containerd-shim-gvx-v2 is
 containerd's runtime io.containerd.gvx.v2. rungv install makes both known to
 the engines of a node.
CONTROL
	chmod -R u=rwX,go=rX "$root"
	find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group -Zgzip -b "$root" "$out/gvx_${debian}_$arch.deb" >/dev/null
done
(cd "$out" && sha256sum -- *.tar.gz $(ls -- *.deb 2>/dev/null) > SHA256SUMS)
cat "$out/SHA256SUMS"
