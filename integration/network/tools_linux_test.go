// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// TestDig asks the guest's name server as the tool for it does.
func TestDig(t *testing.T) {
	startNameServer(t)
	dns := []string{"--dns", nameServer}
	expect(t, "198.51.100.0\n198.51.100.0\n200\n200", `dig +short small.test
dig +short +tcp small.test
dig +short large.test | wc -l
dig +short +tcp large.test | wc -l`, dns...)
	expect(t, "NOERROR\nNOERROR", `dig small.test AAAA | grep -o 'status: [A-Z]*' | cut -c 9-
dig +noedns small.test | grep -o 'status: [A-Z]*' | cut -c 9-`, dns...)
}

// TestSSH logs in from one guest to another, and copies a file both ways.
func TestSSH(t *testing.T) {
	h := getHome(t)
	data := make([]byte, 16<<20)
	_, _ = io.ReadFull(&pattern{}, data)
	digest := fmt.Sprintf("%x", sha256.Sum256(data))
	name := server(t, `set -e
mkdir -p /run/sshd /root/.ssh
ssh-keygen -q -t ed25519 -N '' -f /root/key
cp /root/key.pub /root/.ssh/authorized_keys
ssh-keygen -A >/dev/null
$(command -v sshd) -o UsePAM=no
python3 -m http.server -d /root 80 >/dev/null 2>&1 &
until curl -s -o /dev/null http://127.0.0.1/; do sleep 0.1; done
echo ready
exec sleep 600`, "-p", "22", "-p", "80")
	flags, ports := []string{}, map[string]string{}
	for _, guest := range []string{"22", "80"} {
		_, port, err := net.SplitHostPort(strings.TrimSpace(h.MustRungv(t, "port", name, guest)))
		if err != nil {
			t.Fatal(err)
		}
		ports[guest] = port
		flags = append(flags, "--egress=allow=127.0.0.1:"+port)
	}
	expect(t, "0\nhello from 10.0.2.2\n"+digest, `set -e
curl -sSf http://10.0.2.2:`+ports["80"]+`/key > key; chmod 600 key
o="-q -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
python3 -c '
out, at = bytearray(16 << 20), 0
for at in range(len(out)):
    out[at] = (at * 0x9e3779b97f4a7c15 & 0xffffffffffffffff) >> 56
open("/file", "wb").write(out)'
ssh $o -p `+ports["22"]+` root@10.0.2.2 true; echo $?
ssh $o -p `+ports["22"]+` root@10.0.2.2 'echo hello from $SSH_CLIENT' | cut -d' ' -f1-3
scp $o -P `+ports["22"]+` /file root@10.0.2.2:/there
scp $o -P `+ports["22"]+` root@10.0.2.2:/there /back
sha256sum /back | cut -d' ' -f1`, flags...)
}

// TestGit clones from a guest over http and pushes over git's own protocol.
func TestGit(t *testing.T) {
	h := getHome(t)
	name := server(t, `set -e
export HOME=/root
git config --global user.email a@b.test; git config --global user.name a
git init -q --bare /srv/repo.git
git clone -q /srv/repo.git /clone 2>/dev/null; cd /clone
head -c 3000000 /dev/urandom > large; for i in $(seq 200); do echo $i > file$i; done
git add .; git commit -q -m first; git push -q origin HEAD:main
git -C /srv/repo.git symbolic-ref HEAD refs/heads/main
git -C /srv/repo.git update-server-info
python3 -m http.server -d /srv 80 >/dev/null 2>&1 &
git daemon --base-path=/srv --export-all --enable=receive-pack --reuseaddr >/dev/null 2>&1 &
until curl -s -o /dev/null http://127.0.0.1/ && nc -z 127.0.0.1 9418; do sleep 0.1; done
echo ready
exec sleep 600`, "-p", "80", "-p", "9418")
	var flags []string
	address := map[string]string{}
	for _, guest := range []string{"80", "9418"} {
		_, port, err := net.SplitHostPort(strings.TrimSpace(h.MustRungv(t, "port", name, guest)))
		if err != nil {
			t.Fatal(err)
		}
		address[guest] = "10.0.2.2:" + port
		flags = append(flags, "--egress=allow=127.0.0.1:"+port)
	}
	expect(t, "201\nsecond", `set -e
export HOME=/root
git config --global user.email a@b.test; git config --global user.name a
git clone -q http://`+address["80"]+`/repo.git one
ls one | wc -l
cd one; git fsck --no-progress
echo 2 > second; git add .; git commit -q -m second
git push -q git://`+address["9418"]+`/repo.git HEAD:main
cd ..; git clone -q git://`+address["9418"]+`/repo.git two
git -C two log -1 --format=%s`, flags...)
}
