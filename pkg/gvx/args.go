// SPDX-License-Identifier: Apache-2.0

// From a configuration to rungv's command line.

package gvx

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// dockerPort is where an engine listens inside a sandbox.
	dockerPort = 2375
	// maxEnvBytes bounds the environment: Linux' own limit is near.
	maxEnvBytes = 2 << 20
	// newEnvFile is where rungv finds the environment: a pipe that it inherits,
	// so that no value is seen in a process list or on a disk.
	newEnvFile = "/proc/self/fd/4"
)

// check finds what rungv could not be told, or would take for something else.
func (c *Config) check() error {
	switch {
	case c.Platform != PlatformAuto && c.Platform != PlatformSystrap:
		return errorf(KindUnsupported, opNew, "platform %q: this version has %q", c.Platform, PlatformSystrap)
	case c.OCIImage == "":
		return errorf(KindInvalid, opNew, "Config.OCIImage is empty: name an image")
	case strings.HasPrefix(c.OCIImage, "-"):
		return errorf(KindInvalid, opNew, "Config.OCIImage %q: an image reference does not begin with -", c.OCIImage)
	case c.Resources.MemoryBytes < 0 || c.Resources.CPUMillis < 0 || c.Resources.Pids < 0 || c.Resources.RootfsBytes < 0 || c.ShmSizeBytes < 0:
		return errorf(KindInvalid, opNew, "a limit in Config.Resources or ShmSizeBytes is negative: 0 is none")
	case c.StopTimeout < 0:
		return errorf(KindInvalid, opNew, "Config.StopTimeout %v is negative", c.StopTimeout)
	}
	if err := checkEnv(c.Envv); err != nil {
		return &Error{Kind: KindInvalid, Op: opNew, Err: fmt.Errorf("Config.Envv: %w", err)}
	}
	for i := range c.Mounts {
		if err := c.Mounts[i].check(); err != nil {
			return &Error{Kind: KindInvalid, Op: opNew, Err: fmt.Errorf("Config.Mounts[%d]: %w", i, err)}
		}
	}
	if err := checkEgress(c.Egress); err != nil {
		return &Error{Kind: KindInvalid, Op: opNew, Err: fmt.Errorf("Config.Egress: %w", err)}
	}
	for i := range c.Publish {
		if err := c.Publish[i].check(); err != nil {
			return &Error{Kind: KindInvalid, Op: opNew, Err: fmt.Errorf("Config.Publish[%d]: %w", i, err)}
		}
	}
	return nil
}

// checkEgress lets no rule through that rungv takes for something else, a file of
// rules say.
func checkEgress(rules []string) error {
	for _, r := range rules {
		if !strings.HasPrefix(r, "allow") && !strings.HasPrefix(r, "deny") {
			return fmt.Errorf("%q is no rule: want allow, deny, allow=CIDR[:PORTS], deny=CIDR[:PORTS] or allow-domain=NAME", r)
		}
	}
	return nil
}

func checkEnv(env []string) error {
	total := 0
	for _, e := range env {
		name, _, found := strings.Cut(e, "=")
		if !found || name == "" || strings.ContainsRune(e, 0) {
			return fmt.Errorf("%q is not NAME=value", e)
		}
		total += len(e) + 1
	}
	if total > maxEnvBytes {
		return fmt.Errorf("%d bytes, at most %d", total, maxEnvBytes)
	}
	return nil
}

func (m *Mount) check() error {
	switch {
	case !path.IsAbs(m.GuestPath):
		return fmt.Errorf("GuestPath %q is not absolute", m.GuestPath)
	case m.Kind != MountVolume && m.Kind != MountBind && m.Kind != MountTmpfs:
		return fmt.Errorf("unknown kind %q", m.Kind)
	case m.Kind == MountTmpfs && m.ImagePath != "":
		return errors.New("a tmpfs has no ImagePath")
	case m.Kind != MountTmpfs && m.ImagePath == "":
		return errors.New("ImagePath is empty")
	case m.Kind != MountVolume && (m.Clone != "" || m.Durability != ""):
		return errors.New("Clone and Durability are for volumes")
	case m.SizeBytes < 0:
		return fmt.Errorf("SizeBytes %d is negative", m.SizeBytes)
	case m.Kind == MountBind && m.SizeBytes != 0:
		return errors.New("SizeBytes is for volumes and tmpfs")
	}
	return nil
}

func (p *Port) check() error {
	switch {
	case p.Transport != "" && p.Transport != TCP && p.Transport != UDP:
		return fmt.Errorf("unknown transport %q: want %q or %q", p.Transport, TCP, UDP)
	case p.Path != "" && (p.Transport == UDP || p.HostPort != 0 || p.HostIP.IsValid()):
		return errors.New("a socket of the host, Path, has no address and carries TCP")
	}
	return nil
}

// csv quotes a value for a flag of comma-separated values.
func csv(key, value string) string {
	field := key + "=" + value
	if strings.ContainsAny(field, ",\"\n") {
		return `"` + strings.ReplaceAll(field, `"`, `""`) + `"`
	}
	return field
}

// flag is the value of --mount.
func (m *Mount) flag() string {
	fields := []string{"type=" + string(m.Kind)}
	if m.ImagePath != "" {
		source := m.ImagePath
		if m.Kind == MountBind && !filepath.IsAbs(source) {
			// Docker takes no other relative path but one that says so.
			source = "." + string(filepath.Separator) + source
		}
		fields = append(fields, csv("src", source))
	}
	fields = append(fields, csv("dst", m.GuestPath))
	if m.ReadOnly {
		fields = append(fields, "readonly")
	}
	if m.SizeBytes > 0 {
		key := "size="
		if m.Kind == MountTmpfs {
			key = "tmpfs-size="
		}
		fields = append(fields, key+strconv.FormatInt(m.SizeBytes, 10))
	}
	if m.Clone != "" {
		fields = append(fields, csv("clone", m.Clone))
	}
	if m.Durability != "" {
		fields = append(fields, "durability="+string(m.Durability))
	}
	return strings.Join(fields, ",")
}

// flag is the value of --publish.
func (p *Port) flag() string {
	guest := strconv.Itoa(int(p.Guest))
	if p.Path != "" {
		return "unix:" + p.Path + ":" + guest
	}
	if p.Transport == UDP {
		guest += "/udp"
	}
	ip := "127.0.0.1"
	if p.HostIP.IsValid() {
		ip = p.HostIP.String()
	}
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return fmt.Sprintf("%s:%d:%s", ip, p.HostPort, guest)
}

// runArgs is the command line of a sandbox; socket is where an engine inside is
// published.
func (c *Config) runArgs(socket string) []string {
	a := &arguments{list: []string{"run", "--rm", "--wait-start", "--progress", "none", "--detach-keys=", "--env-zero-file", newEnvFile}}
	a.value("--name", c.Name)
	a.value("--hostname", c.Hostname)
	a.value("--platform", c.ImagePlatform)
	a.value("--pull", string(c.Pull))
	a.value("--workdir", c.WorkingDir)
	a.value("--user", c.User)
	a.value("--stop-signal", c.StopSignal)
	a.number("--stop-timeout", int64((c.StopTimeout+time.Second-1)/time.Second))
	a.number("--shm-size", c.ShmSizeBytes)
	a.number("--memory", c.Resources.MemoryBytes)
	a.number("--pids-limit", c.Resources.Pids)
	a.number("--rootfs-size", c.Resources.RootfsBytes)
	if n := c.Resources.CPUMillis; n > 0 {
		a.value("--cpus", strconv.FormatFloat(float64(n)/1000, 'f', -1, 64))
	}
	a.set("--tty", c.TTY)
	a.set("--interactive", c.Stdin != nil)
	a.set("--init", c.Init)
	a.set("--read-only", c.ReadOnly)
	for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
		a.value("--label", k+"="+c.Labels[k])
	}
	for _, k := range slices.Sorted(maps.Keys(c.Sysctls)) {
		a.value("--sysctl", k+"="+c.Sysctls[k])
	}
	for _, k := range slices.Sorted(maps.Keys(c.Ulimits)) {
		a.value("--ulimit", fmt.Sprintf("%s=%d:%d", k, c.Ulimits[k].Soft, c.Ulimits[k].Hard))
	}
	for i := range c.Mounts {
		a.value("--mount", c.Mounts[i].flag())
	}
	c.networkArgs(a, socket)
	c.privilegeArgs(a)
	c.commandArgs(a)
	return a.list
}

func (c *Config) networkArgs(a *arguments, socket string) {
	a.value("--network", string(c.NetworkMode))
	for i := range c.Publish {
		a.value("--publish", c.Publish[i].flag())
	}
	if c.Docker {
		p := Port{Guest: dockerPort, Path: socket}
		a.value("--publish", p.flag())
	}
	for _, e := range c.Egress {
		a.value("--egress", e)
	}
	for _, k := range slices.Sorted(maps.Keys(c.AddHosts)) {
		a.value("--add-host", k+":"+c.AddHosts[k].String())
	}
	for _, d := range c.DNS {
		a.value("--dns", d.String())
	}
	a.set("--packet-socket-write=false", !c.AllowPacketSocketWrite)
}

func (c *Config) privilegeArgs(a *arguments) {
	if !c.NetRaw {
		a.value("--cap-drop", "NET_RAW")
	}
	for _, d := range c.CapDrop {
		a.value("--cap-drop", d)
	}
	if !c.AllowSUID {
		a.value("--security-opt", "no-new-privileges")
	}
}

// commandArgs ends the command line: the image, and what to run. rungv takes,
// like docker, an entry point of one word: the others come before the command.
func (c *Config) commandArgs(a *arguments) {
	if !c.EntrypointSet && len(c.Entrypoint) == 0 {
		a.list = append(append(a.list, c.OCIImage), c.Cmd...)
		return
	}
	first, rest := "", []string(nil)
	if len(c.Entrypoint) > 0 {
		first, rest = c.Entrypoint[0], c.Entrypoint[1:]
	}
	a.list = append(a.list, "--entrypoint="+first, c.OCIImage)
	a.list = append(append(a.list, rest...), c.Cmd...)
}

// arguments grow a command line. A value goes into one word with its flag, so
// that none is ever taken for a flag itself.
type arguments struct{ list []string }

func (a *arguments) value(flag, value string) {
	if value != "" {
		a.list = append(a.list, flag+"="+value)
	}
}

func (a *arguments) number(flag string, n int64) {
	if n > 0 {
		a.list = append(a.list, flag+"="+strconv.FormatInt(n, 10))
	}
}

func (a *arguments) set(flag string, yes bool) {
	if yes {
		a.list = append(a.list, flag)
	}
}
