// SPDX-License-Identifier: Apache-2.0

// The gofer: what it may do, and what a sandbox needs to talk to it.

package policy

import "golang.org/x/sys/unix"

// treesEntries are a sandbox' side. sendmsg is what must never reach a socket of the
// broker's, so it is tied to the gofer's sockets by their numbers.
func treesEntries() []Entry {
	return []Entry{
		{"sendmsg", args(from(0, TreesFD), is(2, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)), "gofer: requests, on its sockets and no others", ""},
		{"recvmsg", args(descriptor(0), is(2, unix.MSG_DONTWAIT|unix.MSG_TRUNC)), "gofer: answers, and the files that come with them, on its sockets and on those of channels", ""},
		{"fcntl", args(descriptor(0), is(1, unix.F_SETFL), is(2, unix.O_RDWR|unix.O_NONBLOCK)), "gofer: that event does not block; nothing else about a descriptor changes", ""},
		{"shutdown", args(from(0, TreesFD), is(1, unix.SHUT_RDWR)), "gofer: a tree that was unmounted is hung up on", ""},
		{"dup3", args(descriptor(0), descriptor(1), is(2, unix.O_CLOEXEC)), "gofer: a file that was open to be read is open to be written too; never onto the numbers of its sockets, which lie above the limit on open files", ""},
		{"eventfd2", args(is(0, 0)), "gofer: a tree that is mounted later has an event for its end", ""},
	}
}

// GoferTable returns the gofer's entries for an architecture. What takes a path
// here takes a name in a directory that is open, or a descriptor's number: the
// process' root is empty.
func GoferTable(arch Arch) []Entry {
	return join(arch, runtimeEntries(), memoryEntries(), channelEntries(), dataEntries(), nameEntries(arch), attributeEntries())
}

// channelEntries are how requests come and answers go.
func channelEntries() []Entry {
	return []Entry{
		{"recvmsg", args(descriptor(0), is(2, unix.MSG_DONTWAIT|unix.MSG_TRUNC)), "requests", ""},
		{"sendmsg", args(descriptor(0), anyOf(2, 0, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)), "answers, and files that come with them: its only sockets are those to the sandbox", ""},
		{"socketpair", args(is(0, unix.AF_UNIX), is(1, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC), is(2, 0)), "a channel's way for files: both ends, connected to nobody else", ""},
		{"shutdown", args(descriptor(0), is(1, unix.SHUT_RDWR)), "the end of a connection", ""},
		{"ppoll", nil, "waits for requests", ""},
		{"fcntl", args(anyOf(1, unix.F_DUPFD_CLOEXEC, unix.F_GETFL, unix.F_SETFL)), "a file to give away is duplicated, and does not block", ""},
		{"dup", nil, "a channel's memory is given away", ""},
	}
}

// dataEntries work on open files.
func dataEntries() []Entry {
	return []Entry{
		{"read", nil, "the hello; events", ""},
		{"write", nil, "the log; events", ""},
		{"pread64", nil, "a guest reads a file that was not given away", ""},
		{"pwrite64", nil, "a guest writes one", ""},
		{"close", nil, "everything opened", ""},
		{"ftruncate", nil, "a guest cuts a file; the memory of channels grows", ""},
		{"fallocate", nil, "a guest's fallocate", ""},
		{"fsync", nil, "a guest's fsync", ""},
		{"getdents64", nil, "a guest lists a directory", ""},
		{"lseek", args(descriptor(0), is(1, 0), is(2, unix.SEEK_SET)), "a guest lists it again", ""},
		{"fstatfs", nil, "a guest's statfs", ""},
	}
}

// Flags of open(2) whose value is not the same everywhere.
var openFlags = map[Arch]struct{ directory, nofollow uint64 }{
	AMD64: {0x10000, 0x20000},
	ARM64: {0x4000, 0x8000},
}

// nameEntries find names, make, move and remove them. No name is followed but the
// process' own descriptors.
func nameEntries(arch Arch) []Entry {
	flags := openFlags[arch]
	// All that openat is asked for. Without O_NOFOLLOW it is the number of a
	// descriptor, in the working directory.
	const data = unix.O_ACCMODE | unix.O_NONBLOCK | unix.O_PATH
	named := data | flags.directory | unix.O_CREAT | unix.O_EXCL
	const numbered = data | unix.O_TRUNC | unix.O_NOCTTY
	return []Entry{
		{"openat", args(descriptor(0), masked(2, ^named, flags.nofollow|unix.O_CLOEXEC)), "a name in a directory, never followed", ""},
		{"openat", args(workingDirectory(0), masked(2, ^uint64(numbered), unix.O_CLOEXEC)), "a file by its descriptor, to read or write it", ""},
		{"mkdirat", args(descriptor(0)), "a guest's mkdir", ""},
		{"mknodat", args(descriptor(0), masked(2, unix.S_IFMT, unix.S_IFCHR), is(3, 0)), "an overlay's whiteout in a guest, which is no device: number zero", ""},
		{"symlinkat", args(descriptor(1)), "a guest's symlink", ""},
		{"linkat", args(workingDirectory(0), descriptor(2), is(4, unix.AT_SYMLINK_FOLLOW)), "a guest's link to a file by its descriptor", ""},
		{"unlinkat", args(descriptor(0)), "a guest's unlink and rmdir", ""},
		{"renameat2", args(descriptor(0), descriptor(2)), "a guest's rename", ""},
		{"readlinkat", args(descriptor(0)), "a guest's readlink", ""},
	}
}

// attributeEntries are about what a file is, and whose.
func attributeEntries() []Entry {
	return []Entry{
		{"statx", args(descriptor(0)), "a guest's stat", ""},
		{"fchmodat", args(workingDirectory(0)), "a guest's chmod, by descriptor", ""},
		{"fchownat", args(descriptor(0), is(4, unix.AT_EMPTY_PATH)), "a guest's chown, and the owner of what it makes", ""},
		{"utimensat", args(workingDirectory(0), is(3, 0)), "a guest's utimensat, by descriptor", ""},
		{"getxattr", nil, "a guest's getxattr, by descriptor", ""},
		{"setxattr", nil, "a guest's setxattr, by descriptor", ""},
		{"listxattr", nil, "a guest's listxattr, by descriptor", ""},
		{"removexattr", nil, "a guest's removexattr, by descriptor", ""},
	}
}

// masked compares the bits of mask.
func masked(arg int, mask, value uint64) Cond {
	return Cond{Arg: arg, Op: Masked, Mask: mask, Value: value}
}

// workingDirectory is AT_FDCWD, as Go passes it: sign-extended.
func workingDirectory(arg int) Cond { return is(arg, ^uint64(99)) }
