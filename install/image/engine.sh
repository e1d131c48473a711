#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the programs of a Docker engine from Go modules, for the docker:dind
# image:
#
#	engine.sh OUT
#
# OUT becomes a directory that looks like the part of a root file system they
# belong to: OUT/usr/local/bin and OUT/usr/local/libexec/docker/cli-plugins.
# Versions and hashes of all sources are in engine/go.mod and engine/go.sum.
# Everything is static but runc, which needs Debian's libseccomp at run time.
#
# One package is compiled at a time unless GVX_ENGINE_JOBS says otherwise: built
# all at once it takes more memory than small machines have.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: engine.sh OUT}
mkdir -p "$(dirname "$out")"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")

"$here/../../.ci/apt" gcc libc6-dev pkg-config libseccomp-dev

work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
bin=$work/usr/local/bin plugins=$work/usr/local/libexec/docker/cli-plugins
mkdir -p "$bin" "$plugins"

cd "$here/engine"
export GOFLAGS="-buildvcs=false -mod=readonly ${GVX_TESTBED_GOFLAGS:-}" CGO_ENABLED=0

# version MODULE: the one that go.mod pins, without the word that says that a
# repository has no go.mod.
version() { go list -m -f '{{.Version}}' "$1" | sed 's/+incompatible$//; s/^v//'; }

docker=github.com/docker/cli
moby=github.com/moby/moby/v2
containerd=github.com/containerd/containerd/v2
buildx=github.com/docker/buildx
compose=github.com/docker/compose/v5
runc=github.com/opencontainers/runc

# The engine bears its command line's version: they are one release, whose
# engine module is numbered on its own.
flags=(
	-X "$docker/cli/version.Version=$(version $docker)"
	-X "$moby/dockerversion.Version=$(version $docker)"
	-X "$moby/dockerversion.GitCommit=v$(version $moby)"
	-X "$containerd/version.Version=v$(version $containerd)"
	-X "$buildx/version.Version=v$(version $buildx)"
	-X "$compose/internal.Version=v$(version $compose)"
	-X "main.version=$(version $runc)"
)
# The command line's repository has no go.mod, for which go assumes the language
# of go 1.16; its vendor.mod says which it is in truth. Of a module that has not
# been downloaded there is no directory.
go mod download $docker
language=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' "$(go list -m -f '{{.Dir}}' $docker)/vendor.mod")
# build TAGS PACKAGE…: into bin, under the last word of each package's path.
build() {
	local tags=$1
	shift
	nice -n 19 go build -p "${GVX_ENGINE_JOBS:-1}" -trimpath -tags "$tags" \
		-gcflags "$docker/...=-lang=go$language" \
		-ldflags "-s -w ${flags[*]}" -o "$bin/" "$@"
}
static='netgo osusergo no_btrfs no_devmapper no_zfs no_systemd exclude_graphdriver_btrfs'
build "$static" $moby/cmd/dockerd $moby/cmd/docker-proxy
build "$static" $containerd/cmd/containerd $containerd/cmd/containerd-shim-runc-v2 $containerd/cmd/ctr
build "$static" $docker/cmd/docker $buildx/cmd/buildx $compose/cmd
# Without libseccomp runc refuses the engine's default profile.
CGO_ENABLED=1 build 'netgo osusergo seccomp' $runc

mv "$bin/buildx" "$plugins/docker-buildx"
mv "$bin/cmd" "$plugins/docker-compose"
rm -rf "$out"
mv "$work" "$out"
trap - EXIT
