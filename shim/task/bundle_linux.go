// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/api/types"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/shim/stdio"
)

// The annotations by which CRI says that a container belongs to a pod.
const (
	sandboxIDAnnotation     = "io.kubernetes.cri.sandbox-id"
	containerTypeAnnotation = "io.kubernetes.cri.container-type"
	groupAnnotation         = "io.containerd.runc.v2.group"
)

// maxConfigBytes bounds a config.json: a spec of a thousand mounts is a tenth.
const maxConfigBytes = 8 << 20

// annotations reads those of a bundle's config.json.
func annotations(bundle string) (map[string]string, error) {
	f, err := os.Open(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var doc struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.NewDecoder(io.LimitReader(f, maxConfigBytes)).Decode(&doc); err != nil {
		return nil, api.Errorf(api.KindInvalid, "read %s: %w", f.Name(), err)
	}
	return doc.Annotations, nil
}

// podSandbox returns the id of the pod sandbox that a bundle's container joins,
// "" if it is of no pod or is that sandbox.
func podSandbox(bundle string) (string, error) {
	a, err := annotations(bundle)
	if err != nil {
		return "", err
	}
	if a[containerTypeAnnotation] != "container" {
		return "", nil
	}
	return a[sandboxIDAnnotation], nil
}

// Group returns the name under which the containers of a bundle's pod share one
// shim, "" if its container has one of its own.
func Group(bundle string) (string, error) {
	a, err := annotations(bundle)
	if err != nil {
		return "", err
	}
	for _, name := range []string{groupAnnotation, sandboxIDAnnotation} {
		if group := a[name]; group != "" {
			return group, nil
		}
	}
	return "", nil
}

func fromMounts(list []*types.Mount) []Mount {
	var mounts []Mount
	for _, m := range list {
		mounts = append(mounts, Mount{Type: m.GetType(), Source: m.GetSource(), Target: m.GetTarget(), Options: m.GetOptions()})
	}
	return mounts
}

// streams are the guest's ends of a set.
func streams(s *stdio.Set) Streams {
	return Streams{Stdin: s.Stdin(), Stdout: s.Stdout(), Stderr: s.Stderr()}
}
