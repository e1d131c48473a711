// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// attacks are what a hostile episode does to its own sandbox, each as a script
// against its engine. PORT is one of the host's loopback that nobody gave it,
// NEIGHBOUR where the host reaches a neighbour's engine. None of them may have an
// effect outside.
var attacks = []struct{ name, script string }{
	{"memory bomb", `docker run --rm busybox sh -c 'for i in 1 2 3 4; do dd if=/dev/zero of=/dev/null bs=900M count=20 & done; wait' >/dev/null 2>&1`},
	{"fork bomb", `timeout 15 docker run --rm --pids-limit 300 --name bomb busybox sh -c 'f() { f | f & }; f; sleep 10' >/dev/null 2>&1; docker rm -f bomb >/dev/null 2>&1`},
	{"disk fill", `docker run --rm busybox sh -c 'dd if=/dev/zero of=/fill bs=1M 2>&1 | grep -o "No space left on device"' 2>&1`},
	{"packet storm", `timeout 15 docker run --rm --network host busybox sh -c 'for i in 1 2 3 4; do (while :; do head -c 60000 /dev/zero | timeout 1 nc -u -w 1 10.0.2.2 9; done) & done; sleep 8' >/dev/null 2>&1`},
	{"host loopback", `docker run --rm --network host busybox sh -c 'timeout 5 wget -q -O - http://10.0.2.2:$0/ || timeout 5 wget -q -O - http://127.0.0.1:$0/ || echo refused' $PORT 2>/dev/null`},
	{"neighbour", `docker run --rm --network host busybox sh -c 'for a in 10.0.2.2 127.0.0.1 10.0.2.15 ` + hubIP + `; do timeout 5 wget -q -O - http://$a:$0/version && exit; done; echo refused' $NEIGHBOUR 2>/dev/null`},
	{"destruction", `docker run --rm --privileged --pid host -v /:/episode busybox sh -c 'for d in /episode/dev/*; do [ -b $d ] && echo block device $d; done; mount -t tmpfs none /episode/etc; rm -rf /episode/bin /episode/sbin /episode/usr /episode/var/lib/docker; kill -9 -1' >/dev/null 2>&1; echo done`},
}

// TestHostileEpisode lets an episode do its worst while a neighbour does its
// work: the neighbour is not harmed, nothing of the host is reached, and nothing
// is left.
func TestHostileEpisode(t *testing.T) {
	w := get(t)
	w.publishAll(t)
	golden := goldenVolume(t, w, "busybox")
	left := w.home.NothingLeft(t)

	var reached atomic.Int64
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer secret.Close()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(secret.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}

	published := freePort(t)
	neighbour := w.episode(t, golden, "neighbour", "-p", fmt.Sprintf("127.0.0.1:%d:2375", published))
	neighbour.ready(t)
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/version", published))
	if err != nil {
		t.Fatalf("the host itself does not reach the neighbour's engine: %v", err)
	}
	answer.Body.Close()
	// The hostile one's volume is small, so that it is full before the test's
	// time is up.
	small := w.home.Path("data", "hostile.ext4")
	hostile := w.start(t, "docker:dind", "hostile", "-m", "1g", "--cpus", "1", "--mount", "type=volume,src="+small+",dst=/var/lib/docker,size=512m")
	hostile.ready(t)
	hostile.docker(t, "pull", "-q", "busybox")

	for _, attack := range attacks {
		script := fmt.Sprintf("PORT=%s NEIGHBOUR=%d\n%s", port, published, attack.script)
		done := make(chan string, 1)
		go func() { done <- hostile.sh(t, t.TempDir(), script) }()
		begin := time.Now()
		neighbour.runScenario(t, "neighbour-"+strings.ReplaceAll(attack.name, " ", "-"))
		took := time.Since(begin)
		answer := <-done
		t.Logf("%s: the neighbour's scenario took %v meanwhile; it ended with %q", attack.name, took.Round(time.Millisecond), clipped(answer))
		switch {
		case attack.name == "disk fill" && !strings.Contains(answer, "No space left on device"):
			t.Errorf("disk fill: the volume's size did not hold: %q", answer)
		case (attack.name == "host loopback" || attack.name == "neighbour") && answer != "refused":
			t.Errorf("%s: want \"refused\", got %q", attack.name, answer)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("a server on the host's loopback was reached %d times", n)
	}
	hostile.kill(t)
	neighbour.runScenario(t, "neighbour-at-last")
	neighbour.kill(t)
	w.forget(t)
	if err := os.Remove(small); err != nil {
		t.Error(err)
	}
	left()
}

func clipped(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
