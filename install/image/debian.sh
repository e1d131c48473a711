#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a Debian image from Debian's own packages and writes it as an OCI
# layout:
#
#	debian.sh RECIPE OUT
#
# RECIPE names a file in recipes/: which packages the image holds, what is done
# to it after they are installed, and its config. OUT becomes a directory with
#
#	OUT/oci        the image, an OCI layout with the tag "latest"
#	OUT/rootfs.tar the same tree as one tar, for runtimes without images
#
# What a recipe adds of this repository's own comes as further layers: OUT then
# has more tars, rootfs-1.tar and so on.
#
# It needs root (debootstrapping does), a Debian host's apt, and Go. It installs
# mmdebstrap when that is missing. It writes nothing outside OUT but that
# package, and OUT appears only when it is complete.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=${1:?usage: debian.sh RECIPE OUT}
out=${2:?usage: debian.sh RECIPE OUT}

die() { echo "debian.sh: $*" >&2; exit 1; }

[ -r "$here/recipes/$recipe.sh" ] || die "no recipe $recipe: there are $(cd "$here/recipes" && echo *.sh)"
[ "$(id -u)" = 0 ] || die "building $recipe needs root: mmdebstrap makes device nodes and chroots"

# A recipe sets these; see recipes/demo.sh for what each means.
PACKAGES='' ; CONFIG=() ; TREES=() ; EXCLUDE=(/usr/share/man /usr/share/doc /usr/share/locale /usr/share/info)
customize() { :; }

# fetch_source PACKAGE DIR is for recipes: downloads Debian's source package into
# DIR of the image, checked by apt, the newest version whose files are still to be
# had: indexes of security updates may name some that are gone.
fetch_source() {
	local list=$root/etc/apt/sources.list.d/source.list
	sed 's/^deb /deb-src /' "$root/etc/apt/sources.list" > "$list"
	chroot "$root" apt-get -qq update
	mkdir -p "$root$2"
	chroot "$root" sh -euc 'cd "$2"
		for version in $(apt-cache showsrc "$1" | sed -n "s/^Version: //p" | sort -rVu); do
			if apt-get -qq source --download-only "$1=$version"; then exit 0; fi
		done
		echo "no version of source package $1 could be downloaded" >&2
		exit 1' - "$1" "$2"
	rm "$list"
}

# engine is for recipes: prints the folder with a Docker engine's programs. A
# caller that has one names it by GVX_ENGINE; else it is built beside OUT.
engine() {
	if [ -z "${GVX_ENGINE:-}" ]; then
		GVX_ENGINE=$(cd "$(dirname "$out")" && pwd)/engine
		[ -d "$GVX_ENGINE" ] || "$here/engine.sh" "$GVX_ENGINE" >&2
	fi
	echo "$GVX_ENGINE"
}

# shellcheck source=recipes/demo.sh
. "$here/recipes/$recipe.sh"

"$here/../../.ci/apt" mmdebstrap xz-utils

work=$(mktemp -d "$(dirname "$out")/.$(basename "$out").XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/image"
# The image must be readable by the ordinary user that runs it.
chmod 0755 "$work" "$work/image"

options=()
for path in "${EXCLUDE[@]}"; do
	options+=(--dpkgopt="path-exclude=$path/*")
done
# Hooks run in a child shell: hand it the functions by their text.
cat > "$work/customize" <<SH
#!/usr/bin/env bash
set -euo pipefail
root=\$1
$(declare -f fetch_source customize)
customize
rm -rf "\$root"/var/lib/apt/lists/* "\$root"/var/cache/apt/*.bin
SH
chmod +x "$work/customize"

mmdebstrap --quiet --mode=root --variant=minbase --include="${PACKAGES// /,}" \
	--aptopt='Acquire::Retries "3"' --skip=cleanup/apt/lists "${options[@]}" \
	--customize-hook="$work/customize" \
	bookworm "$work/image/rootfs.tar" ${GVX_DEBIAN_MIRROR:+"$GVX_DEBIAN_MIRROR"}

# A recipe's trees are further layers, of root's files and of a fixed time.
layers=("$work/image/rootfs.tar")
for tree in "${TREES[@]}"; do
	layers+=("$work/image/rootfs-${#layers[@]}.tar")
	(cd "$here" && tar -C "$tree" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner \
		--mode=u=rwX,go=rX -cf "${layers[-1]}" .)
done

(cd "$here/../.." && CGO_ENABLED=0 go run ./install/image/mkimage \
	-out "$work/image/oci" "${CONFIG[@]}" "${layers[@]}")

# Layers are private files by default; ordinary users run these images.
chmod -R a+rX "$work/image"
rm -rf "$out"
mv "$work/image" "$out"
