# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# dind: a Docker engine, the newest, built from Go modules by engine.sh, with an
# entry point that behaves like that of Docker's official image docker:dind.

PACKAGES='iptables nftables iproute2 git e2fsprogs xz-utils pigz ca-certificates openssl tini procps libseccomp2 kmod'
CONFIG=(-compress gzip -env DOCKER_TLS_CERTDIR=/certs -env LANG=C.UTF-8
	-entrypoint dockerd-entrypoint.sh -volume /var/lib/docker -expose 2375/tcp -expose 2376/tcp)
TREES=("$(engine)" files/dind)

customize() {
	ln -s /usr/bin/tini-static "$root/usr/local/bin/docker-init"
	# Where the entry point finds the other iptables under their plain names.
	mkdir -p "$root/usr/local/sbin/.iptables-legacy"
	for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		ln -s "/usr/sbin/${name/tables/tables-legacy}" "$root/usr/local/sbin/.iptables-legacy/$name"
	done
	# dockerd's userns-remap and the socket's group.
	chroot "$root" addgroup --quiet --system --gid 2375 docker
}
