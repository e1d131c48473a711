// SPDX-License-Identifier: Apache-2.0

// The flags of `rungv run` that are about the network.

package cli

import (
	"io"
	"os"
	"strings"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// maxEgressFileBytes bounds a file of rules: as many as there may be, each
// with an address and some ports.
const maxEgressFileBytes = 1 << 20

// connect parses what is about the network.
func (f *runFlags) connect(o *convert.Options) error {
	var err error
	if o.Network, err = convert.ParseNetwork(f.network); err != nil {
		return err
	}
	for _, s := range f.publish {
		ports, err := convert.ParsePublish(s)
		if err != nil {
			return err
		}
		o.Publish = append(o.Publish, ports...)
	}
	if o.Egress, err = egressRules(f.egress); err != nil {
		return err
	}
	for _, s := range f.addHosts {
		if o.Network != string(api.NetworkNAT) && strings.HasSuffix(s, "host-gateway") {
			return api.Errorf(api.KindUnsupported, "add-host %q: without the network \"nat\" there is no host gateway", s)
		}
	}
	if _, ok := convert.NetworkNamespace(o.Network); ok && len(o.Publish)+len(o.Egress) > 0 {
		return api.Errorf(api.KindInvalid, "--publish and --egress are for the network \"nat\": who made the namespace of --network %s says what it reaches and what reaches it", o.Network)
	}
	if o.Network == string(api.NetworkNone) && len(o.Publish)+len(o.Egress) > 0 {
		return api.Errorf(api.KindInvalid, "--publish and --egress need a network: leave --network none out")
	}
	return nil
}

// egressRules parses rules, those of files in the place of the file. A file has
// one a line; empty lines and what follows a # do not count.
func egressRules(flags []string) ([]api.EgressRule, error) {
	var rules []api.EgressRule
	for _, flag := range flags {
		lines := []string{flag}
		if path, ok := strings.CutPrefix(flag, "@"); ok {
			f, err := os.Open(path)
			if err != nil {
				return nil, api.Errorf(api.KindInvalid, "egress rules: %w", err)
			}
			text, err := io.ReadAll(io.LimitReader(f, maxEgressFileBytes+1))
			f.Close()
			if err != nil {
				return nil, api.Errorf(api.KindInvalid, "egress rules: %w", err)
			}
			if len(text) > maxEgressFileBytes {
				return nil, api.Errorf(api.KindLimit, "egress rules: %s is longer than %d bytes", path, maxEgressFileBytes)
			}
			lines = strings.Split(string(text), "\n")
		}
		for _, line := range lines {
			line, _, _ = strings.Cut(line, "#")
			if line = strings.TrimSpace(line); line == "" && flag != "" {
				continue
			}
			rule, err := api.ParseEgress(line)
			if err != nil {
				return nil, err
			}
			rules = append(rules, rule)
		}
	}
	return rules, nil
}
