#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Entry point of the docker:dind image: from the outside it behaves as that of
# Docker's official image of this name does.
#
#   - without arguments, or with flags only, it runs dockerd on its unix socket
#     and on a TCP port: 2376 with TLS, where DOCKER_TLS_CERTDIR names a folder
#     (the default), 2375 without where that is empty;
#   - certificates that are not in that folder are made: a CA in ca/, the
#     server's in server/, one for clients in client/;
#   - iptables is the nftables one unless DOCKER_IPTABLES_LEGACY is not empty,
#     or only the legacy one works here;
#   - before dockerd, `dind` prepares the cgroups and mounts, and docker-init
#     becomes process 1;
#   - any other command runs as it is, with DOCKER_HOST set for a client.
set -eu

certificate_days=825

# subject_names prints what the server's certificate is for.
subject_names() {
	{
		printf 'DNS:%s\n' docker localhost "$(hostname)"
		ip -o address show | awk '{ sub(/\/.*/, "", $4); print "IP:" $4 }'
		[ -z "${DOCKER_TLS_SAN:-}" ] || echo "$DOCKER_TLS_SAN" | tr ',' '\n'
	} | sort -u | paste -s -d ,
}

# private_key FILE: makes one if there is none.
private_key() {
	[ -s "$1" ] || (umask 077 && openssl ecparam -name prime256v1 -genkey -noout -out "$1")
}

# issue DIR NAME EXTENSIONS: a certificate signed by the folder's own authority.
issue() {
	private_key "$1/key.pem"
	openssl req -new -key "$1/key.pem" -out "$1/csr.pem" -subj "/CN=$2"
	printf '%s\n' "$3" > "$1/extensions.cnf"
	openssl x509 -req -in "$1/csr.pem" -out "$1/cert.pem" -days "$certificate_days" \
		-CA "$certs/ca/cert.pem" -CAkey "$certs/ca/key.pem" -CAcreateserial -extfile "$1/extensions.cnf" 2>/dev/null
	cp "$certs/ca/cert.pem" "$1/ca.pem"
	openssl verify -CAfile "$1/ca.pem" "$1/cert.pem" >/dev/null
}

# make_certificates fills what is missing; a folder whose owner keeps the
# authority's key elsewhere is left alone.
make_certificates() {
	certs=$1
	if [ -s "$certs/server/ca.pem" ] && [ -s "$certs/server/cert.pem" ] && [ -s "$certs/server/key.pem" ] && [ ! -s "$certs/ca/key.pem" ]; then
		openssl verify -CAfile "$certs/server/ca.pem" "$certs/server/cert.pem" >/dev/null
		return
	fi
	mkdir -p "$certs/ca" "$certs/server" "$certs/client"
	private_key "$certs/ca/key.pem"
	[ -s "$certs/ca/cert.pem" ] || openssl req -new -x509 -days "$certificate_days" -key "$certs/ca/key.pem" \
		-out "$certs/ca/cert.pem" -subj '/CN=docker:dind CA'
	issue "$certs/server" 'docker:dind server' "subjectAltName = $(subject_names)
extendedKeyUsage = serverAuth"
	issue "$certs/client" 'docker:dind client' 'extendedKeyUsage = clientAuth'
	chmod -R a+rX "$certs/client"
}

# select_iptables puts the legacy programs first in PATH where they are wanted.
select_iptables() {
	legacy=/usr/local/sbin/.iptables-legacy
	if [ -n "${DOCKER_IPTABLES_LEGACY+given}" ]; then
		[ -z "$DOCKER_IPTABLES_LEGACY" ] || export PATH="$legacy:$PATH"
	elif ! iptables -nL >/dev/null 2>&1 && PATH="$legacy:$PATH" iptables -nL >/dev/null 2>&1; then
		export PATH="$legacy:$PATH"
	fi
	iptables --version
}

case ${1:--} in
-*)
	socket=unix:///var/run/docker.sock
	if [ -n "${DOCKER_TLS_CERTDIR:-}" ]; then
		make_certificates "$DOCKER_TLS_CERTDIR"
		set -- dockerd --host="$socket" --host=tcp://0.0.0.0:2376 --tlsverify \
			--tlscacert "$DOCKER_TLS_CERTDIR/server/ca.pem" \
			--tlscert "$DOCKER_TLS_CERTDIR/server/cert.pem" \
			--tlskey "$DOCKER_TLS_CERTDIR/server/key.pem" "$@"
	else
		set -- dockerd --host="$socket" --host=tcp://0.0.0.0:2375 "$@"
	fi ;;
esac

if [ "$1" = dockerd ]; then
	# What an engine left that was killed would keep the next from starting.
	find /run /var/run -name 'docker*.pid' -delete 2>/dev/null || true
	select_iptables
	exec dind docker-init -- "$@"
fi

if [ -z "${DOCKER_HOST:-}" ] && [ ! -S /var/run/docker.sock ]; then
	if [ -n "${DOCKER_TLS_CERTDIR:-}" ] && [ -s "$DOCKER_TLS_CERTDIR/client/cert.pem" ]; then
		export DOCKER_HOST=tcp://docker:2376 DOCKER_TLS_VERIFY=1 DOCKER_CERT_PATH="$DOCKER_TLS_CERTDIR/client"
	else
		export DOCKER_HOST=tcp://docker:2375
	fi
fi
exec "$@"
