// SPDX-License-Identifier: Apache-2.0

// `rungv install` and `uninstall`: making gvx known to a node's engines.

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/nodeconfig"
)

const (
	// defaultRuntimeName is what engines call gvx.
	defaultRuntimeName = "gvx"
	// shimProgram lies beside rungv.
	shimProgram = "containerd-shim-gvx-v2"
	// backupSuffix is added to the name of a file's copy from before.
	backupSuffix = ".before-gvx"
	// configMode is that of a configuration file that is made.
	configMode = 0o644
)

// installFlags are those of `install` and `uninstall`.
type installFlags struct {
	docker, containerd, kubernetes, dryRun bool
	engineFlags
	// programs, if not "", is where copies of the programs go.
	programs string
}

func (f *installFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.docker, "docker", false, "dockerd: docker run --runtime NAME")
	fl.BoolVar(&f.containerd, "containerd", false, "containerd, for its clients and for CRI")
	fl.BoolVar(&f.kubernetes, "kubernetes", false, "containerd, and print the RuntimeClass for the cluster")
	fl.BoolVar(&f.dryRun, "dry-run", false, "Print what files would hold, and change none")
	f.engineFlags.register(fl)
	fl.StringVar(&f.programs, "programs", "", "Folder for copies of this program and of the shim, which engines then run")
}

// engineFlags say where a node's engines have their configuration, and what gvx is
// called there.
type engineFlags struct{ name, dockerConfig, containerdConfig string }

func (f *engineFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.name, "name", defaultRuntimeName, "What the engines call the runtime")
	fl.StringVar(&f.dockerConfig, "docker-config", "/etc/docker/daemon.json", "dockerd's configuration file")
	fl.StringVar(&f.containerdConfig, "containerd-config", "/etc/containerd/config.toml", "containerd's configuration file")
}

func newInstallCommand() *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install [OPTIONS]",
		Short: "Make this program known to the container engines of this node",
		Long: `Add gvx as a runtime to the configuration of dockerd, of containerd, or of a
Kubernetes node's containerd. What files hold besides stays, and what is there
already is not added again; a file that is changed is first copied to
FILE` + backupSuffix + `. No engine is restarted: what to do is said. 'rungv uninstall' takes it back.

containerd's shim, ` + shimProgram + `, has to lie beside this program. With
--programs, copies of both are made first, and engines are given those: for who
brings the programs to a node in an image.`,
		Example: "  rungv install --docker\n  rungv install --kubernetes | kubectl apply -f -\n  rungv install --containerd --dry-run",
		Args:    exactly(0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd, true) },
	}
	f.register(cmd)
	return cmd
}

func newUninstallCommand() *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "uninstall [OPTIONS]",
		Short: "Take back what install has added",
		Long: `Take from the configuration of engines what 'rungv install' has added, and nothing
else. A copy from before is removed when the file is as it was then.`,
		Example: "  rungv uninstall --docker --containerd",
		Args:    exactly(0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd, false) },
	}
	f.register(cmd)
	return cmd
}

// run adds or takes back.
func (f *installFlags) run(cmd *cobra.Command, add bool) (err error) {
	if !f.docker && !f.containerd && !f.kubernetes {
		return &usageError{err: api.Errorf(api.KindInvalid, "for which engine? give --docker, --containerd or --kubernetes"), verb: cmd.CommandPath()}
	}
	if err := nodeconfig.CheckName(f.name); err != nil {
		return err
	}
	self, err := ownProgram()
	if err != nil {
		return err
	}
	if f.programs != "" {
		placed := filepath.Join(f.programs, filepath.Base(self))
		if add {
			if placed, err = placePrograms(cmd, f.programs, self, f.dryRun); err != nil {
				return err
			}
		} else {
			from := self
			defer func() {
				if err == nil {
					err = removePrograms(cmd, f.programs, from, f.dryRun)
				}
			}()
		}
		self = placed
	}
	if f.docker {
		e := engineConfig{
			path: f.dockerConfig, next: "dockerd reads it on SIGHUP: kill -HUP $(pidof dockerd)",
			add:    func(doc []byte) ([]byte, bool, error) { return nodeconfig.AddDocker(doc, f.name, self) },
			remove: func(doc []byte) ([]byte, bool, error) { return nodeconfig.RemoveDocker(doc, f.name, self) },
		}
		if err := e.change(cmd, add, f.dryRun); err != nil {
			return err
		}
	}
	if f.containerd || f.kubernetes {
		shim := filepath.Join(filepath.Dir(self), shimProgram)
		if _, err := os.Stat(shim); add && err != nil && !(f.dryRun && f.programs != "") {
			return api.Errorf(api.KindNotFound, "containerd's shim: %w: put it beside %s", err, self)
		}
		e := engineConfig{
			path: f.containerdConfig, next: "containerd reads it when it is restarted",
			add:    func(doc []byte) ([]byte, bool, error) { return nodeconfig.AddContainerd(doc, f.name, shim) },
			remove: func(doc []byte) ([]byte, bool, error) { return nodeconfig.RemoveContainerd(doc, f.name) },
		}
		if err := e.change(cmd, add, f.dryRun); err != nil {
			return err
		}
	}
	if f.kubernetes && add {
		fmt.Fprintf(cmd.ErrOrStderr(), "the class' pods run on nodes that have its label: kubectl label node $(hostname) %s=true\n", nodeconfig.NodeLabel)
		_, err = cmd.OutOrStdout().Write(nodeconfig.RuntimeClass(f.name))
	}
	return err
}

// engineConfig is the configuration file of one engine.
type engineConfig struct {
	// path is the file, next what makes the engine read it.
	path, next  string
	add, remove func([]byte) ([]byte, bool, error)
}

// change changes the file, and says so on standard error.
func (e *engineConfig) change(cmd *cobra.Command, add, dryRun bool) error {
	old, err := readConfig(e.path)
	if err != nil {
		return err
	}
	edit := e.remove
	if add {
		edit = e.add
	}
	doc, changed, err := edit(old)
	if err != nil {
		return fmt.Errorf("%s: %w", e.path, err)
	}
	if !add && changed {
		doc = e.before(old, doc)
	}
	say := cmd.ErrOrStderr()
	switch {
	case !changed:
		fmt.Fprintf(say, "%s is as it should be\n", e.path)
		return nil
	case dryRun:
		fmt.Fprintf(say, "%s would be:\n%s", e.path, doc)
		return nil
	}
	if err := replaceConfig(e.path, old, doc); err != nil {
		return err
	}
	fmt.Fprintf(say, "%s: changed; %s\n", e.path, e.next)
	return nil
}

// before returns the copy from before the runtime was added, if nothing but that has
// happened since: it has its user's own way of writing. Otherwise it returns doc.
func (e *engineConfig) before(old, doc []byte) []byte {
	real, err := filepath.EvalSymlinks(e.path)
	if err != nil {
		return doc
	}
	backup, err := readConfig(real + backupSuffix)
	if err != nil || backup == nil {
		return doc
	}
	if then, changed, err := e.add(backup); err == nil && changed && bytes.Equal(then, old) {
		return backup
	}
	return doc
}

// ownProgram is this program's path, as engines have to know it.
func ownProgram() (string, error) {
	path, err := os.Executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return path, nil
}

// readConfig reads a file; one that does not exist is empty.
func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, configError(err)
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, nodeconfig.MaxFileBytes+1))
	if err != nil {
		return nil, configError(err)
	}
	return doc, nil
}

// replaceConfig replaces a file, whole or not at all, keeps its mode and owner,
// and keeps a copy from before.
func replaceConfig(path string, old, doc []byte) error {
	// A link stays one: what it leads to is replaced.
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		real, err = path, os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return configError(err)
	}
	mode := fs.FileMode(configMode)
	st, err := os.Stat(real)
	if err == nil {
		mode = st.Mode().Perm()
	}
	backup := real + backupSuffix
	before, backupErr := os.ReadFile(backup)
	if backupErr != nil && st != nil {
		if err := os.WriteFile(backup, old, mode); err != nil {
			return configError(err)
		}
	}
	err = replaceFile(real, mode, func(temp *os.File) error {
		if _, err := temp.Write(doc); err != nil || st == nil {
			return err
		}
		return keepOwner(temp, st)
	})
	if err != nil {
		return err
	}
	if backupErr == nil && string(before) == string(doc) {
		return os.Remove(backup)
	}
	return nil
}

// replaceFile makes the file at a path one of a mode that fill writes, whole or not
// at all.
func replaceFile(path string, mode fs.FileMode, fill func(*os.File) error) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return configError(err)
	}
	defer os.Remove(temp.Name())
	if err = fill(temp); err == nil {
		err = temp.Chmod(mode)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return configError(err)
	}
	return nil
}

func configError(err error) error {
	kind := api.KindInternal
	if errors.Is(err, fs.ErrPermission) {
		return api.Errorf(api.KindPermission, "%w: engines' configuration is root's", err)
	}
	return api.Errorf(kind, "%w", err)
}
