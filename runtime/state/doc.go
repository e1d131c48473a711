// SPDX-License-Identifier: Apache-2.0

// Package state keeps the containers of one user: a record each, on disk,
// below one root directory, with their names and the knowledge of who is
// alive. FORMAT.md describes the files.
//
// It owns records, names and states. It never starts, signals or removes a
// sandbox process, and it never takes a record's word that something runs:
// what runs is what holds a lock.
//
// # Life of a record
//
// [Store.Create] enters a container and returns a [Handle] that holds the
// container's lock for as long as its launcher lives; through it the launcher
// moves the container from state to state ([Handle.Update]). Anyone else reads
// ([Store.Get], [Store.List]) or removes what has stopped ([Store.Remove]). A
// launcher that dies drops the lock with its process, however it died; from
// then on the record reads as stopped, with the reason.
//
// # Locks
//
// Advisory whole-file locks, which end with their process. In the order in
// which they are taken:
//
//  1. ROOT/lock, exclusive: the right to add and remove containers and names.
//     Held for a few system calls; never while waiting for anything.
//  2. ROOT/containers/ID/lock, exclusive: this container's launcher lives.
//     Whoever holds 1 only ever tries it.
//
// A record is changed by the holder of its container's lock alone, and
// replaced atomically: readers take no lock.
package state
