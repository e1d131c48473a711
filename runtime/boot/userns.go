// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/nsfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
)

// initialUserNamespaceInode is the number that Linux gives the first user
// namespace (PROC_USER_INIT_INO). Container engines compare it with that of
// /proc/self/ns/user: another number tells them that they are in a user
// namespace, with all the restrictions that would come with it. gVisor numbers
// its namespaces from one.
const initialUserNamespaceInode = 0xEFFFFFFD

// numberUserNamespace gives the first user namespace Linux' number.
func (sb *sandbox) numberUserNamespace() {
	ctx := sb.k.SupervisorContext()
	// The mount of the namespaces' file system is reached through one of them.
	vd := sb.k.RootNetworkNamespace().GetInode().VirtualDentry()
	defer vd.DecRef(ctx)
	inode := nsfs.NewInode(ctx, vd.Mount(), sb.userns)
	inode.InodeAttrs.Init(ctx, auth.CredentialsFromContext(ctx), inode.DevMajor(), inode.DevMinor(), initialUserNamespaceInode, inode.Mode())
	sb.userns.SetInode(inode)
}
