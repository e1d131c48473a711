// SPDX-License-Identifier: Apache-2.0

// Environment, and the small files that docker puts over a rootfs.

package convert

import (
	"fmt"
	"slices"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// environment merges, from weakest to strongest: docker's defaults, the
// image's variables, the user's.
func environment(image []string, o *Options, hostname string) []string {
	env := []string{"PATH=" + DefaultPath, "HOSTNAME=" + hostname}
	if o.TTY {
		env = append(env, "TERM=xterm")
	}
	return mergeEnv(mergeEnv(env, image), o.Env)
}

// mergeEnv sets each variable of over in env: in its place when env has it, at
// the end otherwise. A name without "=" removes it.
func mergeEnv(env, over []string) []string {
	at := make(map[string]int, len(env)+len(over))
	for i, e := range env {
		name, _, _ := strings.Cut(e, "=")
		at[name] = i
	}
	for _, e := range over {
		name, _, set := strings.Cut(e, "=")
		if name == "" {
			continue // "=x" can come from an image only; no program could read it.
		}
		i, known := at[name]
		switch {
		case known && set:
			env[i] = e
		case known:
			env[i] = ""
			delete(at, name)
		case set:
			at[name] = len(env)
			env = append(env, e)
		}
	}
	kept := env[:0]
	for _, e := range env {
		if e != "" {
			kept = append(kept, e)
		}
	}
	return kept
}

// files are /etc/hostname, /etc/hosts and /etc/resolv.conf, but for those that the
// user mounts.
func files(o *Options, hostname string) []api.File {
	list := []api.File{
		{Path: "/etc/hostname", Mode: 0o644, Data: []byte(hostname + "\n")},
		{Path: "/etc/hosts", Mode: 0o644, Data: hosts(o, hostname)},
		{Path: "/etc/resolv.conf", Mode: 0o644, Data: resolvConf(o)},
	}
	return slices.DeleteFunc(list, func(f api.File) bool {
		return slices.ContainsFunc(o.Binds, func(b BindMount) bool { return b.Target == f.Path })
	})
}

func hosts(o *Options, hostname string) []byte {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::\tip6-localnet\n" +
		"ff00::\tip6-mcastprefix\n" +
		"ff02::1\tip6-allnodes\n" +
		"ff02::2\tip6-allrouters\n")
	for _, h := range o.AddHosts {
		fmt.Fprintf(&b, "%s\t%s\n", h.Address, h.Name)
	}
	// Without a network the host has no address of its own; programs that
	// resolve their own name (sudo, Java) need one all the same.
	own := first(o.OwnAddress, "127.0.1.1")
	if o.nat() {
		own = api.NATGuest
	}
	if o.Domainname != "" {
		fmt.Fprintf(&b, "%s\t%s.%s %s\n", own, hostname, o.Domainname, hostname)
	} else {
		fmt.Fprintf(&b, "%s\t%s\n", own, hostname)
	}
	return []byte(b.String())
}

func resolvConf(o *Options) []byte {
	var b strings.Builder
	servers := o.DNS
	if o.nat() {
		// The network's own, which asks the user's servers, or the host's.
		servers = []string{api.NATDNS}
	}
	for _, server := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(o.DNSSearch) > 0 && !(len(o.DNSSearch) == 1 && o.DNSSearch[0] == ".") {
		fmt.Fprintf(&b, "search %s\n", strings.Join(o.DNSSearch, " "))
	}
	if len(o.DNSOption) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(o.DNSOption, " "))
	}
	if _, ok := NetworkNamespace(o.Network); ok && b.Len() == 0 {
		return []byte("# no name servers: give some with --dns\n")
	}
	if b.Len() == 0 {
		return []byte("# no name servers: this sandbox has no network\n")
	}
	return []byte(b.String())
}
