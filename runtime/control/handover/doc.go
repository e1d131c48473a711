// SPDX-License-Identifier: Apache-2.0

// Package handover is how a sandbox process gets what it is made of: a head
// start at its birth, and later, when the launcher has found the image, its
// spec and every file that the spec names.
//
// It owns the order and the form of these messages, and both ends of the socket
// they travel on. [SendFiles] is for others who hand files over too. It starts no
// process, opens no file and knows nothing about what it carries but the numbers of
// descriptors.
//
// # Transport
//
// One connected unix socket of type SOCK_SEQPACKET, of which the process inherits
// its end. A message is a packet: a byte that says its kind, and a body.
//
//	kind  body           descriptors
//	'h'   HeadStart      none            first, once
//	'f'   none           1 to 253        any number of times: files
//	's'   none           1: the spec     last, once
//
// HeadStart is JSON; the spec is JSON too, in a sealed memory file. A number in
// the spec is not yet a descriptor: FirstNumber stands for the first file that
// was handed over, FirstNumber+1 for the second, and so on in the order of
// arrival. [Receiver.Spec] puts the descriptors in their place.
//
// A launcher that ends before the spec leaves the end of the stream: the process
// has nothing to do, and ends as well.
package handover

import "z.gfire.dev/gvx/runtime/api"

const (
	// FirstNumber is the number of the first file in a spec that travels.
	FirstNumber = 4

	// maxHeadStartBytes bounds the head start, a few hundred bytes.
	maxHeadStartBytes = 16 << 10

	// batchFiles is the kernel's limit on descriptors in one message
	// (SCM_MAX_FD).
	batchFiles = 253

	// maxFiles bounds what a process takes: all layers, and the files of
	// volumes on all mounts.
	maxFiles = 64 + api.MaxLayers + api.MaxMounts*api.MaxVolumeFiles
)

// Kinds of message.
const (
	kindHeadStart = 'h'
	kindFiles     = 'f'
	kindSpec      = 's'
)
