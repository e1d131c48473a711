#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The first thing to run on a fresh machine (`make demo`): builds rungv and a
# Debian image with Python out of Debian's own packages, then runs Python in a
# sandbox as an ordinary user, and at last Docker engines in which episodes build,
# compose and test, saying what happens and how long it takes.
#
# As root it installs missing packages by apt and runs the sandbox as the user
# $GVX_DEMO_USER, which it makes if there is none. As an ordinary user it needs
# an image built before, or GVX_DEMO_IMAGE (anything `rungv run` takes).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
user=${GVX_DEMO_USER:-gvx-demo}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
shown() { printf '  $ %s\n' "$*"; }

say '1. Build rungv: one static binary, gVisor as a plain Go library inside'
if [ "$(id -u)" = 0 ]; then
	.ci/apt ca-certificates git make
fi
command -v go >/dev/null || { echo 'demo: Go is missing: install the version that go.mod names' >&2; exit 1; }
make --no-print-directory build
ls -l bin/rungv | awk '{ printf "  bin/rungv, %.1f MB\n", $5 / 1e6 }'

say '2. A Debian image with Python, from Debian packages'
image=${GVX_DEMO_IMAGE:-}
if [ -z "$image" ]; then
	layout=$(integration/testbed/testbed.sh get demo)/oci
	image=oci:$layout:latest
	echo "  OCI layout of $(du -sh "$layout" | cut -f 1)"
fi

# A folder of the ordinary user's own: the binary, the image, the state.
home=$(mktemp -d /var/tmp/gvx-demo.XXXXXX)
trap 'rm -rf "$home"' EXIT
install -m 0755 bin/rungv "$home/rungv"
if [ -z "${GVX_DEMO_IMAGE:-}" ]; then
	cp -r --reflink=auto "$layout" "$home/debian-python"
	image=oci:debian-python:latest
fi
as_user=()
if [ "$(id -u)" = 0 ]; then
	id "$user" >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin "$user"
	chown -R "$user" "$home"
	as_user=(setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all)
fi
mkdir -p "$home/run" "$home/data"
[ ${#as_user[@]} = 0 ] || chown "$user" "$home/run" "$home/data"
run() {
	(cd "$home" && "${as_user[@]}" env -i PATH="$PATH" TERM="${TERM:-dumb}" HOME="$home" \
		XDG_RUNTIME_DIR="$home/run" XDG_DATA_HOME="$home/data" ./rungv "$@")
}
# timed FORMAT COMMAND…: runs it and says how long it took.
timed() {
	local format=$1 start end
	shift
	start=$(date +%s%N)
	"$@"
	end=$(date +%s%N)
	# shellcheck disable=SC2059
	printf "  $format\n" "$(((end - start) / 1000000))"
}

say "3. What this host offers (as $(if [ "$(id -u)" = 0 ]; then echo "user $user, uid $(id -u "$user")"; else id -un; fi))"
shown rungv doctor
run doctor || true

say '4. Import the image: each layer becomes one read-only EROFS file, shared by all sandboxes'
shown rungv image import "$image" demo
timed 'imported in %d ms' run image import "$image" demo
run image ls

say '5. Run'
shown 'rungv run --rm --network none demo true'
for _ in 1 2 3; do
	timed 'boot to exit: %d ms' run run --rm --network none demo true
done
program='
import os, platform
print("  Python", platform.python_version(), "on", platform.system(), platform.release(), platform.machine())
print("  I am uid", os.getuid(), "and pid", os.getpid(), "here; all processes:", sorted(int(p) for p in os.listdir("/proc") if p.isdigit()))
with open("/root/file", "w") as f:
    f.write("written inside")
print("  /root/file holds:", open("/root/file").read())
for path in "/dev/kvm", "/dev/sda", "/proc/kcore":
    print("  " + path + ":", "there" if os.path.exists(path) else "not there")
'
shown "rungv run --rm -i --network none demo python3 -   # the program comes by stdin"
timed 'took %d ms' run run --rm -i --network none demo python3 - <<<"$program"

say '6. The layers around a running sandbox'
shown rungv run --rm --network none --name held demo sleep 60
run run --rm --network none --name held demo sleep 60 &
launcher=$!
for _ in $(seq 100); do
	[ "$(run inspect --format '{{.State.Status}}' held 2>/dev/null)" != running ] || break
	sleep 0.1
done
shown rungv inspect held "  # Isolation and Boot of it:"
run inspect --format '{{range .Sandbox.Isolation}}    {{.}}
{{end}}' held | sed '/^$/d'
run inspect --format '{{range .Sandbox.Boot}}    {{printf "%7.1f ms  %s" .Milliseconds .Phase}}
{{end}}' held | sed '/^$/d'
end_it() {
	run kill held >/dev/null
	wait "$launcher" || true
}
shown rungv kill held
timed 'killed and gone after %d ms' end_it
# A Docker engine takes minutes to build on a fresh machine: GVX_DEMO_EPISODES=0
# leaves this part out.
episodes=${GVX_DEMO_EPISODES:-3}
if [ "$(id -u)" = 0 ] && [ "$episodes" != 0 ]; then
	say "7. Episodes: a golden volume, and $episodes clones of it at once, each a Docker engine of its own"
	for pair in dind=dind python=demo redis=redis postgres=postgres; do
		cp -r --reflink=auto "$(integration/testbed/testbed.sh get "${pair#*=}")/oci" "$home/${pair%%=*}"
	done
	engine=$(integration/testbed/testbed.sh get engine)
	mkdir "$home/bin"
	cp --reflink=auto bin/rungv "$engine/usr/local/bin/docker" "$home/bin/"
	cp -r --reflink=auto "$engine/usr/local/libexec/docker/cli-plugins" "$home/cli-plugins"
	cp install/episodes.sh "$home/"
	chown -R "$user" "$home"
	shown "docker:dind, then for each episode: edit, docker build, docker compose up, test, kill"
	(cd "$home" && "${as_user[@]}" env -i PATH="$home/bin:$PATH" TERM="${TERM:-dumb}" HOME="$home" TMPDIR="$home" DOCKER_CONFIG="$home" \
		XDG_RUNTIME_DIR="$home/run" XDG_DATA_HOME="$home/data" ./episodes.sh "$home" "$episodes")
fi
say 'Done. Nothing is left: no mount, no cgroup, no process, and the folder goes now.'
