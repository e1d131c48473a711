// SPDX-License-Identifier: Apache-2.0

// The broker's own control socket: policy, denials, connections.

package usernet

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/control/netwire"
	networkv1 "z.gfire.dev/gvx/runtime/control/network/v1"
)

// Control serves the broker's control socket on l, which it owns from now on,
// until [Broker.Close]. Only this user's processes and root's are answered,
// whoever may open the socket.
func (b *Broker) Control(l net.Listener) error {
	s, err := ttrpc.NewServer(
		ttrpc.WithServerHandshaker(ttrpc.UnixCredentialsFunc(sameUser)),
		ttrpc.WithUnaryServerInterceptor(func(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
			answer, err := method(ctx, unmarshal)
			if err != nil {
				return nil, control.ToStatus(err)
			}
			return answer, nil
		}),
	)
	if err != nil {
		l.Close()
		return fmt.Errorf("make the network's control socket: %w", err)
	}
	networkv1.RegisterNetworkService(s, service{b})
	context.AfterFunc(b.ctx, func() { s.Close() })
	b.tasks.Go(func() { _ = s.Serve(b.ctx, l) })
	return nil
}

func sameUser(c *unix.Ucred) error {
	if c.Uid != 0 && int(c.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d is not the one whose network this is", c.Uid)
	}
	return nil
}

// service answers on the control socket.
type service struct{ b *Broker }

// Policy implements networkv1.NetworkService.
func (s service) Policy(context.Context, *networkv1.PolicyRequest) (*networkv1.PolicyResponse, error) {
	return &networkv1.PolicyResponse{Rules: ruleTexts(s.b.Policy().given)}, nil
}

// SetPolicy implements networkv1.NetworkService.
func (s service) SetPolicy(_ context.Context, r *networkv1.SetPolicyRequest) (*networkv1.SetPolicyResponse, error) {
	rules := make([]api.EgressRule, 0, len(r.GetRules()))
	for _, text := range r.GetRules() {
		rule, err := api.ParseEgress(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	// One change at a time: two that add must not lose each other's rules.
	s.b.changing.Lock()
	defer s.b.changing.Unlock()
	if r.GetAdd() {
		rules = addRules(rules, s.b.Policy().given)
	}
	p, err := NewPolicy(rules)
	if err != nil {
		return nil, err
	}
	ended := s.b.SetPolicy(p)
	return &networkv1.SetPolicyResponse{Rules: ruleTexts(p.given), Ended: int64(ended)}, nil
}

// addRules puts rules before others, and a default among them in the place of
// theirs.
func addRules(rules, before []api.EgressRule) []api.EgressRule {
	replaced := false
	for i := range rules {
		replaced = replaced || rules[i].IsDefault()
	}
	for _, rule := range before {
		if !replaced || !rule.IsDefault() {
			rules = append(rules, rule)
		}
	}
	return rules
}

// Denials implements networkv1.NetworkService.
func (s service) Denials(context.Context, *networkv1.DenialsRequest) (*networkv1.DenialsResponse, error) {
	kept, unreported := s.b.Denials()
	answer := &networkv1.DenialsResponse{Unreported: int64(unreported)}
	for i := range kept {
		d := &kept[i]
		answer.Denials = append(answer.Denials, &networkv1.Denial{
			At: timestamppb.New(d.At), Target: d.Target(), From: d.From.String(), Process: processOf(d.By),
			Reason: d.Reason, Ended: d.Ended, Unreported: int64(d.Unreported),
		})
	}
	return answer, nil
}

// Connections implements networkv1.NetworkService.
func (s service) Connections(context.Context, *networkv1.ConnectionsRequest) (*networkv1.ConnectionsResponse, error) {
	answer := &networkv1.ConnectionsResponse{}
	for _, c := range s.b.Connections() {
		answer.Connections = append(answer.Connections, &networkv1.Connection{
			Protocol: c.Protocol.String(), From: c.From.String(), To: c.To.String(), Process: processOf(c.By), Names: c.Names,
		})
	}
	return answer, nil
}

func processOf(p netwire.Process) *networkv1.Process {
	return &networkv1.Process{Pid: p.PID, Name: p.Name}
}

func ruleTexts(rules []api.EgressRule) []string {
	texts := make([]string, len(rules))
	for i := range rules {
		texts[i] = rules[i].String()
	}
	return texts
}
