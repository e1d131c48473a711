// SPDX-License-Identifier: Apache-2.0

// Package gofer is the process that serves directories and files of the host to
// a sandbox, which may open nothing itself. There is one for each container that
// has any, it ends with the sandbox, and it speaks gVisor's lisafs protocol on one
// socket for each tree.
//
// It owns what a request may reach. Requests come from a sandbox that may be
// taken over, names and contents also from whoever else can write to the trees, so:
//
//   - every operation starts at a descriptor and goes at most one name further, a
//     name without a slash that is never followed if it is a link. No path is ever
//     resolved: a directory that is exchanged for a link while it is walked leads
//     nowhere, and a link of /proc is text;
//   - descriptors stay what they were opened for. An inode whose type is neither
//     regular file nor directory is never opened, so no device is;
//   - what cannot belong to a tree is refused before the host is asked: device
//     nodes, foreign attributes, and for trees that say so all changes and set-id
//     bits.
//
// It never decides which directories are served, opens none by name, never
// follows a link, and makes no socket. Permissions inside the guest are checked by
// the Sentry; here the host's kernel checks those of the gofer itself.
//
// # Containment
//
// Should the process be taken over in turn: it has namespaces of its own and no
// network; its root is empty; each tree is, where the host lets it, a mount that
// is attached nowhere, above which there is nothing, on which devices cannot be
// opened and links not followed; Landlock allows it the trees alone; it has the
// capabilities of [lockdown.GoferCapabilities] as root and none outside its user
// namespace otherwise; and it makes the system calls of lockdown/policy's second
// table.
//
// # Owners
//
// As root, owners are the host's and those that the guest wants. As a user, all
// new files are this user's, whichever guest user makes them: see
// [api.GoferHello].
package gofer
