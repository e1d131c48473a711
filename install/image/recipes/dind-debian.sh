# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# dind-debian: a Docker engine as Debian ships it, several years older than that
# of recipe dind, behind the same entry point.

PACKAGES='docker.io iptables nftables iproute2 git e2fsprogs xz-utils ca-certificates openssl tini procps kmod'
CONFIG=(-compress gzip -env DOCKER_TLS_CERTDIR=/certs -env LANG=C.UTF-8
	-entrypoint dockerd-entrypoint.sh -volume /var/lib/docker -expose 2375/tcp -expose 2376/tcp)
TREES=(files/dind)

customize() {
	ln -sf /usr/bin/tini-static "$root/usr/local/bin/docker-init"
	mkdir -p "$root/usr/local/sbin/.iptables-legacy"
	for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		ln -s "/usr/sbin/${name/tables/tables-legacy}" "$root/usr/local/sbin/.iptables-legacy/$name"
	done
}
