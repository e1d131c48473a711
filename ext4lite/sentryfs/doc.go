// SPDX-License-Identifier: Apache-2.0

// Package sentryfs is the one adapter through which gVisor's Sentry serves the
// file-system formats of gvx. The Sentry's half (dentries, inodes, path walk,
// permissions, locks, inotify, memory mapping, save and restore) is written
// once here; a format is a [Volume]: EROFS images, which never change, and ext4
// volumes, which are a [WritableVolume].
//
// It owns the files that a sandbox was given for its volumes, from mount to
// release. It never opens anything on the host by name, never writes to an
// image, and never trusts a byte of one: whatever a volume says is checked, and
// nonsense becomes EUCLEAN or EIO in the guest, with one line in the log.
//
// # Where file data lives
//
// In the host's page cache, once. A volume's file is mapped whole into the
// Sentry when it is mounted; guests map the same pages ([HostFile] is the
// memmap.File), read(2) copies from them, and so does every metadata read.
// Three kinds of guest pages cannot be a page of the file: holes, which all
// share one run of zero pages; pages whose bytes are not page aligned in the
// file (inline tails, blocks of 512 bytes); and last pages with something other
// than zeros behind the end of the file. The last two, which only EROFS has, are
// copied into the Sentry's memory file, counted, bounded, and given back with
// the inode. In a volume that changes pages move, too: see movable.go.
//
// # Dentries and inodes
//
// A dentry is a name in a directory, cached under (parent, name). A path walk
// over cached names takes one shard's read lock and two reference counts a
// component, and no list is touched: the cache evicts by second chance, looking
// only when a new name is added. Names known not to exist are cached too, since
// an overlay asks every layer for every name. An inode is what names point to:
// hard links share it, and with it the mappings, the locks and the watches.
// What only opened files need is allocated when one is opened.
//
// Whoever changes a directory's names holds its inode's dirMu over the change of
// the volume and of the cache; a lookup that has to ask the volume holds it for
// reading. So the cache never says what the volume did not say at that moment.
//
// A directory that contains one of its own ancestors, which only a forged image
// can say, is ELOOP: so a chain of parents is never longer than the image has
// directories.
//
// # Lock order
//
//	filesystem.renameMu
//	  inode.dirMu (two of them only under renameMu)
//	    vfs.VirtualFilesystem.mountMu, vfs.Dentry.mu
//	      filesystem.treeMu
//	        vfs.Watches.mu
//	      dentryShard.mu
//	regularFD.mu
//	  openState.writeMu
//	    inode.attrMu
//	      openState.mapsMu
//	        mm.MemoryManager.activeMu
//	          locks of a WritableVolume
//	            movable.mu, inodeTable.mu
//	          openState.copyMu
//	            copyPool.mu
//
// # System calls
//
// At mount: fstat, lseek, mmap, and what opening an ext4 volume takes. At run
// time: pread64 and preadv2, what ext4lite changes its files with, and what
// pgalloc itself needs for copied pages. At release: munmap, close. The platform
// maps the descriptors into guests with mmap.
package sentryfs
