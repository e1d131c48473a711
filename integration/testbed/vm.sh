#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# vm.sh OUT: makes a virtual machine's kernel, initrd and disk in OUT: Debian with
# systemd, whose cgroups are of version 2 alone. It mounts its second disk on /gvx,
# executes /gvx/run with its output on the first serial line, and powers off.
set -euo pipefail

out=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$here/../../.ci/apt" mmdebstrap e2fsprogs qemu-system-x86

work=$(mktemp -d "$(dirname "$out")/.$(basename "$out").XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/out" "$work/root"
cat > "$work/customize" <<'SH'
#!/usr/bin/env bash
set -euo pipefail
root=$1
cat > "$root/etc/systemd/system/gvx.service" <<'UNIT'
[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStartPre=/bin/mkdir -p /gvx
ExecStartPre=/bin/mount /dev/vdb /gvx
ExecStart=/gvx/run
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStopPost=/bin/systemctl --no-block poweroff
UNIT
# Nobody is to log in on the line.
for unit in serial-getty@ttyS0 getty@tty1 apt-daily.timer apt-daily-upgrade.timer; do
	ln -sf /dev/null "$root/etc/systemd/system/${unit%.timer}$([[ $unit == *.timer ]] && echo .timer || echo .service)"
done
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../gvx.service "$root/etc/systemd/system/multi-user.target.wants/gvx.service"
echo gvx > "$root/etc/hostname"
chroot "$root" useradd --create-home --uid 1000 user
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
SH
chmod +x "$work/customize"
mmdebstrap --quiet --mode=root --variant=minbase --aptopt='Acquire::Retries "3"' \
	--include=systemd-sysv,dbus,linux-image-cloud-amd64,initramfs-tools,iproute2,procps,jq,gawk,bats,kmod,udev,busybox-static \
	--customize-hook="$work/customize" bookworm "$work/root.tar" ${GVX_DEBIAN_MIRROR:+"$GVX_DEBIAN_MIRROR"}
tar -C "$work/root" --numeric-owner --xattrs --xattrs-include='*' -xpf "$work/root.tar"
cp "$work"/root/boot/vmlinuz-* "$work/out/vmlinuz"
cp "$work"/root/boot/initrd.img-* "$work/out/initrd"
mke2fs -q -t ext4 -d "$work/root" "$work/out/disk" 1G
rm -rf "$out"
mv "$work/out" "$out"
