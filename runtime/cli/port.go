// SPDX-License-Identifier: Apache-2.0

// `rungv port`: where a container's ports are on the host.

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

func newPortCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "port CONTAINER [PRIVATE_PORT[/PROTO]]",
		Short: "List port mappings or a specific mapping for the container",
		Long: `Print where the published ports of a running container are on the host: all of
them, or the address of one.`,
		Example: "  rungv port box\n  curl http://$(rungv port box 80)/",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return exactly(2)(cmd, args)
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			rec, err := r.State.Get(args[0])
			if err != nil {
				return err
			}
			return printPorts(cmd.OutOrStdout(), rec, args[1:])
		},
		ValidArgsFunction: completeContainers(g, isRunning),
	}
}

// printPorts prints a container's ports, or the host's side of one.
func printPorts(w io.Writer, rec *state.Record, which []string) error {
	ports := openPorts(rec)
	if len(which) == 0 {
		for i := range ports {
			fmt.Fprintf(w, "%s -> %s\n", ports[i].Guest(), ports[i].Host())
		}
		return nil
	}
	want := which[0]
	if !strings.Contains(want, "/") {
		want += "/" + string(api.TCP)
	}
	found := false
	for i := range ports {
		if ports[i].Guest() == want {
			fmt.Fprintln(w, ports[i].Host())
			found = true
		}
	}
	if !found {
		return api.Errorf(api.KindNotFound, "no public port '%s' published for %s", want, rec.Name)
	}
	return nil
}

// openPorts are the ports that are open now: none, once the container has
// stopped.
func openPorts(rec *state.Record) []api.Port {
	if rec.State == api.StateStopped {
		return nil
	}
	return rec.Ports
}

// portsColumn is docker's form of a container's ports in a list.
func portsColumn(rec *state.Record) string {
	var parts []string
	for _, p := range openPorts(rec) {
		parts = append(parts, p.Host()+"->"+p.Guest())
	}
	return strings.Join(parts, ", ")
}

// networkDocument is docker's NetworkSettings.
type networkDocument struct {
	IPAddress   string
	IPPrefixLen int
	Gateway     string
	// Where the host has IPv6.
	GlobalIPv6Address   string
	GlobalIPv6PrefixLen int
	IPv6Gateway         string
	// Ports are the host's sides by the guest's. A unix socket has its path as
	// its address and no port.
	Ports map[string][]bindingDocument
}

type bindingDocument struct {
	HostIP   string `json:"HostIp"`
	HostPort string
}

func networkDocumentOf(rec *state.Record) networkDocument {
	d := networkDocument{Ports: map[string][]bindingDocument{}}
	if rec.Options.Network == string(api.NetworkNAT) && rec.State == api.StateRunning {
		d.IPAddress, d.IPPrefixLen, d.Gateway = api.NATGuest, api.NATPrefixBits, api.NATGateway
		if rec.Options.IPv6 {
			d.GlobalIPv6Address, d.GlobalIPv6PrefixLen, d.IPv6Gateway = api.NATGuest6, api.NATPrefixBits6, api.NATGateway6
		}
	}
	if rec.State == api.StateRunning {
		d.links(rec.Links)
	}
	for _, p := range openPorts(rec) {
		b := bindingDocument{HostIP: p.HostIP.String(), HostPort: fmt.Sprint(p.HostPort)}
		if p.Path != "" {
			b = bindingDocument{HostIP: p.Host()}
		}
		d.Ports[p.Guest()] = append(d.Ports[p.Guest()], b)
	}
	return d
}

// links fills in the first address of each kind, and where everything else goes.
func (d *networkDocument) links(links []api.Link) {
	for i := range links {
		if links[i].Loopback {
			continue
		}
		for _, a := range links[i].Addresses {
			switch {
			case a.Addr().Is4() && d.IPAddress == "":
				d.IPAddress, d.IPPrefixLen = a.Addr().String(), a.Bits()
			case a.Addr().Is6() && a.Addr().IsGlobalUnicast() && d.GlobalIPv6Address == "":
				d.GlobalIPv6Address, d.GlobalIPv6PrefixLen = a.Addr().String(), a.Bits()
			}
		}
		for _, r := range links[i].Routes {
			switch {
			case r.Destination.Bits() != 0 || !r.Gateway.IsValid():
			case r.Gateway.Is4() && d.Gateway == "":
				d.Gateway = r.Gateway.String()
			case r.Gateway.Is6() && d.IPv6Gateway == "":
				d.IPv6Gateway = r.Gateway.String()
			}
		}
	}
}
