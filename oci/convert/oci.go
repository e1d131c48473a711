// SPDX-License-Identifier: Apache-2.0

// What an OCI bundle means for a guest. As with docker's words the conversion is
// pure: paths of the host are compared and joined, never looked at.

package convert

import (
	"fmt"
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// OCIInput is everything that the meaning of a bundle depends on.
type OCIInput struct {
	// ID is the container's.
	ID string
	// Spec is the bundle's document, checked by package bundle. It is only read.
	Spec *specs.Spec
	// Dir is the bundle's directory, which relative paths are below.
	Dir string
	// Rootfs is the root's directory on the host; "" leaves Container.Rootfs to
	// who has layers for it.
	Rootfs string
	// HostName is the host's, which a container without one of its own shows.
	HostName string
	// HostNetwork says that containers may ask for the host's network.
	HostNetwork bool
	// Joins is the id of the sandbox that the container becomes part of; ""
	// makes a sandbox for it.
	Joins string
	// ContainerOf says which container of that sandbox a namespace's path
	// belongs to; nil knows none.
	ContainerOf func(t specs.LinuxNamespaceType, path string) (id string, ok bool)
	// SizeOf is the size of the host's file system that holds a path, 0 if
	// unknown; nil knows none. It is asked for shared memory only.
	SizeOf func(path string) int64
	// Submounts are the places below a directory of the host where others are
	// mounted, parents first; nil knows none.
	Submounts func(dir string) []string
}

// maxSubmounts bounds the mounts below a read-only one that are made one by one.
const maxSubmounts = 64

// OCI is what a bundle means.
type OCI struct {
	// Sandbox is the spec of the new sandbox, whose Container is the bundle's;
	// nil where the container joins one.
	Sandbox *api.Sandbox
	// Container is the bundle's, also where it is part of Sandbox.
	Container *api.Container
	// Network is what the network of a new sandbox is made of.
	Network OCINetwork
	// Volumes are those to be opened; the mount of each is the one with its
	// target.
	Volumes []VolumeMount
	// Cores bounds the processors that the guest sees; 0 is no bound.
	Cores int
	// PrivateRoot says that the container needs a writable layer above the directory
	// that is its root.
	PrivateRoot bool
	// Notes say what of the bundle has no meaning, or another one, in a guest.
	Notes []string
	// Warnings say what runc, too, says of the bundle on its standard error.
	Warnings []string
}

// OCINetworkKind says where a container's network comes from.
type OCINetworkKind string

// The kinds of network that a bundle can ask for.
const (
	// NetworkOfItsOwn is a new network namespace.
	NetworkOfItsOwn OCINetworkKind = "new"
	// NetworkOfPath is the one at OCINetwork.Path.
	NetworkOfPath OCINetworkKind = "path"
	// NetworkOfHost is that of whoever runs the runtime.
	NetworkOfHost OCINetworkKind = "host"
)

// OCINetwork is where a container's network comes from.
type OCINetwork struct {
	Kind OCINetworkKind
	Path string
}

// ociConversion is a conversion under way.
type ociConversion struct {
	in    *OCIInput
	spec  *specs.Spec
	linux *specs.Linux
	out   *OCI
	// container is out.Container.
	container *api.Container
	// open says that the guest shall have all that its own kernel can give.
	open bool
}

// FromOCI returns what a bundle means. Descriptors are [api.NoFD], host
// directories are named by [api.HostTree.Name], network links are missing: who
// starts the sandbox fills them in.
func FromOCI(in OCIInput) (*OCI, error) {
	c := &ociConversion{in: &in, spec: in.Spec, linux: in.Spec.Linux, out: &OCI{}, container: &api.Container{}}
	if c.linux == nil {
		c.linux = &specs.Linux{}
	}
	c.open = in.Spec.Annotations[AnnotationPrivileged] == "true"
	*c.container = api.Container{
		ID: in.ID, Explicit: true, InitFD: api.NoFD, Rootfs: api.Rootfs{ReadOnly: in.Spec.Root.Readonly},
	}
	c.out.Container = c.container
	for _, step := range []func() error{c.root, c.process, c.mounts, c.devices, c.namespaces, c.guards, c.kernel, c.resources} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if in.Joins == "" {
		c.sandbox()
	}
	return c.out, nil
}

func (c *ociConversion) note(format string, args ...any) {
	c.out.Notes = append(c.out.Notes, fmt.Sprintf(format, args...))
}

// root is the root file system.
func (c *ociConversion) root() error {
	if c.in.Rootfs == "" {
		return nil
	}
	c.container.Rootfs.Host = &api.HostTree{FD: api.NoFD, Name: c.in.Rootfs}
	switch mode := c.spec.Annotations[AnnotationRootfs]; mode {
	case "", RootfsShared:
	case RootfsExclusive:
		c.container.Rootfs.Host.Exclusive = true
	case RootfsPrivate:
		// Nothing goes through to the directory, and it may be cached.
		c.container.Rootfs.Host.Exclusive, c.out.PrivateRoot = true, true
	default:
		return api.Errorf(api.KindInvalid, "annotation %s: %q: want %s (the default), %s or %s", AnnotationRootfs, mode, RootfsShared, RootfsExclusive, RootfsPrivate)
	}
	return nil
}

// sandbox makes the sandbox of a container that joins none.
func (c *ociConversion) sandbox() {
	resources := c.container.Resources
	if kind, _ := PodOf(c.spec); kind == PodSandbox {
		// The pause container's own limits are not those of the pod.
		resources = podResources(c.spec)
	}
	c.out.Sandbox = &api.Sandbox{
		Version: api.SpecVersion, ID: c.in.ID,
		Hostname: c.container.Hostname, Domainname: c.container.Domainname,
		Network:   api.Network{Mode: api.NetworkNetns, BrokerFD: api.NoFD},
		Resources: resources,
		ControlFD: api.NoFD, ListenFD: api.NoFD, StreamsFD: api.NoFD,
	}
	if c.out.Network.Kind == NetworkOfHost {
		c.out.Sandbox.Network.Mode = api.NetworkHost
	}
	c.out.Sandbox.Container = *c.container
	c.out.Container = &c.out.Sandbox.Container
}

// hostPath makes a source absolute: relative ones are below the bundle.
func (c *ociConversion) hostPath(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(c.in.Dir, p)
}
