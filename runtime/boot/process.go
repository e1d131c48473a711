// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fdimport"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/limits"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// defaultPath is docker's PATH for a process whose environment has none.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// defaultUmask is runc's.
	defaultUmask = 0o022
	// firstExtraFD is the descriptor after the standard streams.
	firstExtraFD = 3
)

// prepareContainer mounts the container's file systems and resolves all that
// its first process needs. Nothing of the guest runs.
func (sb *sandbox) prepareContainer(c *container) error {
	spec := c.spec
	creds := auth.NewRootCredentials(sb.userns)
	rootArgs := sb.processArgs(spec, creds)
	if err := sb.takeUserNamespace(c); err != nil {
		return err
	}
	if err := sb.takeNamespaces(c, &rootArgs); err != nil {
		return err
	}
	ls, err := limitSet(nil)
	if err != nil {
		return err
	}
	rootArgs.Limits = ls
	m := &mounter{
		sb: sb, spec: spec, vfs: sb.k.VFS(), creds: creds, userns: c.userns,
		ctx: rootArgs.NewContext(sb.k),
	}
	m.treeUser = hostUser(c.userns, 0, 0)
	m.sources = make(mountSources)
	c.treesTaken = make(map[*api.HostTree]bool)
	m.treesTaken = c.treesTaken
	c.sources = m.sources
	defer func() { c.volumes = m.volumes }()
	// Before the mounts: what /sys/fs/cgroup shows follows the namespace.
	cgroup, cgroupns, err := sb.containerCgroup(m, c)
	if err != nil {
		return err
	}
	c.cgroup = cgroup
	rootArgs.InitialCgroupV2, rootArgs.CgroupNamespace = cgroup, cgroupns
	mns, err := m.mountRoot()
	if err != nil {
		return err
	}
	c.mns = mns
	defer m.root.DecRef(m.ctx)
	// Paths below resolve as the container's root sees them.
	rootArgs.MountNamespace = mns
	// The root file system is the sandbox's business, all else the container's.
	m.creds = containerRoot(c.userns)
	rootArgs.Credentials = m.creds
	m.ctx = inNamespace{rootArgs.NewContext(sb.k), mns}
	for _, step := range []func() error{m.mountDefaults, m.mountExtra, m.makeDevices, m.placeFiles, m.placeMtab} {
		if err := step(); err != nil {
			return err
		}
	}
	if c == sb.first {
		if err := m.admin().writeSysctls(sb.spec.Sysctls); err != nil {
			return err
		}
	}
	if err := m.admin().writeSysctls(spec.Sysctls); err != nil {
		return err
	}
	sb.timeline.reached("file systems mounted")

	c.args = rootArgs
	if err := sb.prepareProcess(m, c); err != nil {
		return err
	}
	if err := m.guardPaths(); err != nil {
		return err
	}
	if spec.Rootfs.ReadOnly {
		// Only now: mount points and the working directory had to be made.
		if err := m.vfs.SetMountReadOnly(m.root.Mount(), true); err != nil {
			return fmt.Errorf("make the root file system read-only: %w", err)
		}
	}
	if err := m.setPropagation(m.root.Mount(), spec.Propagation); err != nil {
		return err
	}
	sb.timeline.reached("process prepared")
	return nil
}

// processArgs is what all processes of a container have in common.
func (sb *sandbox) processArgs(spec *api.Container, creds *auth.Credentials) kernel.CreateProcessArgs {
	return kernel.CreateProcessArgs{
		WorkingDirectory:     "/",
		Credentials:          creds,
		Umask:                defaultUmask,
		MaxSymlinkTraversals: linux.MaxSymlinkTraversals,
		UTSNamespace:         sb.k.RootUTSNamespace(),
		IPCNamespace:         sb.k.RootIPCNamespace(),
		PIDNamespace:         sb.k.RootPIDNamespace(),
		ContainerID:          spec.ID,
	}
}

// prepareProcess resolves user, limits, environment, working directory,
// command and descriptors of the container's first process.
// c.args comes with the container's namespaces.
func (sb *sandbox) prepareProcess(m *mounter, c *container) error {
	p := &c.spec.Process
	args := c.args
	acc, err := m.describeProcess(p, &args)
	if err != nil {
		return err
	}
	if c.confine, err = confinement(p); err != nil {
		return err
	}
	if err := m.makeDirectories(args.WorkingDirectory); err != nil {
		return api.Errorf(api.KindInvalid, "working directory %s: %w", args.WorkingDirectory, err)
	}
	if !c.spec.Idle {
		if args.Filename, err = m.resolveCommand(&args); err != nil {
			return err
		}
	}
	c.args = args
	if err := sb.importStdio(c, acc); err != nil {
		return err
	}
	if p.Terminal {
		terminal, _ := c.args.FDTable.Get(0)
		defer terminal.DecRef(m.ctx)
		if err := m.mountConsole(terminal); err != nil {
			return err
		}
	}
	return sb.prepareInit(c)
}

// describeProcess resolves user, limits and environment of a process into args,
// and returns the user.
func (m *mounter) describeProcess(p *api.Process, args *kernel.CreateProcessArgs) (*account, error) {
	acc, err := m.resolveAccount(p)
	if err != nil {
		return nil, err
	}
	caps, err := processCapabilities(p, acc.uid)
	if err != nil {
		return nil, err
	}
	if args.Credentials, err = credentials(m.userns, acc, caps); err != nil {
		return nil, err
	}
	args.Argv, args.Envv = p.Args, m.completeEnv(p.Env, acc.home)
	if p.Account != nil && p.Account.Umask != nil {
		args.Umask = uint(*p.Account.Umask)
	}
	args.WorkingDirectory, args.NoNewPrivs = path.Clean(p.Cwd), p.NoNewPrivileges
	args.Limits, err = limitSet(p.Rlimits)
	return acc, err
}

// importStdio makes the process' descriptor table from the donated streams, and
// owns these whatever happens.
func (sb *sandbox) importStdio(c *container, acc *account) error {
	c.stdioTaken = true
	p := &c.spec.Process
	in := fd.New(int(p.StdinFD))
	out, errs := in, in
	if !p.Terminal {
		out, errs = fd.New(int(p.StdoutFD)), fd.New(int(p.StderrFD))
	}
	files := map[int]*fd.FD{0: in, 1: out, 2: errs}
	for i, extra := range p.ExtraFDs {
		files[firstExtraFD+i] = fd.New(int(extra))
	}
	ctx := c.args.NewContext(sb.k)
	table := sb.k.NewFDTable()
	tty, err := fdimport.Import(ctx, table, files, fdimport.ImportOptions{
		Console:       p.Terminal,
		Restorable:    true,
		UID:           c.args.Credentials.EffectiveKUID,
		GID:           sb.streamGroup(c),
		ContainerName: c.spec.ID,
		SupportTTYs:   true,
	})
	if err != nil {
		table.DecRef(ctx)
		// What was not imported: later, their finalizers would close other files'
		// descriptors.
		for _, f := range files {
			_ = f.Close()
		}
		return fmt.Errorf("import standard streams: %w", err)
	}
	blockingFDs(ctx, c.args.Credentials, table, len(files))
	c.args.FDTable = table
	if tty != nil {
		c.tty = tty
		c.args.TTY = tty.TTY()
	}
	return nil
}

// streamGroup is whom the streams belong to: a terminal, to the group that the bundle
// mounts the container's terminals for, as with runc.
func (sb *sandbox) streamGroup(c *container) auth.KGID {
	own := c.args.Credentials.EffectiveKGID
	if !c.spec.Process.Terminal {
		return own
	}
	for i := range c.spec.Mounts {
		for _, o := range c.spec.Mounts[i].Options {
			value, found := strings.CutPrefix(o, "gid=")
			gid, err := strconv.ParseUint(value, 10, 32)
			if c.spec.Mounts[i].Type != api.MountDevpts || !found || err != nil {
				continue
			}
			if group := c.userns.MapToKGID(auth.GID(gid)); group.Ok() {
				return group
			}
		}
	}
	return own
}

// blockingFDs takes O_NONBLOCK from the first descriptors. Those that come after the
// lockdown come in that mode, and the Sentry shows a guest the mode that it finds:
// programs that expect to wait would see EAGAIN.
func blockingFDs(ctx context.Context, creds *auth.Credentials, table *kernel.FDTable, count int) {
	for n := range int32(count) {
		file, _ := table.Get(n)
		if file == nil {
			continue
		}
		if err := file.SetStatusFlags(ctx, creds, file.StatusFlags()&^linux.O_NONBLOCK); err != nil {
			log.Warningf("descriptor %d stays non-blocking: %v", n, err)
		}
		file.DecRef(ctx)
	}
}

// prepareInit makes the donated reaper the first program, with the command,
// already resolved, behind it.
func (sb *sandbox) prepareInit(c *container) error {
	if c.spec.InitFD <= 2 {
		return nil
	}
	c.initTaken = true
	ctx := c.args.NewContext(sb.k)
	file, err := host.NewFD(ctx, sb.k.HostMount(), int(c.spec.InitFD), &host.NewFDOptions{
		Readonly: true, Savable: true, VirtualOwner: true,
	})
	if err != nil {
		return fmt.Errorf("import the init program: %w", err)
	}
	c.initFile = file
	c.args.File = file
	argv := []string{api.InitName}
	if c.spec.Idle {
		c.args.Argv = argv
		return nil
	}
	if c.spec.StartHooks != "" {
		argv = append(argv, c.spec.StartHooks)
	}
	c.args.Argv = append(append(argv, "--", c.args.Filename), c.args.Argv...)
	c.args.Filename = ""
	return nil
}

// createProcess makes the container's first process. It runs once it, or the
// kernel, is started.
func (sb *sandbox) createProcess(c *container) (*kernel.ThreadGroup, error) {
	defer sb.dropProcess(c)
	c.mns.IncRef() // CreateProcess takes a reference.
	tg, _, err := sb.k.CreateProcess(c.args)
	if err != nil {
		return nil, startError(c.args.Argv[0], err)
	}
	c.confine(tg)
	sb.timeline.reached("process created")
	return tg, nil
}

// dropProcess gives back what was prepared for the first process alone.
func (sb *sandbox) dropProcess(c *container) {
	ctx := c.args.NewContext(sb.k)
	if c.initFile != nil {
		c.initFile.DecRef(ctx)
		c.initFile = nil
	}
	if c.args.FDTable != nil {
		c.args.FDTable.DecRef(ctx)
		c.args.FDTable = nil
	}
}

// startError classifies why the Sentry would not load a program. It has the
// errno's text only. The words are those of docker and runc.
func startError(command string, err error) error {
	msg := err.Error()
	if strings.Contains(msg, linuxerr.ENOENT.Error()) {
		return api.Errorf(api.KindCommandNotFound, "exec %s: no such file or directory: the file or the interpreter it names does not exist", command)
	}
	return api.Errorf(api.KindCommandNotExecutable, "exec: %q: %w", command, err)
}

// limitSet is what docker's containers have, with the spec's limits on top.
func limitSet(rlimits []api.Rlimit) (*limits.LimitSet, error) {
	ls, err := limits.NewLinuxLimitSet()
	if err != nil {
		return nil, fmt.Errorf("default resource limits: %w", err)
	}
	unlimited := limits.Limit{Cur: limits.Infinity, Max: limits.Infinity}
	ls.SetUnchecked(limits.Core, unlimited)
	ls.SetUnchecked(limits.ProcessCount, unlimited)
	// A million by default has every program crawl that closes what it may
	// have inherited; one that needs more raises it.
	ls.SetUnchecked(limits.NumberOfFiles, limits.Limit{Cur: 1024, Max: 1 << 20})
	for _, r := range rlimits {
		t, ok := limits.FromLinuxResourceName["RLIMIT_"+strings.ToUpper(r.Name)]
		if !ok {
			return nil, api.Errorf(api.KindInvalid, "invalid ulimit type: %s", r.Name)
		}
		if r.Soft > r.Hard {
			return nil, api.Errorf(api.KindInvalid, "ulimit %s: soft limit %d above hard limit %d", r.Name, r.Soft, r.Hard)
		}
		ls.SetUnchecked(t, limits.Limit{Cur: r.Soft, Max: r.Hard})
	}
	return ls, nil
}

// resolveCommand finds the program of args.Argv[0] as execvp would, and checks
// that it may run, so that docker's exit codes 126 and 127 can be told apart.
func (m *mounter) resolveCommand(args *kernel.CreateProcessArgs) (string, error) {
	name := args.Argv[0]
	if name == "" {
		return "", api.Errorf(api.KindCommandNotFound, "exec: empty command name")
	}
	ctx := args.NewContext(m.sb.k)
	if strings.Contains(name, "/") {
		p := name
		if !path.IsAbs(p) {
			p = path.Join(args.WorkingDirectory, p)
		}
		if err := m.executable(ctx, args.Credentials, p); err != nil {
			return "", commandError(name, p, err)
		}
		return p, nil
	}
	denied := ""
	for _, dir := range pathDirectories(args.Envv) {
		if !path.IsAbs(dir) {
			continue // A relative entry would depend on what the image puts where.
		}
		p := path.Join(dir, name)
		err := m.executable(ctx, args.Credentials, p)
		if err == nil {
			return p, nil
		}
		if linuxerr.Equals(linuxerr.EACCES, err) && denied == "" {
			denied = p
		}
	}
	if denied != "" {
		return "", commandError(name, denied, linuxerr.EACCES)
	}
	return "", api.Errorf(api.KindCommandNotFound, "exec: %q: executable file not found in $PATH", name)
}

func pathDirectories(env []string) []string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			return strings.Split(v, ":")
		}
	}
	return nil
}

// commandError gives a lookup failure the kind that docker's exit code needs.
func commandError(name, p string, err error) error {
	if linuxerr.Equals(linuxerr.ENOENT, err) || linuxerr.Equals(linuxerr.ENOTDIR, err) {
		return api.Errorf(api.KindCommandNotFound, "exec: %q: stat %s: no such file or directory", name, p)
	}
	return api.Errorf(api.KindCommandNotExecutable, "exec: %q: %s: %w", name, p, err)
}
