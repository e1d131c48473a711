// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// newestMajor is the major version of the specification that is understood.
const newestMajor = 1

// rlimitTypes are Linux' limits.
var rlimitTypes = []string{"RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_LOCKS", "RLIMIT_MEMLOCK",
	"RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_RSS", "RLIMIT_RTPRIO", "RLIMIT_RTTIME",
	"RLIMIT_SIGPENDING", "RLIMIT_STACK"}

// namespaceTypes are those of the specification.
var namespaceTypes = []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace,
	specs.UTSNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace}

// ipcSysctls are the parameters of an IPC namespace.
var ipcSysctls = []string{"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax",
	"kernel.shmmni", "kernel.shm_rmid_forced"}

func invalid(format string, args ...any) error { return api.Errorf(api.KindInvalid, format, args...) }

// Validate checks a document as runc does, in its words. It does not look at the
// host.
func Validate(s *specs.Spec) error {
	if err := checkVersion(s.Version); err != nil {
		return err
	}
	if err := ValidateProcess(s.Process); err != nil {
		return err
	}
	switch {
	case s.Root == nil || s.Root.Path == "":
		return invalid("root must be specified")
	case hasZero(s.Root.Path):
		return invalid("root path contains null byte")
	}
	if err := checkMounts(s.Mounts); err != nil {
		return err
	}
	if err := checkHooks(s.Hooks); err != nil {
		return err
	}
	l := s.Linux
	if l == nil {
		l = &specs.Linux{}
	}
	if err := checkNamespaces(s, l); err != nil {
		return err
	}
	if err := checkSysctls(l); err != nil {
		return err
	}
	return checkLinux(l)
}

// checkVersion takes what runc takes, no version included, but for one of the
// future, whose members might not mean what we think.
func checkVersion(v string) error {
	if v == "" {
		return nil
	}
	major, _, _ := strings.Cut(v, ".")
	n, err := strconv.ParseUint(major, 10, 16)
	if err != nil {
		return invalid("ociVersion %.64q is no version", v)
	}
	if n > newestMajor {
		return api.Errorf(api.KindUnsupported, "ociVersion %.64q: versions up to %s are understood", v, specs.Version)
	}
	return nil
}

// ValidateProcess checks a process, the first of a container or another.
func ValidateProcess(p *specs.Process) error {
	switch {
	case p == nil:
		return invalid("process property must not be empty")
	case p.Cwd == "":
		return invalid("Cwd property must not be empty")
	case !path.IsAbs(p.Cwd):
		return invalid("Cwd must be an absolute path")
	case len(p.Args) == 0:
		return invalid("args must not be empty")
	case hasZero(p.Cwd):
		return invalid("Cwd contains null byte")
	case slices.ContainsFunc(p.Args, hasZero):
		return invalid("args contain a null byte")
	}
	for _, e := range p.Env {
		name, _, ok := strings.Cut(e, "=")
		switch {
		case !ok:
			return invalid("invalid environment variable: missing '='")
		case name == "":
			return invalid("invalid environment variable: name cannot be empty")
		case hasZero(e):
			return invalid("invalid environment variable %q: contains nul byte (\\x00)", name)
		}
	}
	if err := checkRlimits(p.Rlimits); err != nil {
		return err
	}
	return checkScheduling(p)
}

func checkRlimits(limits []specs.POSIXRlimit) error {
	seen := make(map[string]bool)
	for _, l := range limits {
		switch {
		case !slices.Contains(rlimitTypes, l.Type):
			return invalid("wrong rlimit value: %s", l.Type)
		case seen[l.Type]:
			return invalid("rlimit %s is given twice", l.Type)
		case l.Soft > l.Hard:
			return invalid("rlimit %s: soft limit %d is above the hard limit %d", l.Type, l.Soft, l.Hard)
		}
		seen[l.Type] = true
	}
	return nil
}

// checkScheduling checks what sched_setattr(2) and ioprio_set(2) would refuse.
func checkScheduling(p *specs.Process) error {
	if s := p.Scheduler; s != nil {
		timeSharing := s.Policy == specs.SchedOther || s.Policy == specs.SchedBatch
		realTime := s.Policy == specs.SchedFIFO || s.Policy == specs.SchedRR
		switch {
		case s.Policy == "":
			return invalid("scheduler policy is required")
		case timeSharing && (s.Nice < -20 || s.Nice > 19):
			return invalid("invalid scheduler.nice: %d when scheduler.policy is %s", s.Nice, s.Policy)
		case s.Priority != 0 && !realTime:
			return invalid("scheduler.priority can only be specified for SchedFIFO or SchedRR policy")
		case s.Policy != specs.SchedDeadline && (s.Runtime != 0 || s.Deadline != 0 || s.Period != 0):
			return invalid("scheduler runtime/deadline/period can only be specified for SchedDeadline policy")
		}
	}
	if io := p.IOPriority; io != nil {
		if io.Priority < 0 || io.Priority > 7 {
			return invalid("invalid ioPriority.Priority: %d", io.Priority)
		}
		switch io.Class {
		case specs.IOPRIO_CLASS_RT, specs.IOPRIO_CLASS_BE, specs.IOPRIO_CLASS_IDLE:
		default:
			return invalid("invalid ioPriority.Class: %q", io.Class)
		}
	}
	return nil
}

func checkMounts(mounts []specs.Mount) error {
	for _, m := range mounts {
		switch {
		case m.Destination == "":
			return invalid("invalid mount %+v: mount destination is empty", m)
		case hasZero(m.Source) || hasZero(m.Destination) || hasZero(m.Type) || slices.ContainsFunc(m.Options, hasZero):
			return invalid("invalid mount %+v: mount field contains null byte", m)
		}
	}
	return nil
}

func checkHooks(h *specs.Hooks) error {
	if h == nil {
		return nil
	}
	for name, hooks := range map[string][]specs.Hook{
		//lint:ignore SA1019 docker's networks still use it
		"prestart":      h.Prestart,
		"createRuntime": h.CreateRuntime, "createContainer": h.CreateContainer, "startContainer": h.StartContainer,
		"poststart": h.Poststart, "poststop": h.Poststop,
	} {
		for i, hook := range hooks {
			switch {
			case !path.IsAbs(hook.Path) || hasZero(hook.Path):
				return invalid("%s hook #%d: path %q is not absolute", name, i, hook.Path)
			case hook.Timeout != nil && *hook.Timeout <= 0:
				return invalid("%s hook #%d: timeout %d is not above zero", name, i, *hook.Timeout)
			case slices.ContainsFunc(hook.Args, hasZero) || slices.ContainsFunc(hook.Env, hasZero):
				return invalid("%s hook #%d: an argument or variable contains a null byte", name, i)
			}
		}
	}
	return nil
}

// checkNamespaces checks the list of namespaces, and what needs one.
func checkNamespaces(s *specs.Spec, l *specs.Linux) error {
	seen := make(map[specs.LinuxNamespaceType]string)
	for _, ns := range l.Namespaces {
		if !slices.Contains(namespaceTypes, ns.Type) {
			return invalid("namespace %q does not exist", ns)
		}
		if _, twice := seen[ns.Type]; twice {
			return invalid("malformed spec file: duplicated ns %q", ns)
		}
		if ns.Path != "" && (!path.IsAbs(ns.Path) || hasZero(ns.Path)) {
			return invalid("namespace %q: the path %q is not absolute", ns.Type, ns.Path)
		}
		seen[ns.Type] = ns.Path
	}
	has := func(t specs.LinuxNamespaceType) bool {
		_, ok := seen[t]
		return ok
	}
	switch {
	case s.Hostname != "" && !has(specs.UTSNamespace):
		return invalid("unable to set hostname without a private UTS namespace")
	case s.Domainname != "" && !has(specs.UTSNamespace):
		return invalid("unable to set domainname without a private UTS namespace")
	case len(l.MaskedPaths)+len(l.ReadonlyPaths) > 0 && !has(specs.MountNamespace):
		return invalid("unable to restrict sys entries without a private MNT namespace")
	case len(l.NetDevices) > 0 && !has(specs.NetworkNamespace):
		return invalid("unable to move network devices without a NET namespace")
	case has(specs.UserNamespace) && seen[specs.UserNamespace] == "" && len(l.UIDMappings)+len(l.GIDMappings) == 0:
		return invalid("user namespaces enabled, but no namespace path to join nor mappings to apply specified")
	case !has(specs.UserNamespace) && len(l.UIDMappings)+len(l.GIDMappings) > 0:
		return invalid("user namespace mappings specified, but user namespace isn't enabled in the config")
	case has(specs.TimeNamespace) && seen[specs.TimeNamespace] != "" && len(l.TimeOffsets) > 0:
		return invalid("time namespace enabled, but both namespace path and time offsets specified -- you may only provide one")
	case !has(specs.TimeNamespace) && len(l.TimeOffsets) > 0:
		return invalid("time namespace offsets specified, but time namespace isn't enabled in the config")
	}
	return nil
}

// checkSysctls refuses parameters that are not a container's own, as runc does.
func checkSysctls(l *specs.Linux) error {
	has := func(t specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(l.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == t })
	}
	for given := range l.Sysctl {
		name := SysctlName(given)
		switch {
		case hasZero(name) || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, ".."):
			return invalid("sysctl %q is no name of a parameter", given)
		case slices.Contains(ipcSysctls, name) || strings.HasPrefix(name, "fs.mqueue."):
			if !has(specs.IPCNamespace) {
				return invalid("sysctl %q is not allowed in the hosts ipc namespace", name)
			}
		case strings.HasPrefix(name, "net."):
			if !has(specs.NetworkNamespace) {
				return invalid("sysctl %q not allowed in host network namespace", name)
			}
		case name == "kernel.domainname" && has(specs.UTSNamespace):
		case name == "kernel.hostname" && has(specs.UTSNamespace):
			return invalid("sysctl %q is not allowed as it conflicts with the OCI %q field", name, "hostname")
		case strings.HasPrefix(name, "user."):
			if !has(specs.UserNamespace) {
				return invalid("setting ucounts without a user namespace not allowed: %v", name)
			}
		default:
			return invalid("sysctl %q is not in a separate kernel namespace", name)
		}
	}
	return nil
}

// SysctlName is a parameter's name with dots between its parts: as sysctl(8), a
// name whose first separator is a slash has the two exchanged.
func SysctlName(s string) string {
	if i := strings.IndexAny(s, "./"); i < 0 || s[i] == '.' {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, s)
}

// checkLinux checks what is left of the Linux section.
func checkLinux(l *specs.Linux) error {
	if p := l.RootfsPropagation; p != "" && !api.Propagation(p).Valid() {
		return invalid("rootfsPropagation=%s is not supported", p)
	}
	for _, d := range l.Devices {
		switch {
		case !path.IsAbs(d.Path) || hasZero(d.Path):
			return invalid("device %q: the path is not absolute", d.Path)
		case !slices.Contains([]string{"c", "u", "b", "p"}, d.Type):
			return invalid("invalid device type %q", d.Type)
		case d.Major < 0 || d.Minor < 0 || d.Major > 1<<12-1 || d.Minor > 1<<20-1:
			return invalid("device %s: number %d:%d is out of range", d.Path, d.Major, d.Minor)
		}
	}
	if p := l.Personality; p != nil && p.Domain != specs.PerLinux && p.Domain != specs.PerLinux32 {
		return invalid("invalid personality domain %s", p.Domain)
	}
	for _, list := range [][]string{l.MaskedPaths, l.ReadonlyPaths} {
		for _, p := range list {
			if !path.IsAbs(p) || hasZero(p) {
				return invalid("masked or read-only path %q is not absolute", p)
			}
		}
	}
	if r := l.Resources; r != nil {
		for i, d := range r.Devices {
			if d.Access == "" {
				return invalid("device access at %d field cannot be empty", i)
			}
			if !slices.Contains([]string{"", "a", "b", "c"}, d.Type) {
				return invalid("invalid cgroup device type %q", d.Type)
			}
		}
	}
	return nil
}

func hasZero(s string) bool { return strings.IndexByte(s, 0) >= 0 }
