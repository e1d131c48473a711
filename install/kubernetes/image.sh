#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The image by which a DaemonSet brings gvx to the nodes of a cluster: rungv and
# containerd's shim, and nothing else.
#
#	install/kubernetes/image.sh OUT [ARCHITECTURE]
#
# OUT becomes an OCI layout, as skopeo and others push it to a registry:
# skopeo copy oci:OUT:latest docker://registry.example/gvx-node:latest
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: image.sh OUT [ARCHITECTURE]}
arch=${2:-$(cd "$here" && go env GOARCH)}
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
cd "$here/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0
version=$(git describe --tags --always --dirty 2>/dev/null || echo unknown)
mkdir -p "$work/root/usr/bin"
GOOS=linux GOARCH=$arch go build -buildvcs=false -trimpath -o "$work/root/usr/bin/" \
	-ldflags "-s -w -X z.gfire.dev/gvx/runtime/cli.Version=$version -X z.gfire.dev/gvx/shim.Version=$version" \
	./cmd/rungv ./cmd/containerd-shim-gvx-v2
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$work/root" -cf "$work/root.tar" usr
go run -buildvcs=false ./install/image/mkimage -out "$out" -platform "linux/$arch" -compress gzip -entrypoint /usr/bin/rungv "$work/root.tar"
