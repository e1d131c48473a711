// SPDX-License-Identifier: Apache-2.0

// `rungv run`.

package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/footprint"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/launch"
)

func newRunCommand(g *globals) *cobra.Command {
	f := &runFlags{}
	var b bundleFlags
	cmd := &cobra.Command{
		Use:   "run [OPTIONS] IMAGE [COMMAND] [ARG...]",
		Short: "Create and run a new container from an image",
		Long: `Create and run a new container from an image, in the foreground, or with
--detach in the background: then the container's id is printed once it runs, and
'rungv logs', 'attach', 'exec', 'stop' and others manage it.

IMAGE is a registry reference, or oci:DIR[:TAG], oci-archive:FILE[:TAG],
docker-archive:FILE[:NAME:TAG], rootfs:DIR or rootfs-tar:FILE. It is pulled when
it is not in the store.

The container runs in one unprivileged process that is its own kernel. Guests
have all capabilities of that kernel unless --cap-drop takes some; the boundary
is the process. A container in the foreground ends with this command: the detach
keys are recognised, but only one that was started with --detach can go on
alone. What it writes to its root file system is gone when it ends; its record
stays until 'rungv rm', unless --rm is given. A volume that the image declares
is a directory of the root file system.

Volumes keep what is written: -v NAME:DIR for one of the store, --mount src=FILE
for one in a file, both made when missing and filled with what the image has at
DIR (not with volume-nocopy). clone=ephemeral mounts a copy-on-write clone that
is gone with the container, however that ends; clone=FILE.delta one that is kept.
--mount also takes size=, readonly, uid= and gid= of a new volume, and
durability=host, where fsync waits for the host's disk, or process. When the
container has ended by itself or by a signal, its volumes are compacted and
closed. See 'rungv volume --help'.

The network is a user-mode one (--network nat): eth0 with 10.0.2.15, a gateway
at 10.0.2.2 and a name server at 10.0.2.3, which asks the host's own or those of
--dns; where the host has IPv6, fd67:7678::15, ::2 and ::3 too. Guests reach all that this user reaches, but for the host's loopback,
link-local and cloud metadata addresses. --egress changes that: the first rule
that covers a destination decides, a rule without a network is for what no other
covers, and one of those addresses is opened only by a rule inside its own
network. The host's loopback is 10.0.2.2 in the guest and 127.0.0.1 in rules.
'--egress deny' stops names too, unless 10.0.2.3 is allowed. With allow-domain
only names that rules allow are resolved, the addresses of such a name are
reached while its answer holds, and all else is denied unless there is a default.
'rungv network policy' changes rules while the container runs. The network of the
host itself is not given to the guest of an image.

'rungv run --bundle DIR CONTAINER' is runc's: it creates, starts, awaits and deletes
the container that an OCI bundle describes; with --detach it returns once that runs.
DIR may be left out where the working directory is a bundle and one of these says that
a bundle is meant: --console-socket, --pid-file, --pidfd-socket, --no-pivot,
--no-new-keyring, --preserve-fds, --keep, or, before the verb, --systemd-cgroup or
--allow-host-network.

The exit code is the command's own; 128+n when signal n ended it; 125 when rungv
itself failed, 126 when the command cannot be executed, 127 when it does not
exist.`,
		Example: "  rungv run --rm -it debian:12 bash\n  rungv run --rm -m 512m --cpus 1.5 -e KEY=value python:3 python3 -c 'print(42)'\n  rungv run --rm -p 8080:80 -p unix:/run/user/1000/web.sock:80 nginx\n  rungv run --rm --egress deny --egress allow=10.0.2.3 --egress allow=192.0.2.0/24:443 debian:12\n  echo hi | rungv run -i --rm rootfs:/srv/debian cat",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bundle, err := b.given(cmd)
			if err != nil {
				return err
			}
			if bundle {
				return runTask(cmd, g, &b, args, f.detach)
			}
			err = runContainer(cmd, g, f, args)
			var exit *exitError
			if err == nil || errors.As(err, &exit) && (exit.err == nil || exit.code != exitRunFailure) {
				return err
			}
			if exit != nil {
				err = exit.err
			}
			return &exitError{code: container.ExitCode(err), err: orBundle(err, args)}
		},
	}
	cmd.SetFlagErrorFunc(runFlagError)
	// What follows IMAGE is the guest's, flags included.
	cmd.Flags().SetInterspersed(false)
	f.register(cmd)
	b.register(cmd.Flags())
	cmd.Flags().BoolVar(&b.keep, "keep", false, "With a bundle: do not delete the container after it exits")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "Run container in background and print container ID")
	return cmd
}

func runFlagError(cmd *cobra.Command, err error) error {
	// A host name without its value is somebody who asks for help.
	var missing *pflag.ValueRequiredError
	if errors.As(err, &missing) && missing.GetSpecifiedName() == "h" {
		return cmd.Help()
	}
	return &usageError{err: err, verb: cmd.CommandPath()}
}

// runContainer runs a container and returns its exit code as an [exitError].
func runContainer(cmd *cobra.Command, g *globals, f *runFlags, args []string) error {
	o, err := f.options(args)
	if err != nil {
		return err
	}
	if f.detach {
		return runDetached(cmd, g, f, o)
	}
	if o.TTY && o.Interactive && !term.IsTerminal(int(os.Stdin.Fd())) {
		return api.Errorf(api.KindInvalid, "cannot attach stdin to a TTY-enabled container because stdin is not a terminal: leave -t or -i out")
	}
	r, err := g.runner(true)
	if err != nil {
		return err
	}
	// Progress goes to standard error, as docker's does: standard output is
	// the guest's.
	pull := pullFlags{platform: f.platform, progress: f.progress, quiet: f.quiet}
	show, err := pull.start(os.Stderr)
	if err != nil {
		return err
	}
	o.Pull.Progress = func(e images.Event) { show.Event(e) }
	o.PullDone = show.Close
	o.Stdin, o.Stdout, o.Stderr = os.Stdin, os.Stdout, os.Stderr

	o.Started = footprint.SettleToWait
	if g.caller != nil {
		o.Created, o.Gone = g.caller.created, g.caller.gone
		o.Started = func() {
			g.caller.started()
			footprint.SettleToWait()
		}
		if f.waitStart {
			o.Ready, o.Start = g.caller.ready, g.caller.start
		}
	}

	exit, err := r.Run(cmd.Context(), *o)
	if err == nil {
		g.caller.ended(exit)
	}
	return exitOf(exit, err)
}

// options turns flags and arguments into a run.
func (f *runFlags) options(args []string) (*container.RunOptions, error) {
	o := &container.RunOptions{
		Image: args[0], Name: f.name, AutoRemove: f.remove, CIDFile: f.cidFile, SignalProxy: f.sigProxy,
	}
	o.Args = args[1:]
	var err error
	if o.Pull.Policy, err = images.ParsePolicy(f.pull); err != nil {
		return nil, err
	}
	if o.Pull.Platform, err = parsePlatform(f.platform); err != nil {
		return nil, err
	}
	if o.DetachKeys, err = launch.ParseDetachKeys(f.detachKeys); err != nil {
		return nil, err
	}
	if err := f.checkDetached(); err != nil {
		return nil, err
	}
	if o.Log, err = f.config(); err != nil {
		return nil, err
	}
	if err := f.convert(&o.Options); err != nil {
		return nil, err
	}
	return o, nil
}
