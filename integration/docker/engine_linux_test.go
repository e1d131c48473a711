// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// Deadlines, on a machine that is busy with other things. Nightly runs have
// many engines at once on whatever processors there are.
var (
	// startTimeout bounds how long an engine may take to answer.
	startTimeout = patience(3*time.Minute, 30*time.Minute)
	// scriptTimeout bounds a script of a test's against an engine.
	scriptTimeout = patience(3*time.Minute, time.Hour)
)

func patience(normal, nightly time.Duration) time.Duration {
	if testbed.Nightly() {
		return nightly
	}
	return normal
}

// engine is a Docker engine in a sandbox.
type engine struct {
	w      *shared
	socket string
	cmd    *exec.Cmd
	output lockedBuffer
	ended  chan struct{}
}

// lockedBuffer is a buffer that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs an engine's image as the document does; flags go before the image.
func (w *shared) start(t testing.TB, image, name string, flags ...string) *engine {
	t.Helper()
	socket := w.home.Path("run", name+".sock")
	args := append([]string{"-e", "DOCKER_TLS_CERTDIR=", "-p", "unix:" + socket + ":2375"}, flags...)
	return w.launch(t, socket, append(args, image, "--tls=false")...)
}

// launch runs an engine by what follows `rungv run --rm`; socket is where it is
// reached without TLS, if it is.
func (w *shared) launch(t testing.TB, socket string, args ...string) *engine {
	t.Helper()
	e := &engine{w: w, socket: socket, ended: make(chan struct{})}
	e.cmd = w.home.Command(context.Background(), append([]string{"run", "--rm"}, args...)...)
	e.cmd.Stdout, e.cmd.Stderr = &e.output, &e.output
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		e.cmd.Wait()
		close(e.ended)
	}()
	t.Cleanup(func() { e.kill(t) })
	return e
}

// ready waits until the engine answers, and returns how long that took.
func (e *engine) ready(t testing.TB) time.Duration {
	t.Helper()
	return e.await(t, "answer", func() bool {
		// The client's start costs far more than the question.
		return e.pings() && testbed.Run(t, e.client("info", "--format", "{{.ServerVersion}}"), nil).Code == 0
	})
}

// pings asks the engine whether it is there.
func (e *engine) pings() bool {
	const answerTimeout = 10 * time.Second
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", e.socket)
	}}
	answer, err := (&http.Client{Transport: transport, Timeout: answerTimeout}).Get("http://engine/_ping")
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// await asks again and again until the engine does what is wanted, and returns
// how long that took.
func (e *engine) await(t testing.TB, what string, done func() bool) time.Duration {
	t.Helper()
	for begin := time.Now(); ; {
		if done() {
			return time.Since(begin)
		}
		select {
		case <-e.ended:
			t.Fatalf("the engine ended: %v\n%s", e.cmd.ProcessState, e.output.String())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Since(begin) > startTimeout {
			t.Fatalf("the engine does not %s after %v:\n%s", what, startTimeout, e.output.String())
		}
	}
}

// kill ends the sandbox as the document does, unless it has ended.
func (e *engine) kill(t testing.TB) {
	t.Helper()
	select {
	case <-e.ended:
		return
	default:
	}
	e.cmd.Process.Kill()
	<-e.ended
	os.Remove(e.socket)
}

// interrupt ends the engine gracefully, by kill -INT.
func (e *engine) interrupt(t testing.TB) {
	t.Helper()
	if err := e.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-e.ended:
	case <-time.After(startTimeout):
		t.Fatalf("the engine did not end by SIGINT:\n%s", e.output.String())
	}
}

// environment is that of a client of the engine.
func (e *engine) environment() []string {
	return append(os.Environ(), "DOCKER_HOST=unix://"+e.socket, "DOCKER_CONFIG="+e.w.config,
		"PATH="+strings.TrimSuffix(e.w.cli, "/docker")+":"+os.Getenv("PATH"), "BUILDKIT_PROGRESS=plain", "COMPOSE_PROGRESS=quiet", "NO_COLOR=1")
}

// client is a docker command against the engine.
func (e *engine) client(args ...string) *exec.Cmd {
	cmd := exec.Command(e.w.cli, args...)
	cmd.Env = e.environment()
	return cmd
}

// docker runs a docker command that has to succeed and returns its output.
func (e *engine) docker(t testing.TB, args ...string) string {
	t.Helper()
	result := testbed.Run(t, e.client(args...), nil)
	if result.Code != 0 {
		t.Fatalf("docker %q: %v\nengine:\n%s", args, result, tail(e.output.String()))
	}
	return result.Stdout
}

// prelude is what scripts of tests may use.
const prelude = `eventually() { for _ in $(seq 150); do timeout 30 "$@" >/dev/null 2>&1 && return; sleep 0.2; done; echo "never: $*"; return 1; }
`

// sh runs a script on the host with the client in its PATH; dir is its folder.
// It returns what the script wrote, standard error included, and its exit code
// on a last line unless that is 0.
func (e *engine) sh(t testing.TB, dir, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", prelude+script)
	cmd.Dir, cmd.Env = dir, e.environment()
	cmd.WaitDelay = 5 * time.Second
	output, err := cmd.CombinedOutput()
	text := strings.TrimRight(string(output), "\n")
	if err != nil {
		text += fmt.Sprintf("\n[%v]", err)
	}
	return strings.TrimLeft(text, "\n")
}

// tail is the end of an engine's log.
func tail(s string) string {
	const most = 3000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// matches says whether output is what is wanted: a line that begins with "~ " is
// a regular expression for one line, "..." stands for any number of lines, and
// every other line is itself.
func matches(want, output string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range strings.Split(want, "\n") {
		switch {
		case line == "...":
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		case strings.HasPrefix(line, "~ "):
			pattern.WriteString("(?:" + line[2:] + ")")
		default:
			pattern.WriteString(regexp.QuoteMeta(line))
		}
		pattern.WriteString(`\n`)
	}
	pattern.WriteString(`\z`)
	return regexp.MustCompile(pattern.String()).MatchString(output + "\n")
}
