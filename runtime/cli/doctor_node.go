// SPDX-License-Identifier: Apache-2.0

// `rungv doctor --node`: what the container engines of a node need to run sandboxes.
// Nothing is changed, and no engine is asked: it may be about to be started.

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"z.gfire.dev/gvx/runtime/lockdown"
	"z.gfire.dev/gvx/runtime/nodeconfig"
)

const (
	// versionTimeout bounds a program that is asked for its version.
	versionTimeout = 5 * time.Second
	// minContainerdMajor and Minor are of the first containerd with snapshots in
	// EROFS and the sandbox API's second version, which the shim uses.
	minContainerdMajor, minContainerdMinor = 2, 1
)

// nodeLayers are what doctor reports of a node, beside the isolation layers. A layer is
// fatal if an engine names gvx and could not start it.
func nodeLayers(ctx context.Context, f *engineFlags) ([]lockdown.Layer, error) {
	if err := nodeconfig.CheckName(f.name); err != nil {
		return nil, err
	}
	self, err := ownProgram()
	if err != nil {
		return nil, err
	}
	shim := filepath.Join(filepath.Dir(self), shimProgram)
	docker, err := f.engineLayer("dockerd", f.dockerConfig, "--docker", func(doc []byte) (bool, error) {
		_, changed, err := nodeconfig.AddDocker(doc, f.name, self)
		return !changed, err
	})
	if err != nil {
		return nil, err
	}
	containerd, err := f.engineLayer("containerd", f.containerdConfig, "--containerd", func(doc []byte) (bool, error) {
		_, changed, err := nodeconfig.AddContainerd(doc, f.name, shim)
		return !changed, err
	})
	if err != nil {
		return nil, err
	}
	return []lockdown.Layer{
		docker, containerd, shimLayer(shim, containerd.State == lockdown.StateUsed), everyoneLayer(self),
		containerdVersionLayer(ctx), erofsLayer(),
	}, nil
}

// engineLayer tells whether an engine's configuration names this program.
func (f *engineFlags) engineLayer(engine, path, flag string, has func(doc []byte) (bool, error)) (lockdown.Layer, error) {
	l := lockdown.Layer{Name: engine + " configuration", State: lockdown.StateMissing, Detail: path}
	doc, err := readConfig(path)
	if err != nil {
		return l, err
	}
	if doc == nil {
		l.Detail += " does not exist"
		l.Meaning = fmt.Sprintf("%s does not know %s: 'rungv install %s' adds it, if %s is here", engine, f.name, flag, engine)
		return l, nil
	}
	switch known, err := has(doc); {
	case err != nil:
		// Nobody's sandbox runs by what is there: another program has the name, or
		// the file is none that the engine reads.
		l.Fatal, l.Detail, l.Meaning = true, path+": "+err.Error(), "mend it, then 'rungv install "+flag+"'"
	case known:
		l.State, l.Meaning = lockdown.StateUsed, fmt.Sprintf("%s runs %s by this program", engine, f.name)
	default:
		l.Meaning = fmt.Sprintf("%s does not know %s: 'rungv install %s' adds it", engine, f.name, flag)
	}
	return l, nil
}

// shimLayer tells whether containerd finds a shim that it can execute.
func shimLayer(path string, needed bool) lockdown.Layer {
	l := lockdown.Layer{Name: "containerd shim", State: lockdown.StateUsed, Detail: path, Meaning: "containerd starts it, one for a container or pod", Fatal: needed}
	if found, err := exec.LookPath(path); err != nil || found != path {
		l.State, l.Detail, l.Meaning = lockdown.StateMissing, fmt.Sprint(err), "containerd runs no sandbox without it: put it beside rungv"
	}
	return l
}

// everyoneLayer tells whether ordinary users can run this program.
func everyoneLayer(self string) lockdown.Layer {
	l := lockdown.Layer{Name: "program", State: lockdown.StateUsed, Detail: self, Meaning: "every user can run it"}
	for path := self; ; path = filepath.Dir(path) {
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm()&0o001 == 0 {
			l.State, l.Detail, l.Meaning = lockdown.StateMissing, path, "only root can run rungv: give everybody the right to execute it, or to enter its folder"
			return l
		}
		if path == filepath.Dir(path) {
			return l
		}
	}
}

// containerdVersionLayer asks the containerd that is found for its version.
func containerdVersionLayer(ctx context.Context) lockdown.Layer {
	l := lockdown.Layer{Name: "containerd", State: lockdown.StatePresent, Meaning: "it has snapshots in EROFS and the sandbox API"}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "containerd", "--version").Output()
	if err != nil {
		l.State, l.Detail, l.Meaning = lockdown.StateMissing, err.Error(), fmt.Sprintf("the shim needs containerd %d.%d or newer", minContainerdMajor, minContainerdMinor)
		return l
	}
	// containerd github.com/containerd/containerd/v2 v2.4.2 REVISION
	l.Detail = strings.TrimSpace(string(out))
	var major, minor int
	for word := range strings.FieldsSeq(l.Detail) {
		if n, _ := fmt.Sscanf(strings.TrimPrefix(word, "v"), "%d.%d", &major, &minor); n == 2 {
			break
		}
	}
	if major < minContainerdMajor || major == minContainerdMajor && minor < minContainerdMinor {
		l.State = lockdown.StateMissing
		l.Meaning = fmt.Sprintf("older than %d.%d: no snapshots in EROFS, no sandbox API; layers go through the gofer", minContainerdMajor, minContainerdMinor)
	}
	return l
}

// erofsLayer tells whether containerd can make layers that a sandbox reads without a
// mount on the host.
func erofsLayer() lockdown.Layer {
	l := lockdown.Layer{Name: "mkfs.erofs", State: lockdown.StatePresent, Meaning: "containerd's erofs snapshotter can make layers that sandboxes read without a mount"}
	path, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		l.State, l.Detail = lockdown.StateMissing, err.Error()
		l.Meaning = "containerd's erofs snapshotter does not work: install erofs-utils, or use overlayfs through the gofer"
		return l
	}
	l.Detail = path
	return l
}
