# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# redis: Debian's Redis, started as Docker's official image of that name does:
# stands in for it in an episode.

PACKAGES='redis-server'
CONFIG=(-compress gzip -cmd redis-server -cmd --protected-mode -cmd no -expose 6379/tcp -volume /data -workdir /data)

customize() { mkdir -p "$root/data"; }
