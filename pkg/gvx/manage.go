// SPDX-License-Identifier: Apache-2.0

// A running sandbox asked and told from outside.

package gvx

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"z.gfire.dev/gvx/runtime/control"
)

const (
	// dockerPoll is how long to wait between two questions to an engine that
	// does not answer yet.
	dockerPoll = 20 * time.Millisecond
	// dockerAnswer is how long an engine has for an answer to a ping.
	dockerAnswer = 5 * time.Second
)

// Signal sends a signal to the guest's first process.
func (sb *Sandbox) Signal(ctx context.Context, sig syscall.Signal) error {
	const op = "signal sandbox"
	if err := sb.alive(op); err != nil {
		return err
	}
	c, err := sb.dial(ctx, op)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Signal(ctx, sb.id, int(sig), control.TargetInit); err != nil {
		return sb.callError(ctx, op, err)
	}
	return nil
}

// Stop asks the guest to end: it gets its stop signal, and is killed when it
// has not ended after Config.StopTimeout. Volumes are synced and marked clean,
// so that clones can be made of them. It returns when the guest has ended.
func (sb *Sandbox) Stop(ctx context.Context) error {
	const op = "stop sandbox"
	if err := sb.alive(op); err != nil {
		return err
	}
	if err := sb.runtime.run(ctx, op, streams{}, "stop", sb.id); err != nil {
		select {
		case <-sb.exited: // It ended by itself meanwhile.
		default:
			return err
		}
	}
	select {
	case <-sb.exited:
		return nil
	case <-ctx.Done():
		return contextError(op, ctx)
	}
}

// Resize sets the size of the guest's terminal.
func (sb *Sandbox) Resize(rows, columns uint16) error {
	const op = "resize terminal"
	if sb.tty == nil {
		return errorf(KindState, op, "the sandbox has none: set Config.TTY")
	}
	if err := sb.alive(op); err != nil {
		return err
	}
	if err := sb.tty.resize(rows, columns); err != nil {
		return errorf(KindState, op, "%w", err)
	}
	return nil
}

// Inspect returns all that rungv knows about the sandbox, as a JSON document of
// docker's shape.
func (sb *Sandbox) Inspect(ctx context.Context) (json.RawMessage, error) {
	const op = "inspect sandbox"
	out, err := sb.runtime.output(ctx, op, "inspect", sb.id)
	if err != nil {
		return nil, err
	}
	return oneDocument(op, out)
}

// Ports are the published ports, each with the port of the host that it got.
func (sb *Sandbox) Ports(ctx context.Context) ([]Port, error) {
	const op = "list ports"
	if err := sb.alive(op); err != nil {
		return nil, err
	}
	out, err := sb.runtime.output(ctx, op, "port", sb.id)
	if err != nil {
		return nil, err
	}
	var ports []Port
	for line := range strings.Lines(string(out)) {
		p, err := parsePort(strings.TrimSpace(line))
		if err != nil {
			return nil, errorf(KindInternal, op, "rungv port printed %q: %w", line, err)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// parsePort reads a line such as "80/tcp -> 127.0.0.1:8080".
func parsePort(line string) (Port, error) {
	guest, host, _ := strings.Cut(line, " -> ")
	number, transport, _ := strings.Cut(guest, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return Port{}, err
	}
	p := Port{Guest: uint16(n), Transport: Transport(transport)}
	if path, ok := strings.CutPrefix(host, "unix:"); ok {
		p.Path = path
		return p, nil
	}
	at, err := netip.ParseAddrPort(host)
	p.HostIP, p.HostPort = at.Addr(), at.Port()
	return p, err
}

// SetEgress replaces the rules for what the guest may reach, as in
// [Config.Egress]. Connections that the new rules deny are ended.
func (sb *Sandbox) SetEgress(ctx context.Context, rules ...string) error {
	const op = "set egress rules"
	if err := checkEgress(rules); err != nil {
		return &Error{Kind: KindInvalid, Op: op, Err: err}
	}
	if err := sb.alive(op); err != nil {
		return err
	}
	if len(rules) == 0 {
		rules = []string{"allow"}
	}
	return sb.runtime.run(ctx, op, streams{}, append([]string{"network", "policy", sb.id, "set"}, rules...)...)
}

// DockerHost waits until the engine inside answers and returns where: a value
// for DOCKER_HOST. It needs [Config.Docker].
func (sb *Sandbox) DockerHost(ctx context.Context) (string, error) {
	const op = "reach the engine inside"
	if !sb.config.Docker {
		return "", errorf(KindState, op, "it is not published: set Config.Docker")
	}
	socket := sb.socket
	client := http.Client{
		Timeout: dockerAnswer,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
	}
	for {
		if err := sb.alive(op); err != nil {
			return "", err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
		if err != nil {
			return "", errorf(KindInternal, op, "%w", err)
		}
		if answer, err := client.Do(request); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return "unix://" + socket, nil
			}
		}
		select {
		case <-time.After(dockerPoll):
		case <-sb.exited:
		case <-ctx.Done():
			return "", contextError(op, ctx)
		}
	}
}
