// SPDX-License-Identifier: Apache-2.0

// Package lockdown is what stands between a sandbox process and the host once
// the Sentry inside it is taken to be hostile. It owns the seccomp filter, the
// reduction of privileges, and the outer layers (namespaces, Landlock, uid)
// that a launcher puts around the process where the host offers them. It never
// weakens a layer to make something work, and it knows nothing of guests,
// images or containers.
//
// # Order
//
// The launcher, before the sandbox process exists:
//
//  1. [DetectGVisor]: refuse at once inside another gVisor.
//  2. [PlanOuter]: what this user may do on this host.
//  3. [Outer.Apply]: fork from a thread of its own that Landlock has restricted,
//     into new namespaces, with a dropped or mapped uid and a new session. The
//     environment is empty and the descriptors are only the donated ones: the
//     caller sees to that.
//
// The sandbox process, in this order:
//
//  1. [Shed], before it reads anything that an image or a guest has shaped:
//     no_new_privs, stray descriptors closed, an empty root where the launcher
//     gave it a mount namespace, no capabilities, no core dumps. It must come
//     before the platform: stubs inherit what is left, and a process cannot
//     attach to a stub that holds a capability it lacks.
//  2. [AvoidNotify]: under a parent with a seccomp-notify listener systrap would
//     panic.
//  3. The platform and everything else that needs more than the filter grants.
//  4. [Filter], which may run beside the others.
//  5. [Seal]: not dumpable (earlier, the platform could not attach to its first
//     stubs), all layers read back from the kernel, and the allow-list on all
//     threads. From here on the process can open nothing, connect to nobody
//     and execute nothing.
//
// The gofer, which opens files for a sandbox, goes the same way with less to lose:
// [PlanGofer] and [Detach] in the launcher; in the process [Detach] again where the
// launcher could not, [Shed] with what it keeps, [RestrictFiles] and [SealGofer]. It
// has no platform, so that all of it comes before it reads a request.
//
// Package policy holds the allow-lists as data, with a reason for every entry.
package lockdown

//go:generate go run ./internal/gen
