// SPDX-License-Identifier: Apache-2.0

// Annotations of bundles: gvx' own, and those by which engines say which
// containers are one pod.

package convert

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// Annotations that mean something to gvx.
const (
	// AnnotationPrefix is that of all of them.
	AnnotationPrefix = "dev.gvx."
	// AnnotationVolume, with a name of the user's behind it, mounts a volume:
	// the value is that of `rungv run --mount`, without type=; container=NAME
	// names the container of a pod that gets it, else all but the pause one do.
	AnnotationVolume = AnnotationPrefix + "volume."
	// AnnotationPrivileged, when "true", gives the guest all of its own kernel:
	// all capabilities, no seccomp filter, no masked paths. It gives nothing of
	// the host.
	AnnotationPrivileged = AnnotationPrefix + "guest-privileged"
	// AnnotationRootfs is RootfsShared, RootfsExclusive or RootfsPrivate.
	AnnotationRootfs = AnnotationPrefix + "rootfs"
	// AnnotationSandbox is the id of a sandbox to join, for engines that have
	// no word for it.
	AnnotationSandbox = AnnotationPrefix + "sandbox"
)

// How a directory rootfs is served.
const (
	// RootfsShared writes through at once, and sees what others change.
	RootfsShared = "shared"
	// RootfsExclusive may cache: nobody else changes the directory meanwhile.
	RootfsExclusive = "exclusive"
	// RootfsPrivate leaves the directory as it is: what the guest writes goes into
	// a layer of the container's own, and goes with it.
	RootfsPrivate = "private"
)

// PodKind is a container's place in a pod.
type PodKind string

// The places in a pod; "" is a container of its own.
const (
	PodSandbox   PodKind = "sandbox"
	PodContainer PodKind = "container"
)

// podAnnotations are what engines say of a container: its kind, and the id of
// the sandbox it belongs to.
var podAnnotations = []struct{ kind, sandbox string }{
	{"io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"},   // containerd
	{"io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID"}, // CRI-O, podman
}

// containerNameAnnotations hold a container's name within its pod.
var containerNameAnnotations = []string{"io.kubernetes.cri.container-name", "io.kubernetes.cri-o.ContainerName", "io.kubernetes.container.name"}

// PodOf says what part of a pod a bundle is, and the id of the pod's sandbox.
func PodOf(s *specs.Spec) (PodKind, string) {
	if id := s.Annotations[AnnotationSandbox]; id != "" {
		return PodContainer, id
	}
	for _, a := range podAnnotations {
		switch kind := PodKind(s.Annotations[a.kind]); kind {
		case PodSandbox, PodContainer:
			return kind, s.Annotations[a.sandbox]
		}
	}
	return "", ""
}

// podResources are the limits of a whole pod, where the engine knows them.
func podResources(s *specs.Spec) api.Resources {
	number := func(name string) int64 {
		n, err := strconv.ParseInt(s.Annotations["io.kubernetes.cri.sandbox-"+name], 10, 64)
		if err != nil || n < 0 {
			return 0
		}
		return n
	}
	return api.Resources{MemoryBytes: number("memory"), CPUMillis: cpuMillis(number("cpu-quota"), uint64(number("cpu-period")))}
}

// annotatedVolumes are the volumes that annotations ask for.
func (c *ociConversion) annotatedVolumes() error {
	if kind, _ := PodOf(c.spec); kind == PodSandbox {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(c.spec.Annotations)) {
		if !strings.HasPrefix(key, AnnotationVolume) {
			continue
		}
		value, mine := c.forContainer(c.spec.Annotations[key])
		if !mine {
			continue
		}
		m, err := ParseMount("type=volume," + value)
		if err == nil && (m.Volume == nil || m.Volume.Source == "") {
			err = api.Errorf(api.KindInvalid, "want src=FILE")
		}
		if err == nil {
			err = c.addVolume(m.Volume)
		}
		if err != nil {
			return api.Errorf(api.KindOf(err), "annotation %s: %w", key, err)
		}
	}
	return nil
}

// forContainer takes container=NAME out of a volume's annotation, and says
// whether the volume is for this container.
func (c *ociConversion) forContainer(value string) (rest string, mine bool) {
	mine = true
	var kept []string
	for field := range strings.SplitSeq(value, ",") {
		name, ok := strings.CutPrefix(field, "container=")
		if !ok {
			kept = append(kept, field)
			continue
		}
		mine = slices.ContainsFunc(containerNameAnnotations, func(key string) bool { return c.spec.Annotations[key] == name })
	}
	return strings.Join(kept, ","), mine
}
