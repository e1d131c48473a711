# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# net: a Debian with the network's usual clients and servers;
# integration/network works in it.

PACKAGES='curl netcat-openbsd bind9-host bind9-dnsutils iproute2 iputils-ping iperf3 git openssh-client openssh-server python3 ca-certificates netbase iptables nftables tcpdump'
CONFIG=(-compress none -cmd bash -env LANG=C.UTF-8)
