// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// interfacesScript makes bridges as brctl does, and prints what sysfs says of them and
// of other interfaces, but for what differs from one kernel to the next: sizes, random
// addresses.
const interfacesScript = `
ip link set lo up
python3 - <<'end'
import errno, fcntl, os, socket, struct
s = socket.socket()
def call(number, argument):
    try: fcntl.ioctl(s, number, argument); return "made"
    except OSError as e: return errno.errorcode[e.errno]
def add(name): return call(0x89a0, name.encode().ljust(16, b"\0"))
def delete(name): return call(0x89a1, name.encode().ljust(16, b"\0"))
def port(bridge, name): return call(0x89a2, struct.pack("16si20x", bridge.encode(), socket.if_nametoindex(name) if name else 99))
print(add("br0"), add("br0"), add("br1"), add(""), add("a/b"), add(".."), add("a b"), add("123456789012345"))
os.system("ip link add v0 type veth peer name v1")
print(port("br0", "v0"), port("br0", "v0"), port("br1", "v0"), port("br0", "lo"), port("br0", "br1"), port("br0", ""), port("none", "v1"), port("v0", "v1"))
print(delete("v0"), delete("none"), delete("br1"), delete("123456789012345"))
print(call(0x89a0, 1))
end
for i in br0 v0 v1; do ip link set $i up; done
for round in $(seq 50); do grep -q up /sys/class/net/br0/operstate && break; sleep 0.1; done
cd /sys/class/net; ls
for i in lo br0 v0 v1; do
	echo "== $i is $(readlink $i), $(readlink $i/subsystem); $(readlink $i/master) $(readlink $i/brport/bridge)"
	for f in addr_len broadcast carrier dev_id dev_port dormant duplex ifalias link_mode netdev_group operstate proto_down speed tx_queue_len type \
		bridge/stp_state brport/state; do
		echo "$f: $(cat $i/$f 2>&1 | sed 's/.*: //')"
	done
	[ "$(cat $i/address)" = "$(cat /sys/devices/virtual/net/$i/address)" ] && ip link show $i | grep -q "link/[a-z]* $(cat $i/address) " && echo the address is its own
	ip link show $i | grep -q "^$(cat $i/ifindex): $i[:@].* mtu $(cat $i/mtu) " && grep -q "^INTERFACE=$i$" $i/uevent && echo index and size, too
	[ "$i" != br0 ] || { ls $i/brif; readlink $i/brif/*; [ "$(cat $i/bridge/bridge_id)" = "8000.$(tr -d : < $i/address)" ] && echo and the bridge; }
	ls $i/statistics | tr '\n' ' '
done
stat -f -c %t . lo lo/ lo/mtu lo/statistics/ lo/statistics/rx_bytes br0/brif/v0
ip link set br0 name br2; readlink v0/master v0/brport/bridge; ip link set br2 name br0
ping -c 3 -i 0.2 127.0.0.1 > /dev/null; [ "$(cat lo/statistics/rx_packets)" -ge 6 ] && echo counted
echo 1 2>/dev/null > lo/ifindex || echo not to be written
ip link add v2 type veth peer name v3; ls v2/brport 2>&1 | sed 's/.*: //'; ip link set v2 master br0; ls br0/brif
ip netns add other; ip netns exec other ls /sys/class/net
ip link set v3 netns other; ls; ip netns exec other ls /sys/class/net
ip link del v0; ls; cat v0/mtu 2>&1; ls br0/brif
`

// TestInterfacesInSysfs: interfaces look, and bridges are made by calls, as on Linux,
// which runs the same in a container of runc's.
func TestInterfacesInSysfs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bundle := testbed.NewBundle(t, "runc", "net")
	caps := []string{"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"}
	bundle.Spec.Process.Args = []string{"sh", "-c", interfacesScript}
	bundle.Spec.Process.Capabilities.Bounding, bundle.Spec.Process.Capabilities.Permitted, bundle.Spec.Process.Capabilities.Effective = caps, caps, caps
	linux := testbed.Run(t, bundle.Command(ctx, t), nil)
	guest := getHome(t).Rungv(t, nil, "run", "--rm", "--privileged", "--network", "none", image, "sh", "-c", interfacesScript)
	if linux.Code != guest.Code || linux.Stdout != guest.Stdout {
		t.Errorf("on Linux: %v\nin the guest: %v", linux, guest)
	}
	tunnel := getHome(t).Rungv(t, nil, "run", "--rm", "--network", "none", image, "python3", "-c", `
import fcntl, os, socket, struct
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"t0", 0x1001)) # IFF_TUN, IFF_NO_PI
s = socket.socket()
fcntl.ioctl(s, 0x89a0, b"b0".ljust(16, b"\0"))
try: fcntl.ioctl(s, 0x89a2, struct.pack("16si20x", b"b0", socket.if_nametoindex("t0")))
except OSError as e: print(e.strerror)
os.write(tun, b"\x45" + bytes(27))`)
	if tunnel.Code != 0 || tunnel.Stdout != "Invalid argument\n" {
		t.Errorf("a tunnel as a bridge's port: %v", tunnel)
	}
	denied := getHome(t).Rungv(t, nil, "run", "--rm", "--network", "none", "--cap-drop", "NET_ADMIN", image, "python3", "-c",
		"import fcntl, socket; fcntl.ioctl(socket.socket(), 0x89a0, b'br0'.ljust(16, b'\\0'))")
	if denied.Code != 1 || !strings.Contains(denied.Stderr, "PermissionError") {
		t.Errorf("a bridge without the capability: %v", denied)
	}
}
