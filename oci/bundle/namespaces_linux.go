// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// namespaceKinds are what the kernel calls the types of namespaces.
var namespaceKinds = map[specs.LinuxNamespaceType]int{
	specs.PIDNamespace: unix.CLONE_NEWPID, specs.NetworkNamespace: unix.CLONE_NEWNET, specs.MountNamespace: unix.CLONE_NEWNS,
	specs.IPCNamespace: unix.CLONE_NEWIPC, specs.UTSNamespace: unix.CLONE_NEWUTS, specs.UserNamespace: unix.CLONE_NEWUSER,
	specs.CgroupNamespace: unix.CLONE_NEWCGROUP, specs.TimeNamespace: unix.CLONE_NEWTIME,
}

// CheckNamespaces refuses paths that lead to no namespace of the type they are
// given for: the specification demands it, whether the path is used or not.
func (b *Bundle) CheckNamespaces() error {
	if b.Spec.Linux == nil {
		return nil
	}
	for _, ns := range b.Spec.Linux.Namespaces {
		if ns.Path == "" {
			continue
		}
		if err := checkNamespace(ns); err != nil {
			return err
		}
	}
	return nil
}

func checkNamespace(ns specs.LinuxNamespace) error {
	fd, err := unix.Open(ns.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return fileError(fmt.Sprintf("%s namespace: open %s", ns.Type, ns.Path), err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fileError(fmt.Sprintf("%s namespace: %s", ns.Type, ns.Path), err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return api.Errorf(api.KindInvalid, "%s namespace: %s is no namespace", ns.Type, ns.Path)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if errors.Is(err, unix.ENOTTY) {
		return nil // A kernel that does not tell.
	}
	if err != nil {
		return fileError(fmt.Sprintf("%s namespace: %s", ns.Type, ns.Path), err)
	}
	if kind != namespaceKinds[ns.Type] {
		return api.Errorf(api.KindInvalid, "%s namespace: %s is a namespace of another type", ns.Type, ns.Path)
	}
	return nil
}
