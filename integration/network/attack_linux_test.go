// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// compromised builds rungv with a Sentry that attacks its broker, once.
var compromised = sync.OnceValues(func() (string, error) {
	path := home.home.Path("bin", "rungv-compromised")
	build := exec.Command("go", "build", "-tags", "compromised", "-o", path, "./cmd/rungv")
	build.Dir = testbed.Tree()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build rungv with a compromised Sentry: %w\n%s", err, output)
	}
	return path, nil
})

// attempt is how one attack ended: see runtime/lockdown/compromised.
type attempt struct {
	Name string `json:"name"`
	Err  string `json:"err"`
}

// attack is a container whose Sentry attacks its broker.
type attack struct {
	cmd            *exec.Cmd
	name, results  string
	stdout, stderr bytes.Buffer
}

// startAttack starts a guest above a Sentry that attacks its broker first; the
// guest's network works once that is over.
func startAttack(t *testing.T, kind string, targets []string, script string, flags ...string) *attack {
	t.Helper()
	h := getHome(t)
	binary, err := compromised()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(h.Path("bin"), "attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	own := filepath.Join(dir, "rungv")
	doc, err := json.Marshal(map[string]any{"action": "refuse", "without": -1, "egress": map[string]any{"kind": kind, "targets": targets}})
	if err == nil {
		err = os.Link(binary, own)
	}
	if err == nil {
		err = os.WriteFile(own+".mode", doc, 0o644)
	}
	if err == nil {
		err = os.WriteFile(own+".result", nil, 0o644)
	}
	// The sandbox' uid must reach these.
	if err == nil {
		err = os.Chmod(own+".result", 0o666)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	a := &attack{name: fmt.Sprintf("attack-%d", names.Add(1)), results: own + ".result"}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	a.cmd = h.CommandAs(ctx, own, append(append([]string{"run", "--rm", "--name", a.name}, flags...), image, "bash", "-c", script)...)
	a.cmd.Stdout, a.cmd.Stderr = &a.stdout, &a.stderr
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = h.Command(ctx, "rm", "-f", a.name).Run()
		cancel()
	})
	return a
}

// end waits for the guest, which has to succeed, and returns what it printed and
// how the attacks ended.
func (a *attack) end(t *testing.T) (string, []attempt) {
	t.Helper()
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("the attacked container: %v: %s", err, a.stderr.String())
	}
	return strings.TrimSpace(a.stdout.String()), a.attempts(t)
}

func (a *attack) attempts(t *testing.T) []attempt {
	t.Helper()
	raw, err := os.ReadFile(a.results)
	if err != nil {
		t.Fatal(err)
	}
	var list []attempt
	for dec := json.NewDecoder(bytes.NewReader(raw)); dec.More(); {
		var one attempt
		if err := dec.Decode(&one); err != nil {
			t.Fatalf("results %q: %v", raw, err)
		}
		list = append(list, one)
	}
	return list
}

// launcher is what the launcher's process holds.
func (a *attack) launcher(t *testing.T) (descriptors, residentKB int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", a.cmd.Process.Pid)
	list, err := os.ReadDir(dir + "/fd")
	if err != nil {
		testbed.Missing(t, "a look at the launcher's descriptors (root): %v", err)
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); fields[0] == "VmRSS:" {
			residentKB, _ = strconv.Atoi(fields[1])
		}
	}
	return len(list), residentKB
}

// answers is a server that tells whether somebody has come.
func answers(t *testing.T) (target string, flags []string, get string) {
	t.Helper()
	a := listen(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "served")
		_, _ = io.Copy(io.Discard, c)
	})
	flag, address := allowed(t, a)
	// Again: the attack may have swallowed the answer to an honest request, and nc may
	// drop one that comes together with the end (README).
	return "tcp " + a.String(), []string{flag},
		"for i in $(seq 20); do got=$(timeout 3 nc -N " + strings.Replace(address, ":", " ", 1) + " </dev/null); [ -z \"$got\" ] || { echo \"$got\"; break; }; done"
}

// TestAttackTargets: a Sentry that was taken over asks the broker for all that
// the policy denies, in every form, and gets the one address that it allows.
func TestAttackTargets(t *testing.T) {
	secret := listen(t, func(c *net.TCPConn) {
		t.Error("a denied server was reached")
	})
	_, port, _ := net.SplitHostPort(secret.String())
	good, flags, get := answers(t)
	targets := []string{
		"tcp 127.0.0.1:" + port, "tcp 127.9.9.9:" + port, "tcp 10.0.2.2:" + port, "tcp 0.0.0.0:" + port,
		"tcp [::1]:" + port, "tcp [::]:" + port, "tcp [fd67:7678::2]:" + port, "tcp [::127.0.0.1]:" + port,
		"tcp [64:ff9b::7f00:1]:" + port, "tcp [2002:7f00:1::1]:" + port, "tcp [fe80::1]:" + port,
		"tcp 169.254.169.254:80", "udp 169.254.169.254:80", "icmp 169.254.169.254:0", "tcp 100.100.100.200:80", "tcp 168.63.129.16:80",
		"tcp [fd00:ec2::254]:80", "udp 224.0.0.251:5353", "udp 255.255.255.255:67", "udp 127.0.0.53:53", "icmp 127.0.0.1:0",
		"tcp 192.0.2.1:80", "udp 192.0.2.1:53", "tcp [2001:db8::1]:80", // By the default.
		"tcp 10.0.2.77:80", good,
	}
	a := startAttack(t, "targets", targets, get, append(flags, "--egress", "deny")...)
	out, attempts := a.end(t)
	if out != "served" {
		t.Errorf("the guest after the attack: %q, %s", out, a.stderr.String())
	}
	if len(attempts) != len(targets) {
		t.Fatalf("%d attempts, want %d: %v", len(attempts), len(targets), attempts)
	}
	for _, attempt := range attempts {
		switch {
		case attempt.Name == good && attempt.Err != "":
			t.Errorf("the allowed target: %s", attempt.Err)
		case attempt.Name == "tcp 10.0.2.77:80" && attempt.Err != "host unreachable",
			attempt.Name != "tcp 10.0.2.77:80" && attempt.Name != good && attempt.Err != "denied":
			t.Errorf("%s: %q, want that it is denied", attempt.Name, attempt.Err)
		}
	}
}

// TestAttackMalformed: who sends what is no request gets no connections any
// more, and the container lives on.
func TestAttackMalformed(t *testing.T) {
	good, flags, _ := answers(t)
	a := startAttack(t, "malformed", []string{good}, "nc -v -w 5 192.0.2.1 80 2>&1 | grep -o 'unreachable\\|refused\\|timed out'; echo alive", flags...)
	out, attempts := a.end(t)
	if !strings.HasSuffix(out, "alive") {
		t.Errorf("the guest after the attack: %q", out)
	}
	if len(attempts) != 2 || slices.ContainsFunc(attempts, func(a attempt) bool { return a.Err == "" }) {
		t.Errorf("attempts: %v", attempts)
	}
	if !strings.Contains(a.stderr.String(), "gets no more connections") {
		t.Errorf("the launcher does not tell: %q", a.stderr.String())
	}
}

// TestAttackFlood: thousands of requests whose answers nobody reads neither
// grow the launcher nor keep the policy from holding, and all are answered.
func TestAttackFlood(t *testing.T) {
	good, flags, get := answers(t)
	a := startAttack(t, "flood", []string{good}, get, flags...)
	most := 0
	var resident int
	for range 30 {
		descriptors, kb := a.launcher(t)
		most, resident = max(most, descriptors), max(resident, kb)
		time.Sleep(100 * time.Millisecond)
	}
	out, attempts := a.end(t)
	if out != "served" {
		t.Errorf("the guest after the attack: %q", out)
	}
	var requests, got int
	if len(attempts) != 1 {
		t.Fatal(attempts)
	}
	if _, err := fmt.Sscanf(attempts[0].Err, "%d requests, %d answers", &requests, &got); err != nil || requests < 100 || got != requests {
		t.Errorf("%+v", attempts[0])
	}
	// Both ends of each attempt, and what is held: named limits of the broker.
	if most > 8192 || resident > 256<<10 {
		t.Errorf("the launcher came to %d descriptors and %d kB", most, resident)
	}
	t.Logf("%s; the launcher held up to %d descriptors and %d kB", attempts[0].Err, most, resident)
}

// TestAttackHoard: who gives no connection back gets no more at some point, and
// the launcher goes on.
func TestAttackHoard(t *testing.T) {
	good, flags, _ := answers(t)
	a := startAttack(t, "hoard", []string{good}, "exec sleep 600", flags...)
	most := 0
	var attempts []attempt
	for deadline := time.Now().Add(commandTimeout); len(attempts) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the hoard does not end")
		}
		descriptors, _ := a.launcher(t)
		most, attempts = max(most, descriptors), a.attempts(t)
	}
	var got int
	// The share of descriptors, or the sandbox' own limit, whichever is less.
	if _, err := fmt.Sscanf(attempts[0].Err, "%d connections", &got); err != nil || got < 10 || got > 24<<10 || !strings.HasSuffix(attempts[0].Err, "busy") {
		t.Errorf("%+v", attempts[0])
	}
	if most > got+100 {
		t.Errorf("the launcher came to %d descriptors", most)
	}
	h := getHome(t)
	if list := h.MustRungv(t, "network", "connections", a.name); strings.Count(list, "tcp") < got {
		t.Errorf("the launcher knows of %d connections", strings.Count(list, "tcp"))
	}
	if result := h.Rungv(t, nil, "network", "policy", a.name, "set", "deny"); result.Code != 0 || !strings.Contains(result.Stderr, "connections ended") {
		t.Errorf("set: %v", result)
	}
	t.Logf("%s; the launcher held up to %d descriptors", attempts[0].Err, most)
}

// TestAttackKeep: a connection that a change of policy denies is of no use to a
// Sentry that does not let go of it.
func TestAttackKeep(t *testing.T) {
	good, flags, _ := answers(t)
	a := startAttack(t, "keep", []string{good}, "for i in $(seq 600); do sleep 0.1; done", flags...)
	h := getHome(t)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if result := h.Rungv(t, nil, "network", "connections", a.name); strings.Contains(result.Stdout, "tcp") {
			if !strings.Contains(result.Stdout, "?[31minnocent[1]") {
				t.Errorf("what the Sentry says of a process reaches the terminal as it is: %q", result.Stdout)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no connection: %s", a.stderr.String())
		}
	}
	if result := h.Rungv(t, nil, "network", "policy", a.name, "set", "deny"); result.Code != 0 || !strings.Contains(result.Stderr, "1 connections ended") {
		t.Errorf("set: %v", result)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		list := a.attempts(t)
		if len(list) == 3 {
			if list[1].Err != "broken pipe" {
				t.Errorf("write after the change: %q", list[1].Err)
			}
			// What had arrived before may still be read, and no more.
			if n := list[2].Name; n != "read 6 bytes" && n != "read 0 bytes" {
				t.Error(n)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the Sentry still writes: %v", list)
		}
	}
}
