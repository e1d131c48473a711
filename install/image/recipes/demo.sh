# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# demo: Debian with Python, as a newcomer would expect it; `make demo` runs it.

# PACKAGES are installed on top of Debian's essential ones.
PACKAGES='python3 ca-certificates netbase'
# CONFIG is handed to mkimage: the image's config and its compression.
CONFIG=(-compress gzip -cmd python3 -env LANG=C.UTF-8)
