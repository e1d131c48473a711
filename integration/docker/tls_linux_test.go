// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// remote is a docker command on an engine's TCP port; flags go before the verb.
func (w *shared) remote(port int, host string, flags ...string) *exec.Cmd {
	cmd := exec.Command(w.cli, append([]string{"--host", fmt.Sprintf("tcp://%s:%d", host, port)}, flags...)...)
	cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+w.config, "DOCKER_TLS_VERIFY=", "DOCKER_TLS=", "DOCKER_CERT_PATH=")
	return cmd
}

// TestEngineWithTLS runs an engine as its image is when nobody says anything else:
// it makes certificates, and answers on port 2376 whoever has the client's, here
// through a published port. Those on a volume hold for the next engine too.
func TestEngineWithTLS(t *testing.T) {
	w := get(t)
	w.publish(t, "busybox", "busybox:latest")
	w.publish(t, "dind", dindNames("dind")...)
	port, out := freePort(t), w.home.Path("tmp", "certs")
	t.Cleanup(func() { os.RemoveAll(out) })
	start := func() *engine {
		return w.launch(t, "", "--name", "tls", "-p", fmt.Sprintf("127.0.0.1:%d:2376", port),
			"--mount", "type=volume,src="+w.home.Path("data", "tls.ext4")+",dst=/var/lib/docker",
			"--mount", "type=volume,src="+w.home.Path("data", "certs.ext4")+",dst=/certs,size=64m", "docker:dind")
	}
	verify := []string{"--tlsverify", "--tlscacert", out + "/client/ca.pem"}
	client := append(verify, "--tlscert", out+"/client/cert.pem", "--tlskey", out+"/client/key.pem")
	answers := func(host string) bool {
		return testbed.Run(t, w.remote(port, host, append(client, "info")...), nil).Code == 0
	}

	e := start()
	// Anew each time: what is fetched may be half of them.
	e.await(t, "answer with its certificates", func() bool {
		os.RemoveAll(out)
		return os.Mkdir(out, 0o755) == nil && os.Chown(out, w.home.UID, w.home.GID) == nil &&
			w.home.Rungv(t, nil, "cp", "tls:/certs/client", out).Code == 0 && answers("127.0.0.1")
	})
	if !answers("localhost") {
		t.Error("the certificate is not for localhost")
	}
	for _, args := range [][]string{{"pull", "-q", "busybox"}, {"run", "--rm", "busybox", "echo", "by TLS"}} {
		if result := testbed.Run(t, w.remote(port, "127.0.0.1", append(client, args...)...), nil); result.Code != 0 || args[0] == "run" && result.Stdout != "by TLS\n" {
			t.Errorf("docker %q: %v", args, result)
		}
	}
	for what, c := range map[string]struct {
		flags []string
		want  string
	}{
		"no TLS":              {nil, `HTTP request to an HTTPS server`},
		"no certificate":      {verify, `tls: (certificate required|bad certificate)`},
		"another's as its CA": {append([]string{"--tlsverify", "--tlscacert", "/etc/ssl/certs/ca-certificates.crt"}, client[3:]...), `certificate signed by unknown authority`},
	} {
		if result := testbed.Run(t, w.remote(port, "127.0.0.1", append(c.flags, "version")...), nil); result.Code == 0 || !regexp.MustCompile(c.want).MatchString(result.Stdout+result.Stderr) {
			t.Errorf("%s: want a refusal with %q: %v", what, c.want, result)
		}
	}
	// Inside there is the socket, which needs none of it.
	if got := w.home.MustRungv(t, "exec", "tls", "docker", "images", "-q", "busybox"); len(got) < 12 {
		t.Errorf("on the engine's own socket: %q", got)
	}
	e.interrupt(t)

	e = start()
	e.await(t, "answer with the certificates it had", func() bool { return answers("127.0.0.1") })
	e.kill(t)
	w.forget(t)
}

// TestIptablesOfTheEngine asks the entry point for one iptables or the other. What
// it takes by itself is in TestMatrix.
func TestIptablesOfTheEngine(t *testing.T) {
	w := get(t)
	w.publish(t, "dind", dindNames("dind")...)
	for _, c := range []struct {
		name, mode string
		flags      []string
		dockerd    []string
	}{
		{"asked for nftables", "(nf_tables)", []string{"-e", "DOCKER_IPTABLES_LEGACY="}, nil},
		// Without rules of the engine's: see the known gaps in README.
		{"asked for legacy", "(legacy)", []string{"-e", "DOCKER_IPTABLES_LEGACY=1"}, []string{"--iptables=false", "--ip6tables=false", "--bridge=none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := w.home.Path("run", "iptables.sock")
			args := append([]string{"-e", "DOCKER_TLS_CERTDIR=", "-p", "unix:" + socket + ":2375", "--tmpfs", "/var/lib/docker"}, c.flags...)
			e := w.launch(t, socket, append(append(args, "docker:dind", "--tls=false"), c.dockerd...)...)
			e.ready(t)
			if !strings.Contains(e.output.String(), c.mode+"\n") {
				t.Errorf("want iptables of %s:\n%s", c.mode, e.output.String())
			}
			e.kill(t)
		})
	}
	w.forget(t)
}
