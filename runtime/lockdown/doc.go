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
//  2. [Probe]: what this user may do on this host; kept for later launches.
//  3. [Launch]: fork from a thread of its own that Landlock has restricted, into
//     new namespaces, with a dropped or mapped uid, an empty environment, a new
//     session and only the donated descriptors.
//
// The sandbox process, in this order:
//
//  1. [ApplyNotifyFallback], before the platform exists: a parent that holds a
//     seccomp-notify listener would make systrap panic.
//  2. The platform, and everything else that needs more than the filter grants.
//  3. [EmptyRoot], when the launcher gave it a mount namespace of its own. It
//     needs the capability that the next step takes away.
//  4. [Reduce]: no_new_privs, no capabilities, rlimits, not dumpable (before
//     the platform this would keep it from attaching to its stubs), no
//     descriptors but the donated ones.
//  5. [Verify]: which of these layers hold, by asking the kernel.
//  6. [Filter] and [Install]: the allow-list, on all threads. From here on the
//     process can open nothing, connect to nobody and execute nothing.
//
// Package policy holds the allow-list as data, with a reason for every entry.
package lockdown

//go:generate go run ./internal/gen
