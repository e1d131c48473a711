// SPDX-License-Identifier: Apache-2.0

// What every verb shares: global flags, the places of things, the log.

package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/state"
)

// globals are the flags that every verb has.
type globals struct {
	// Root is --root: where state, images and volumes live; empty is the
	// default of the present user.
	Root string
	// Debug, LogPath and LogFormat are --debug, --log and --log-format.
	Debug              bool
	LogPath, LogFormat string

	// SystemdCgroup is --systemd-cgroup: of containers of bundles.
	SystemdCgroup bool
	// HostNetwork is --allow-host-network: for containers of bundles.
	HostNetwork bool

	// CallerFD is --caller-fd; caller is who is there, nil for a person.
	CallerFD int
	caller   *caller

	// log takes our own messages and, with --debug, the sandbox's.
	log *logrus.Logger
}

// Values of --log-format.
const (
	logText = "text"
	logJSON = "json"
)

func (g *globals) register(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&g.Root, "root", "", "Directory for state and images (default /run/gvx and /var/lib/gvx, or a user's own)")
	f.BoolVar(&g.Debug, "debug", false, "Log what the sandbox does")
	f.StringVar(&g.LogPath, "log", "", "File to append the log to (default standard error)")
	f.StringVar(&g.LogFormat, "log-format", logText, `Format of the log ("text", "json")`)
	f.BoolVar(&g.SystemdCgroup, "systemd-cgroup", false, `Have systemd make the cgroups of OCI bundles: their cgroupsPath is "slice:prefix:name"`)
	f.BoolVar(&g.HostNetwork, "allow-host-network", false,
		"Give OCI bundles without a network namespace the host's network. Such a guest reaches all that the sandbox's user reaches, services on the host's loopback too, and a Sentry that it has taken over does as well")
	f.String("criu", "", "")
	_ = f.MarkHidden("criu") // runc's callers give it.
	f.String("rootless", "", "")
	_ = f.MarkHidden("rootless") // Likewise.
	f.IntVar(&g.CallerFD, "caller-fd", noCaller, "Socket to report events to: for programs that start rungv")
	_ = f.MarkHidden("caller-fd")
	_ = root.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{logText, logJSON}, cobra.ShellCompDirectiveNoFileComp))
	_ = root.MarkPersistentFlagDirname("root")
}

// setup checks the global flags and opens the log.
func (g *globals) setup() error {
	if g.CallerFD != noCaller && g.caller == nil {
		c, err := openCaller(g.CallerFD)
		if err != nil {
			return err
		}
		g.caller = c
	}
	if g.Root != "" {
		abs, err := filepath.Abs(g.Root)
		if err != nil {
			return api.Errorf(api.KindInvalid, "--root %q: %w", g.Root, err)
		}
		g.Root = abs
	}
	g.log = logrus.New()
	switch g.LogFormat {
	case logText:
		g.log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	case logJSON:
		g.log.SetFormatter(&logrus.JSONFormatter{})
	default:
		return api.Errorf(api.KindInvalid, "invalid --log-format %q: want %q or %q", g.LogFormat, logText, logJSON)
	}
	if g.LogPath != "" {
		f, err := os.OpenFile(g.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return api.Errorf(api.KindInvalid, "--log: %w", err)
		}
		g.log.SetOutput(f)
	}
	if g.Debug {
		g.log.SetLevel(logrus.DebugLevel)
	}
	return nil
}

// runner returns what runs and manages containers, with the stores open that
// it needs: the state's always, the images' only for a run.
func (g *globals) runner(withImages bool) (*container.Runner, error) {
	root, err := g.stateRoot()
	if err != nil {
		return nil, err
	}
	r := &container.Runner{Warn: g.warn, Debug: g.log.Debugf}
	if r.State, err = state.Open(root); err != nil {
		return nil, err
	}
	if !withImages {
		return r, nil
	}
	if r.Volumes, err = openVolumes(g, r); err != nil {
		return nil, err
	}
	if r.Images, err = openImages(g); err != nil {
		return nil, err
	}
	if g.Debug {
		r.Log, r.LogLevel = g.sandboxLog(), "debug"
	}
	return r, nil
}

// stateRoot is where containers are kept: a place that a reboot empties.
func (g *globals) stateRoot() (string, error) {
	switch {
	case g.Root != "":
		return filepath.Join(g.Root, "state"), nil
	case runtime.GOOS == "linux" && os.Geteuid() == 0:
		return "/run/gvx", nil
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && isOurs(dir) {
		return filepath.Join(dir, "gvx"), nil
	}
	return filepath.Join(os.TempDir(), "gvx-"+strconv.Itoa(os.Getuid())), nil
}

// warn tells the user about something that does not end the verb.
func (g *globals) warn(format string, args ...any) {
	if g.caller.warn(format, args...) {
		return
	}
	if g.LogPath != "" {
		g.log.Warnf(format, args...)
		return
	}
	if g.caller != nil {
		return // It has gone, and standard error is the guest's.
	}
	end := "\n"
	if isTerminal(os.Stderr) {
		end = "\r\n" // It may be in raw mode.
	}
	fmt.Fprintf(os.Stderr, "rungv: "+format+end, args...)
}

// sandboxLog writes the sandbox's own lines to the log.
func (g *globals) sandboxLog() io.Writer {
	return g.log.WithField("source", "sandbox").WriterLevel(logrus.DebugLevel)
}
