// SPDX-License-Identifier: Apache-2.0

// Package task is containerd's task service, version 3, for sandboxes: the calls
// by which containerd creates, starts, watches and deletes the containers of one
// shim, and the events that it tells containerd of. The sandbox API is beside it:
// with that, the shim makes a pod's sandbox before there is any container, and ends
// with it.
//
// # Life of a task
//
//	Create ─► created ─► Start ─► running ⇄ paused ─► stopped ─► Delete
//	              └────────── Kill, or the sandbox died ──┘
//
// Events of one container are queued in this order, whatever the calls' timing:
//
//	create → start → (exec-added → exec-started → exit of the exec)* → (oom) → exit → delete
//
// A container's own exit comes after the exits of all its execs; an exit is on
// disk in the bundle before it is told, so that it survives the shim.
//
// # What it never does
//
// It knows nothing of sandbox processes, descriptors or mounts: those are behind
// the interface [Runtime]. It starts no process and never exits by itself: the
// shim's main program does, when Shutdown finds no task. Errors below it are of
// runtime/api's kinds; only here they become containerd's.
//
// # Locks
//
// Service.mu guards the table of tasks and is never held over a call to the
// runtime. task.mu guards a task's state and its execs; the order of events
// comes from queueing them under it. Nothing waits for a guest under task.mu.
package task
