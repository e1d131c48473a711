// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"sync"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/nsfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"

	"z.gfire.dev/gvx/runtime/api"
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

// userNamespaces are those that containers have been given: containers of one
// sandbox with the same mappings are in the same one, as those of a pod are.
type userNamespaces struct {
	mu sync.Mutex
	// made are by the text of their mappings.
	made map[string]*auth.UserNamespace
}

// of returns the user namespace that a container is to be in, and makes it where
// it is missing: the sandbox's, unless the spec asks for one.
func (u *userNamespaces) of(root *auth.UserNamespace, spec *api.UserNamespace) (*auth.UserNamespace, error) {
	if spec == nil {
		return root, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	key := fmt.Sprint(*spec)
	if ns := u.made[key]; ns != nil {
		return ns, nil
	}
	creds := auth.NewRootCredentials(root)
	ns, err := creds.NewChildUserNamespace()
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	ctx := auth.ContextWithCredentials(context.Background(), creds)
	if err := ns.SetUIDMap(ctx, idMap(spec.UIDs)); err != nil {
		return nil, api.Errorf(api.KindInvalid, "user namespace: uids %v: %w", spec.UIDs, err)
	}
	if err := ns.SetGIDMap(ctx, idMap(spec.GIDs)); err != nil {
		return nil, api.Errorf(api.KindInvalid, "user namespace: gids %v: %w", spec.GIDs, err)
	}
	if u.made == nil {
		u.made = make(map[string]*auth.UserNamespace)
	}
	u.made[key] = ns
	return ns, nil
}

func idMap(list []api.IDMapping) []auth.IDMapEntry {
	out := make([]auth.IDMapEntry, len(list))
	for i, m := range list {
		out[i] = auth.IDMapEntry{FirstID: m.Inside, FirstParentID: m.Outside, Length: m.Size}
	}
	return out
}

// takeUserNamespace puts a container into its user namespace.
func (sb *sandbox) takeUserNamespace(c *container) error {
	ns, err := sb.usernses.of(sb.userns, c.spec.Namespaces.User)
	if err != nil {
		return err
	}
	c.userns = ns
	if inode := ns.TryGetInode(); inode != nil {
		inode.DecRef(sb.k.SupervisorContext())
		return nil
	}
	// What /proc shows of it.
	ns.SetInode(sb.namespaceInode(ns))
	return nil
}

// containerRoot are the credentials of a user namespace's root, with all that it
// may do there.
func containerRoot(ns *auth.UserNamespace) *auth.Credentials {
	all := &auth.TaskCapabilities{PermittedCaps: auth.AllCapabilities, EffectiveCaps: auth.AllCapabilities, BoundingCaps: auth.AllCapabilities}
	uid, gid := ns.MapToKUID(auth.RootUID), ns.MapToKGID(auth.RootGID)
	if !uid.Ok() {
		uid = auth.RootKUID
	}
	if !gid.Ok() {
		gid = auth.RootKGID
	}
	return auth.NewUserCredentials(uid, gid, nil, all, ns)
}

// credentials are those of a process, whose ids its user namespace has to map.
func credentials(ns *auth.UserNamespace, acc *account, caps *auth.TaskCapabilities) (*auth.Credentials, error) {
	uid, gid := ns.MapToKUID(auth.UID(acc.uid)), ns.MapToKGID(auth.GID(acc.gid))
	if !uid.Ok() {
		return nil, api.Errorf(api.KindInvalid, "uid %d has no mapping in the user namespace", acc.uid)
	}
	if !gid.Ok() {
		return nil, api.Errorf(api.KindInvalid, "gid %d has no mapping in the user namespace", acc.gid)
	}
	groups := make([]auth.KGID, len(acc.groups))
	for i, g := range acc.groups {
		if groups[i] = ns.MapToKGID(auth.GID(g)); !groups[i].Ok() {
			return nil, api.Errorf(api.KindInvalid, "gid %d has no mapping in the user namespace", g)
		}
	}
	return auth.NewUserCredentials(uid, gid, groups, caps, ns), nil
}
