// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// commandRun is a command that runs beside the test.
type commandRun struct {
	in   io.WriteCloser
	out  io.ReadCloser
	wait func() error
}

// verbs: what people do to pods by kubectl.
func verbs(s *scene) {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: talk}
spec:
  RUNTIME
  containers:
  - {name: server, image: IMAGE, command: [python3, -u, -c, "import http.server; print('up'); http.server.ThreadingHTTPServer(('127.0.0.1', 8080), http.server.SimpleHTTPRequestHandler).serve_forever()"]}
  - {name: echo, image: IMAGE, stdin: true, command: [sh, -c, "while read line; do echo heard $line; done"]}
`)
	s.ready("talk")
	if got := s.k.MustKubectl(s, "through\n", "--namespace", s.namespace, "exec", "-i", "talk", "-c", "server", "--", "sh", "-c", "cat; echo err >&2"); got != "through\n" {
		s.Errorf("exec -i: %q", got)
	}
	if r := s.kubectl("exec", "talk", "-c", "server", "--", "sh", "-c", "exit 7"); r.Code != 7 {
		s.Errorf("exec's exit code: %v", r)
	}
	if r := s.kubectl("exec", "talk", "-c", "server", "--", "no-such-command"); r.Code == 0 || !strings.Contains(r.Stderr, "no-such-command") {
		s.Errorf("exec of what is not there: %v", r)
	}
	if got := s.must("logs", "talk", "-c", "server"); !strings.Contains(got, "up\n") {
		s.Errorf("logs: %q", got)
	}
	attach(s)
	copies(s)
	forward(s)
}

// attach speaks to a container's own streams.
func attach(s *scene) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	run := s.command(ctx, "attach", "-i", "talk", "-c", "echo", "--quiet")
	if _, err := io.WriteString(run.in, "hello\n"); err != nil {
		s.Fatal(err)
	}
	if line, err := bufio.NewReader(run.out).ReadString('\n'); err != nil || line != "heard hello\n" {
		s.Errorf("attach: %q, %v", line, err)
	}
	cancel()
	_ = run.wait()
}

// copies takes files in and out.
func copies(s *scene) {
	s.Helper()
	in, out := filepath.Join(s.dir, "in"), filepath.Join(s.dir, "out")
	data := strings.Repeat("some content, ", 20000)
	if err := os.MkdirAll(in, 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(in, "file"), []byte(data), 0o640); err != nil {
		s.Fatal(err)
	}
	s.must("cp", "-c", "server", in, "talk:/tmp/copied")
	if got := s.sh("talk", "server", "wc -c < /tmp/copied/file; stat -c %a /tmp/copied/file"); got != "280000\n640\n" {
		s.Errorf("cp into the pod: %q", got)
	}
	s.must("cp", "-c", "server", "talk:/tmp/copied", out)
	if got, err := os.ReadFile(filepath.Join(out, "file")); err != nil || string(got) != data {
		s.Errorf("cp out of the pod: %d bytes, %v", len(got), err)
	}
}

// forwarding is how kubectl says where it listens.
var forwarding = regexp.MustCompile(`127\.0\.0\.1:(\d+)`)

// forward reaches a server that listens on the pod's own loopback interface.
func forward(s *scene) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	run := s.command(ctx, "port-forward", "talk", ":8080", "--address", "127.0.0.1")
	defer func() {
		cancel()
		_ = run.wait()
	}()
	line, err := bufio.NewReader(run.out).ReadString('\n')
	port := forwarding.FindStringSubmatch(line)
	if port == nil {
		s.Fatalf("port-forward: %q, %v", line, err)
	}
	for range 3 {
		answer, err := http.Get("http://127.0.0.1:" + port[1] + "/etc/hostname")
		if err != nil {
			s.Errorf("port-forward: %v", err)
			return
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || string(body) != "talk\n" {
			s.Errorf("port-forward: %q, %v", body, err)
		}
	}
}
