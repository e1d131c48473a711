// SPDX-License-Identifier: Apache-2.0

// `rungv network`: the network of a running container, seen and changed from
// outside.

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	networkv1 "z.gfire.dev/gvx/runtime/control/network/v1"
)

// What `rungv network policy` does.
const (
	policyShow = "show"
	policySet  = "set"
	policyAdd  = "add"
)

func newNetworkCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network COMMAND",
		Short: "See and change the network of a running container",
		Long: `See and change the network of a running container, as its launcher knows it: what
it may reach, what it has open, what it was denied.`,
		Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNetworkPolicyCommand(g), newNetworkConnectionsCommand(g), newNetworkDenialsCommand(g))
	return cmd
}

func newNetworkPolicyCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "policy CONTAINER [show | set RULE... | add RULE...]",
		Short: "Show or change what a running container may reach",
		Long: `Show or change what a running container may reach.

A RULE is what --egress of 'rungv run' takes: allow, deny, either with
=CIDR[:PORTS], allow-domain=NAME[:PORTS], or @FILE for the rules of a file. set
replaces all rules; add puts rules before those that hold, so that they win, and
a default among them in the place of the present one.

A change holds at once, for connections that exist as well: those that the new
rules deny are ended, at both ends, and their number is printed on standard
error. What clients of published ports have open is not egress, and goes on.`,
		Example: "  rungv network policy box\n  rungv network policy box set deny allow-domain=*.pypi.org:443\n  rungv network policy box set @scoring.rules\n  rungv network policy box add allow=192.0.2.7:5432",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			verb := policyShow
			if len(args) > 1 {
				verb = args[1]
			}
			rules, err := policyRules(verb, args)
			if err != nil {
				return &usageError{err: err, verb: cmd.CommandPath()}
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return r.Network(cmd.Context(), args[0], func(ctx context.Context, n networkv1.NetworkService) error {
				if verb == policyShow {
					answer, err := n.Policy(ctx, &networkv1.PolicyRequest{})
					if err != nil {
						return err
					}
					return printRules(cmd.OutOrStdout(), answer.GetRules())
				}
				answer, err := n.SetPolicy(ctx, &networkv1.SetPolicyRequest{Rules: rules, Add: verb == policyAdd})
				if err != nil {
					return err
				}
				if n := answer.GetEnded(); n > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "rungv: %d connections ended\n", n)
				}
				return printRules(cmd.OutOrStdout(), answer.GetRules())
			})
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return completeContainers(g, isRunning)(cmd, args, word)
			case 1:
				return []string{policyShow, policySet, policyAdd}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
}

// policyRules checks the arguments of a policy command and returns its rules.
func policyRules(verb string, args []string) ([]string, error) {
	switch verb {
	case policyShow:
		if len(args) > 2 {
			return nil, api.Errorf(api.KindInvalid, "show takes no rules: want set or add")
		}
		return nil, nil
	case policySet, policyAdd:
	default:
		return nil, api.Errorf(api.KindInvalid, "unknown action %q: want show, set or add", verb)
	}
	if len(args) < 3 {
		return nil, api.Errorf(api.KindInvalid, "%s needs rules; 'set allow' leaves none but the protected addresses", verb)
	}
	rules, err := egressRules(args[2:])
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(rules))
	for i := range rules {
		texts[i] = rules[i].String()
	}
	return texts, nil
}

// printRules prints rules as they are written; without any, what that means.
func printRules(w io.Writer, rules []string) error {
	if len(rules) == 0 {
		rules = []string{"allow"}
	}
	_, err := fmt.Fprintln(w, strings.Join(rules, "\n"))
	return err
}

func newNetworkConnectionsCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "connections CONTAINER",
		Short: "List what a running container has open",
		Long: `List the connections that a running container has open to the outside, but for
those of published ports. The process is what the sandbox says: a guest that has
broken out of its kernel could say anything.`,
		Example: "  rungv network connections box",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return r.Network(cmd.Context(), args[0], func(ctx context.Context, n networkv1.NetworkService) error {
				answer, err := n.Connections(ctx, &networkv1.ConnectionsRequest{})
				if err != nil {
					return err
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
				fmt.Fprintln(w, "PROTOCOL\tFROM\tTO\tNAMES\tPROCESS")
				for _, c := range answer.GetConnections() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.GetProtocol(), c.GetFrom(), c.GetTo(), strings.Join(c.GetNames(), ","), processText(c.GetProcess()))
				}
				return w.Flush()
			})
		},
		ValidArgsFunction: completeContainers(g, isRunning),
	}
}

func newNetworkDenialsCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "denials CONTAINER",
		Short: "List what a running container was denied",
		Long: `List the latest connections and names that a running container was denied, the
oldest first, with those that a change of policy has ended. Not each of a flood
is kept; how many were not is said. The process is what the sandbox says: a
guest that has broken out of its kernel could say anything. With --debug and
--log, 'rungv run' writes the same to its log.`,
		Example: "  rungv network denials box",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			return r.Network(cmd.Context(), args[0], func(ctx context.Context, n networkv1.NetworkService) error {
				answer, err := n.Denials(ctx, &networkv1.DenialsRequest{})
				if err != nil {
					return err
				}
				return printDenials(cmd.OutOrStdout(), answer)
			})
		},
		ValidArgsFunction: completeContainers(g, isRunning),
	}
}

func printDenials(out io.Writer, answer *networkv1.DenialsResponse) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "TIME\tTARGET\tFROM\tPROCESS\tREASON")
	omitted := func(n int64) {
		if n > 0 {
			fmt.Fprintf(w, "\t%d more\t\t\t\n", n)
		}
	}
	for _, d := range answer.GetDenials() {
		omitted(d.GetUnreported())
		reason := d.GetReason()
		if d.GetEnded() {
			reason = "ended: " + reason
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.GetAt().AsTime().Local().Format(time.RFC3339), d.GetTarget(), d.GetFrom(), processText(d.GetProcess()), reason)
	}
	omitted(answer.GetUnreported())
	return w.Flush()
}

func processText(p *networkv1.Process) string {
	if p.GetPid() == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%s[%d]", p.GetName(), p.GetPid())
}
