#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The test bed: peers, servers and guest images that tests and benchmarks run
# against, built from Go modules and Debian packages into a cache outside the
# tree ($GVX_TESTBED, by default below the user's cache directory).
#
#	testbed.sh get NAME…   build what is missing or of another version; print
#	                       each one's path
#	testbed.sh path NAME   print the path if it is there, else fail
#	testbed.sh list        name everything, and say what is there
#
# An entry is kept under a key made of all that goes into it, so that a changed
# version or recipe is another entry, and a reused one is never stale. It appears
# by a rename once it is complete. Several callers may run at once: each entry
# has a lock. Builds need root only for apt and for images.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$here/../.." && pwd)
cache=${GVX_TESTBED:-${XDG_CACHE_HOME:-$HOME/.cache}/gvx-testbed}
# shellcheck source=versions.env
. "$here/versions.env"

programs=(runc runsc runsc-shim registry containerd containerd-tests cni cri-tools runtime-tools runc-tests kubernetes metrics-server agent-sandbox seccomp-profile engine fsstress e2fsprogs-tests vm)
images=(demo python full net dind dind-debian redis postgres)

die() { echo "testbed: $*" >&2; exit 1; }

digest() { sha256sum | cut -c 1-12; }

gvisor_version() {
	sed -n 's/^.*gvisor\.dev\/gvisor \(v[^ ]*\).*$/\1/p' "$tree/go.mod" | head -n 1
}

# image_sources NAME: what else goes into that image.
image_sources() {
	local files=$tree/install/image/files
	case $1 in
	dind) echo "$tree/install/image/engine.sh" "$tree"/install/image/engine/* "$files"/dind/usr/local/bin/* ;;
	dind-debian) echo "$files"/dind/usr/local/bin/* ;;
	postgres) echo "$files"/postgres/usr/local/bin/* ;;
	esac
}

# is_image NAME
is_image() { [[ " ${images[*]} " == *" $1 "* ]]; }

# key NAME: what identifies the present version of NAME.
key() {
	case $1 in
	runc) echo "$RUNC_VERSION-seccomp" ;;
	runsc | runsc-shim) gvisor_version ;;
	registry) echo "$REGISTRY_VERSION" ;;
	containerd | containerd-tests) echo "$CONTAINERD_VERSION" ;;
	cni) echo "$CNI_PLUGINS_VERSION" ;;
	cri-tools) echo "$CRI_TOOLS_VERSION" ;;
	runtime-tools) echo "$RUNTIME_TOOLS_VERSION" ;;
	runc-tests) echo "$RUNC_VERSION" ;;
	seccomp-profile) echo "$DOCKER_PROFILES_VERSION" ;;
	fsstress) echo "$BTRFS_PROGS_VERSION" ;;
	e2fsprogs-tests) echo "$E2FSPROGS_VERSION" ;;
	kubernetes)
		cat "$here"/kubernetes/* | digest ;;
	metrics-server) echo "$METRICS_SERVER_VERSION" ;;
	agent-sandbox)
		cat "$here"/agent-sandbox/* | digest ;;
	engine)
		cat "$tree/install/image/engine.sh" "$tree"/install/image/engine/* | digest ;;
	vm) digest < "$here/vm.sh" ;;
	*)
		is_image "$1" || die "unknown name $1: there are ${programs[*]} ${images[*]}"
		cat "$tree/install/image/debian.sh" "$tree/install/image/recipes/$1.sh" \
			"$tree"/install/image/mkimage/*.go $(image_sources "$1") | digest ;;
	esac
}

# path NAME: where its present version is or would be.
path() {
	local name=$1 key
	key=$(key "$name") || return
	if is_image "$name"; then
		echo "$cache/image/$name-$key"
	elif [ "$name" = seccomp-profile ]; then
		echo "$cache/bin/$name-$key.json"
	else
		echo "$cache/bin/$name-$key"
	fi
}

# go_install PACKAGE VERSION OUT [FLAG…]: builds a program of another module,
# with that module's own go.mod: nothing of it enters ours.
go_install() {
	local package=$1 version=$2 out=$3 dir
	shift 3
	dir=$(mktemp -d "$cache/.build.XXXXXX")
	(cd "$dir" && GOFLAGS="-buildvcs=false ${GVX_TESTBED_GOFLAGS:-}" GOBIN=$dir \
		nice -n 5 go install -trimpath -ldflags '-s -w' "$@" "$package@$version" >&2)
	mv "$dir/$(basename "$package")" "$out"
	rm -rf "$dir"
}

# go_install_all VERSION DIR LDFLAGS PACKAGE…: builds several programs of one
# other module into a folder, under the names that they look each other up by.
go_install_all() {
	local version=$1 out=$2 ldflags=$3 dir
	shift 3
	dir=$(mktemp -d "$cache/.build.XXXXXX")
	(cd "$dir" && CGO_ENABLED=0 GOFLAGS="-buildvcs=false ${GVX_TESTBED_GOFLAGS:-}" GOBIN=$dir \
		nice -n 5 go install -trimpath -ldflags "-s -w $ldflags" "${@/%/@$version}" >&2)
	chmod 0755 "$dir"
	mv "$dir" "$out"
}

# go_test_binary MODULE VERSION PACKAGE OUT LDFLAGS: builds a test program of
# another module, which go install does not do.
go_test_binary() {
	local dir
	dir=$(cd / && go mod download -json "$1@$2" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
	(cd "$dir" && CGO_ENABLED=0 GOFLAGS="-buildvcs=false ${GVX_TESTBED_GOFLAGS:-}" \
		nice -n 5 go test -c -trimpath -ldflags "-s -w $5" -o "$4" "$3" >&2)
}

# build_kubernetes DIR: the programs of a cluster of one node, whose versions
# are pinned in a module of their own.
build_kubernetes() (
	local out=$1 version flags
	cd "$here/kubernetes"
	export GOFLAGS="-buildvcs=false -mod=readonly ${GVX_TESTBED_GOFLAGS:-}" CGO_ENABLED=0
	version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	flags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
	mkdir -p "$out"
	nice -n 5 go build -trimpath -ldflags "$flags" -o "$out/" k8s.io/kubernetes/cmd/{kubelet,kube-apiserver,kube-controller-manager,kube-scheduler,kubectl} >&2
	nice -n 5 go build -trimpath -ldflags '-s -w' -o "$out/etcd" go.etcd.io/etcd/server/v3 >&2
)

# build_agent_sandbox DIR: the controller of kubernetes-sigs/agent-sandbox, likewise,
# with the types that it serves.
build_agent_sandbox() (
	local out=$1 package=sigs.k8s.io/agent-sandbox
	cd "$here/agent-sandbox"
	export GOFLAGS="-buildvcs=false -mod=readonly ${GVX_TESTBED_GOFLAGS:-}" CGO_ENABLED=0
	mkdir -p "$out"
	nice -n 5 go build -trimpath -ldflags '-s -w' -o "$out/" $package/cmd/agent-sandbox-controller >&2
	cp -r "$(go list -m -f '{{.Dir}}' $package)/k8s/crds" "$out" && chmod -R u+w "$out/crds"
)

# debian_source PACKAGE VERSION DIR: unpacks the upstream half of a source
# package into a folder. The lists of sources are private to the test bed; they
# name the mirrors that the machine has its packages from.
debian_source() {
	local package=$1 version=$2 dir=$3 apt=$cache/apt-source offered
	"$tree/.ci/apt" dpkg-dev xz-utils
	mkdir -p "$apt/lists/partial" "$apt/parts"
	if [ -e /etc/apt/sources.list.d/debian.sources ]; then
		sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$apt/parts/debian.sources"
	fi
	if [ -e /etc/apt/sources.list ]; then
		sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > "$apt/parts/old.list"
	fi
	local options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/parts" -o "Dir::State::lists=$apt/lists"
		-o APT::Sandbox::User=root)
	apt-get "${options[@]}" update >&2
	offered=$(apt-cache "${options[@]}" showsrc --only-source "$package" | sed -n "s/^Version: \(.*:\)\{0,1\}\($version-.*\)\$/\2/p" | sort -V | tail -n 1)
	[ -n "$offered" ] || die "Debian offers no $package $version here: change the version in versions.env"
	(cd "$dir" && apt-get "${options[@]}" source --download-only "$package=$offered" >&2 && tar -xf "${package}_$version".orig.tar.[gx]z --strip-components=1)
}

# busybox_tree DIR: makes a root file system of Debian's busybox.
busybox_tree() {
	local dir=$1 applet
	# Without /proc and /sys, which tests of the suite make.
	mkdir -p "$dir"/{bin,dev,etc,home,root,tmp,usr/bin,usr/sbin,var/spool/mail}
	chmod 1777 "$dir/tmp"
	install /bin/busybox "$dir/bin/busybox"
	for applet in $(busybox --list); do
		[ "$applet" = busybox ] || ln "$dir/bin/busybox" "$dir/bin/$applet"
	done
	printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'mail:x:8:8:mail:/var/spool/mail:/bin/false' 'nobody:x:65534:65534:nobody:/home:/bin/false' > "$dir/etc/passwd"
	printf '%s\n' 'root:x:0:' 'tty:x:5:' 'mail:x:8:' 'users:x:100:' 'nobody:x:65534:' > "$dir/etc/group"
}

build() {
	local name=$1 out=$2 dir layer package flags
	echo "testbed: building $name $(key "$name")" >&2
	case $name in
	runc)
		"$tree/.ci/apt" gcc libc6-dev pkg-config libseccomp-dev
		CGO_ENABLED=1 go_install github.com/opencontainers/runc "$RUNC_VERSION" "$out" -tags seccomp ;;
	runsc)
		CGO_ENABLED=0 go_install gvisor.dev/gvisor/runsc "$(gvisor_version)" "$out" ;;
	runsc-shim)
		CGO_ENABLED=0 go_install gvisor.dev/gvisor/shim "$(gvisor_version)" "$out" ;;
	registry)
		CGO_ENABLED=0 go_install github.com/distribution/distribution/v3/cmd/registry "$REGISTRY_VERSION" "$out" ;;
	containerd)
		package=github.com/containerd/containerd/v2
		go_install_all "$CONTAINERD_VERSION" "$out" "-X $package/version.Version=$CONTAINERD_VERSION" \
			$package/cmd/containerd $package/cmd/ctr $package/cmd/containerd-shim-runc-v2 ;;
	containerd-tests)
		go_test_binary github.com/containerd/containerd/v2 "$CONTAINERD_VERSION" ./integration/client "$out.part" ''
		mv "$out.part" "$out" ;;
	cni)
		package=github.com/containernetworking/plugins/plugins
		go_install_all "$CNI_PLUGINS_VERSION" "$out" '' $package/main/bridge $package/main/loopback $package/main/ptp \
			$package/ipam/host-local $package/meta/portmap $package/meta/firewall $package/meta/tuning ;;
	cri-tools)
		package=sigs.k8s.io/cri-tools
		flags="-X $package/pkg/version.Version=$CRI_TOOLS_VERSION"
		rm -rf "$out.part"
		go_install_all "$CRI_TOOLS_VERSION" "$out.part" "$flags" $package/cmd/crictl
		go_test_binary $package "$CRI_TOOLS_VERSION" ./cmd/critest "$out.part/critest" "$flags"
		mv "$out.part" "$out" ;;
	runtime-tools)
		# The programs look for the root file system and the one that looks about
		# in it in their working folder.
		package=github.com/opencontainers/runtime-tools
		rm -rf "$out.part"
		go_install_all "$RUNTIME_TOOLS_VERSION" "$out.part" '' "$package/validation/..."
		CGO_ENABLED=0 go_install $package/cmd/runtimetest "$RUNTIME_TOOLS_VERSION" "$out.part/runtimetest"
		dir=$(cd / && go mod download -json "$package@$RUNTIME_TOOLS_VERSION" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
		install -m 0644 "$dir/rootfs-amd64.tar.gz" "$out.part"
		mv "$out.part" "$out" ;;
	runc-tests)
		# As its Makefile lays them out. The images are ours, under the names that
		# the suite would fetch others by: Debian's tree is put there by who runs it.
		"$tree/.ci/apt" bats gawk jq busybox-static gcc libc6-dev
		rm -rf "$out.part"
		mkdir -p "$out.part/tests/cmd/_bin"
		dir=$(cd / && go mod download -json "github.com/opencontainers/runc@$RUNC_VERSION" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
		cp -r "$dir/tests/integration" "$out.part/tests"
		cp "$dir/go.mod" "$out.part"
		chmod -R u+w "$out.part" && chmod +x "$out.part"/tests/integration/*.sh
		for package in recvtty sd-helper pidfd-kill remap-rootfs fs-idmap; do
			CGO_ENABLED=0 go_install github.com/opencontainers/runc/tests/cmd/$package "$RUNC_VERSION" "$out.part/tests/cmd/_bin/$package"
		done
		busybox_tree "$out.part/tree"
		tar -C "$out.part/tree" -cf "$out.part/tests/integration/testdata/busybox-$(go env GOARCH).tar.xz" . && rm -r "$out.part/tree"
		: > "$out.part/tests/integration/testdata/debian-$(go env GOARCH).tar.xz"
		mv "$out.part" "$out" ;;
	kubernetes)
		rm -rf "$out.part"
		build_kubernetes "$out.part"
		mv "$out.part" "$out" ;;
	metrics-server)
		CGO_ENABLED=0 go_install sigs.k8s.io/metrics-server/cmd/metrics-server "$METRICS_SERVER_VERSION" "$out" ;;
	agent-sandbox)
		rm -rf "$out.part"
		build_agent_sandbox "$out.part"
		mv "$out.part" "$out" ;;
	seccomp-profile)
		dir=$(cd / && go mod download -json "github.com/moby/profiles/seccomp@$DOCKER_PROFILES_VERSION" |
			sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
		[ -r "$dir/default.json" ] || die "no default.json in docker's profiles $DOCKER_PROFILES_VERSION"
		install -m 0644 "$dir/default.json" "$out.part" && mv "$out.part" "$out" ;;
	fsstress)
		dir=$(mktemp -d "$cache/.build.XXXXXX")
		debian_source btrfs-progs "$BTRFS_PROGS_VERSION" "$dir"
		"$tree/.ci/apt" gcc libc6-dev libaio-dev liburing-dev
		gcc -O2 -w -D_GNU_SOURCE -I "$dir" -o "$out.part" "$dir/tests/fsstress.c" -laio -luring -lm
		mv "$out.part" "$out" && rm -rf "$dir" ;;
	e2fsprogs-tests)
		dir=$(mktemp -d "$cache/.build.XXXXXX")
		debian_source e2fsprogs "$E2FSPROGS_VERSION" "$dir"
		mv "$dir/tests" "$out" && rm -rf "$dir" ;;
	engine)
		"$tree/install/image/engine.sh" "$out" >&2 ;;
	vm)
		"$here/vm.sh" "$out" >&2 ;;
	*)
		[ "$name" != dind ] || GVX_ENGINE=$(get engine)
		export GVX_ENGINE
		rm -rf "$out.part"
		"$tree/install/image/debian.sh" "$name" "$out.part" >&2
		# Runtimes without images get the tree itself.
		mkdir "$out.part/rootfs"
		for layer in "$out.part"/rootfs.tar "$out.part"/rootfs-*.tar; do
			[ ! -e "$layer" ] || tar -C "$out.part/rootfs" --numeric-owner --xattrs --xattrs-include='*' -xpf "$layer"
		done
		mv "$out.part" "$out" ;;
	esac
}

get() {
	local name=$1 out
	out=$(path "$name")
	mkdir -p "$(dirname "$out")" "$cache/lock"
	(
		flock 9
		[ -e "$out" ] || build "$name" "$out"
	) 9> "$cache/lock/$name"
	echo "$out"
}

case ${1:-} in
get)
	shift
	[ $# -gt 0 ] || die "get: which? there are ${programs[*]} ${images[*]}"
	for name in "$@"; do
		get "$name"
	done ;;
path)
	out=$(path "${2:?usage: testbed.sh path NAME}")
	[ -e "$out" ] || die "$2 $(key "$2") is not built: run integration/testbed/testbed.sh get $2"
	echo "$out" ;;
list)
	for name in "${programs[@]}" "${images[@]}"; do
		state=missing
		[ ! -e "$(path "$name")" ] || state=present
		printf '%-16s %-44s %s\n' "$name" "$(key "$name")" "$state"
	done ;;
*) die "usage: testbed.sh get NAME… | path NAME | list" ;;
esac
