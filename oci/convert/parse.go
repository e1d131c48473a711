// SPDX-License-Identifier: Apache-2.0

// Docker's notations for single options.

package convert

import (
	"fmt"
	"math/big"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"

	"z.gfire.dev/gvx/runtime/api"
)

// rlimitNames are the limits that Linux has, as docker spells them.
var rlimitNames = []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue",
	"nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack"}

// unlimited is RLIM_INFINITY.
const unlimited = ^uint64(0)

// ParseBytes reads a size such as 64m or 1.5g.
func ParseBytes(s string) (int64, error) {
	n, err := units.RAMInBytes(s)
	if err != nil || n < 0 {
		return 0, api.Errorf(api.KindInvalid, "invalid size %q: want a number with an optional unit b, k, m, g or t", s)
	}
	return n, nil
}

// ParseCPUs reads a number of processors such as 1.5 and returns thousandths.
func ParseCPUs(s string) (int64, error) {
	r, ok := new(big.Rat).SetString(s)
	if !ok || len(s) > 32 {
		return 0, api.Errorf(api.KindInvalid, "failed to parse %q as a rational number of CPUs", s)
	}
	r.Mul(r, big.NewRat(1000, 1))
	f, _ := r.Float64()
	if f < 0 || f > api.MaxCores*1000 {
		return 0, api.Errorf(api.KindInvalid, "%q CPUs are out of range", s)
	}
	return int64(f), nil
}

// ParseUlimit reads NAME=SOFT[:HARD]; -1 is unlimited.
func ParseUlimit(s string) (api.Rlimit, error) {
	name, values, ok := strings.Cut(s, "=")
	if !ok {
		return api.Rlimit{}, api.Errorf(api.KindInvalid, "invalid ulimit argument: %q: want NAME=SOFT[:HARD]", s)
	}
	if !slices.Contains(rlimitNames, name) {
		return api.Rlimit{}, api.Errorf(api.KindInvalid, "invalid ulimit type: %q: want one of %s", name, strings.Join(rlimitNames, ", "))
	}
	softText, hardText, both := strings.Cut(values, ":")
	if !both {
		hardText = softText
	}
	soft, err := parseLimit(softText)
	if err != nil {
		return api.Rlimit{}, api.Errorf(api.KindInvalid, "invalid ulimit %q: %w", s, err)
	}
	hard, err := parseLimit(hardText)
	if err != nil {
		return api.Rlimit{}, api.Errorf(api.KindInvalid, "invalid ulimit %q: %w", s, err)
	}
	if soft > hard {
		return api.Rlimit{}, api.Errorf(api.KindInvalid, "invalid ulimit %q: ulimit soft limit must be less than or equal to hard limit", s)
	}
	return api.Rlimit{Name: name, Soft: soft, Hard: hard}, nil
}

func parseLimit(s string) (uint64, error) {
	if s == "-1" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", s)
	}
	return n, nil
}

// ParseHost reads HOST:IP or HOST=IP, the address bare or in brackets.
func ParseHost(s string) (Host, error) {
	i := strings.IndexAny(s, "=:")
	if i < 1 {
		return Host{}, api.Errorf(api.KindInvalid, "bad format for add-host: %q: want HOST:IP", s)
	}
	name, address := s[:i], s[i+1:]
	if strings.ContainsAny(name, " \t\n#") {
		return Host{}, api.Errorf(api.KindInvalid, "bad format for add-host: %q: the name holds a space or #", s)
	}
	if address == hostGateway {
		address = api.NATGateway
	}
	if inner, ok := strings.CutPrefix(address, "["); ok {
		address = strings.TrimSuffix(inner, "]")
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return Host{}, api.Errorf(api.KindInvalid, "invalid IP address in add-host: %q", address)
	}
	return Host{Name: name, Address: ip.String()}, nil
}

// ParseDNS checks a name server's address.
func ParseDNS(s string) (string, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return "", api.Errorf(api.KindInvalid, "invalid name server: %q is not an ip address", s)
	}
	return ip.String(), nil
}

// ParseTmpfs reads TARGET[:OPTION,…]. As in docker, noexec, nosuid and nodev
// hold unless taken back.
func ParseTmpfs(s string) (api.Mount, error) {
	target, options, _ := strings.Cut(s, ":")
	m := api.Mount{Type: api.MountTmpfs, Target: path.Clean(target), NoExec: true, NoSUID: true, NoDev: true, Mode: 0o1777}
	if !path.IsAbs(target) || m.Target == "/" {
		return api.Mount{}, api.Errorf(api.KindInvalid, "invalid tmpfs %q: want an absolute path below /", s)
	}
	if options == "" {
		return m, nil
	}
	for _, opt := range strings.Split(options, ",") {
		if err := tmpfsOption(&m, opt); err != nil {
			return api.Mount{}, api.Errorf(api.KindInvalid, "invalid tmpfs %q: %w", s, err)
		}
	}
	return m, nil
}

func tmpfsOption(m *api.Mount, opt string) error {
	key, value, _ := strings.Cut(opt, "=")
	var n uint64
	var err error
	switch key {
	case "rw", "ro":
		m.ReadOnly = key == "ro"
	case "exec", "noexec":
		m.NoExec = key == "noexec"
	case "suid", "nosuid":
		m.NoSUID = key == "nosuid"
	case "dev", "nodev":
		m.NoDev = key == "nodev"
	case "size":
		if m.SizeBytes, err = ParseBytes(value); err != nil {
			return err
		}
	case "mode":
		n, err = strconv.ParseUint(value, 8, 12)
		m.Mode = uint32(n)
	case "uid":
		n, err = strconv.ParseUint(value, 10, 32)
		m.UID = uint32(n)
	case "gid":
		n, err = strconv.ParseUint(value, 10, 32)
		m.GID = uint32(n)
	default:
		return fmt.Errorf("unknown option %q: want rw, ro, [no]exec, [no]suid, [no]dev, size=, mode=, uid= or gid=", opt)
	}
	if err != nil {
		return fmt.Errorf("option %q: %q is no number in range", key, value)
	}
	return nil
}

// ParseSysctl reads NAME=VALUE, the name with dots.
func ParseSysctl(s string) (name, value string, err error) {
	name, value, ok := strings.Cut(s, "=")
	bad := strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") ||
		strings.ContainsFunc(name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/", r))
		})
	if !ok || name == "" || bad {
		return "", "", api.Errorf(api.KindInvalid, "invalid sysctl %q: want NAME=VALUE such as net.ipv4.ip_forward=1", s)
	}
	return strings.ReplaceAll(name, "/", "."), value, nil
}

// CheckHostname refuses what the guest's kernel would.
func CheckHostname(name string) error {
	if len(name) > api.MaxNameBytes {
		return api.Errorf(api.KindInvalid, "invalid hostname %q: longer than %d bytes", name, api.MaxNameBytes)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r > 0x7e }) {
		return api.Errorf(api.KindInvalid, "invalid hostname %q: letters, digits, dots and hyphens only", name)
	}
	return nil
}

// ParseSecurityOpt reads the values of --security-opt that mean something
// here, and reports no_new_privs.
func ParseSecurityOpt(s string) (noNewPrivileges bool, err error) {
	switch name, value, has := strings.Cut(strings.Replace(s, ":", "=", 1), "="); {
	case name == "no-new-privileges":
		if !has {
			return true, nil
		}
		if b, err := strconv.ParseBool(value); err == nil {
			return b, nil
		}
		return false, api.Errorf(api.KindInvalid, "invalid --security-opt: %q", s)
	case (name == "seccomp" || name == "apparmor") && value == "unconfined", name == "label" && value == "disable":
		// Nothing of the kind confines a guest: the Sentry is its kernel.
		return false, nil
	}
	return false, api.Errorf(api.KindUnsupported, "invalid --security-opt: %q: only no-new-privileges applies to a sandbox", s)
}
