// SPDX-License-Identifier: Apache-2.0

// Package images is the content-addressed image store: one directory that all
// sandboxes of a user (or of root) share, holding every image as a stack of
// read-only EROFS files whose pages the host caches once.
//
// It owns what is below its root directory (FORMAT.md describes each file),
// the conversion of layers into it, the names of images, the pins that keep
// files of running sandboxes, and garbage collection. It never talks to a
// registry itself (oci/image does), never interprets a tar or EROFS byte
// (oci/layer and oci/erofs do), never starts a sandbox, and keeps no state in
// memory that another process would need.
//
// # Life cycle
//
// [Store.Pull] resolves a reference, converts the layers that the store lacks,
// and then publishes the image record and its names in one short critical
// section. [Store.Get] and [Store.Pin] are the way to a run: a few small
// files read and the layers opened, with no directory scan and no store lock.
// [Store.Remove] and [Store.Prune] take away names, then records, then files.
//
// # Crashes
//
// Every file is written as tmp/KIND-RANDOM, flushed, renamed to its place, and
// the directory flushed; nothing below any other directory is ever written in
// place. References point only at what is already durable: a name at an image
// record, a record at layers, so that a process killed between two steps
// leaves unreferenced files (which Prune collects), never a dangling one. A
// temporary file carries a shared lock for as long as its writer lives; one
// that nobody locks is the debris of a dead process and is removed by the next
// one that opens the store for writing.
//
// # Locks
//
// All locks are advisory whole-file locks (flock; LockFileEx on Windows), so
// the kernel drops them with the process. In the order in which they are
// taken:
//
//  1. locks/HEX, exclusive: the right to convert the layer with that diff ID.
//     At most one is held by a goroutine; others wait, until it is done or
//     their context is.
//  2. A layer file and an image record, shared: a pin. The descriptor of a
//     layer is donated to the sandbox, and with it the pin.
//  3. lock, exclusive: the right to change records and names and to collect.
//     Held for milliseconds, never across network or conversion.
//
// The collector holds 3 and wants 1 and 2 exclusively; it only ever tries, so
// that this order cannot deadlock. Whoever takes 1 or 2 checks afterwards that
// the path still leads to the file it locked, since a collector may have
// removed it in between.
package images
