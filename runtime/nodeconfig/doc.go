// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig changes the configuration files of container engines, so that
// they know gvx as a runtime, and takes that back.
//
// It owns what is changed and how: a file's other content stays as it is, to the
// byte where the format lets it; what is there already is not added again; what is
// taken back is what was added and no more. Its functions are pure: bytes in, bytes
// out. It never reads or writes a file, and restarts nobody.
package nodeconfig

import (
	"bytes"
	"fmt"

	"z.gfire.dev/gvx/runtime/api"
)

// Limits of what is read.
const (
	// MaxFileBytes bounds a configuration file.
	MaxFileBytes = 4 << 20
	// maxNameBytes bounds a runtime's name.
	maxNameBytes = 63
)

// ShimRuntime is containerd's name for the runtime.
const ShimRuntime = "io.containerd.gvx.v2"

// CheckName refuses a name that one of the engines does not take for a runtime: of
// Kubernetes' RuntimeClass handlers, which are the strictest.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxNameBytes
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && i > 0 && i < len(name)-1
	}
	if !ok {
		return api.Errorf(api.KindInvalid, "invalid runtime name %q: want at most %d of [a-z0-9-], and no - at either end", name, maxNameBytes)
	}
	return nil
}

func checkSize(what string, doc []byte) error {
	if len(doc) > MaxFileBytes {
		return api.Errorf(api.KindLimit, "%s: %d bytes, at most %d", what, len(doc), MaxFileBytes)
	}
	return nil
}

// NodeLabel is the label of nodes that have the runtime, with the value "true":
// Kubernetes runs pods that ask for it on no others.
const NodeLabel = "dev.gvx/runtime"

// RuntimeClass is the Kubernetes object by which pods ask for a handler. The
// overhead is what a pod's sandbox takes besides its containers.
func RuntimeClass(name string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: %[1]s
handler: %[1]s
overhead:
  podFixed:
    memory: 64Mi
    cpu: 50m
scheduling:
  nodeSelector:
    %[2]s: "true"
`, name, NodeLabel)
	return b.Bytes()
}
