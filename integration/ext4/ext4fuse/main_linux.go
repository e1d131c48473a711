// SPDX-License-Identifier: Apache-2.0

// Command ext4fuse mounts a volume of ext4lite by FUSE, so that suites written
// for kernel file systems can be run over the library. It is for tests: gvx
// itself never mounts anything on the host.
//
//	ext4fuse [flags] VOLUME FOLDER
//
// It says "mounted" on standard output when the mount can be used, and ends
// when the folder is unmounted; SIGTERM and SIGINT unmount it. Root is needed:
// every user of the machine reaches the mount, with set-user-ID and device
// files, and the kernel checks permissions by owner and mode.
//
// The kernel keeps names but not attributes, so that each stat shows what the
// library has.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "ext4fuse: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	durable := flag.Bool("host", false, "syncs wait for the disk")
	ranges := flag.Bool("range-sync", false, "a sync waits for its own file's data only")
	discard := flag.Bool("discard", false, "give freed blocks back to the host")
	options := flag.String("o", "", "options of the mount: ro, nosuid, nodev, noexec; others are passed to the kernel")
	debug := flag.Bool("debug", false, "print every request")
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		return fmt.Errorf("a volume and a folder are needed")
	}
	o := ext4lite.Options{Durability: ext4lite.Process, RangeSync: *ranges, Discard: *discard,
		OnReadOnly: func(why error) { fmt.Fprintf(os.Stderr, "ext4fuse: the volume takes no more changes: %v\n", why) }}
	if *durable {
		o.Durability = ext4lite.Host
	}
	flags, rest := mountFlags(*options)
	o.ReadOnly = flags&unix.MS_RDONLY != 0
	fs, err := ext4lite.OpenFile(flag.Arg(0), o)
	if err != nil {
		return err
	}
	server, err := mount(fs, flag.Arg(1), fuse.MountOptions{
		AllowOther: true, Options: append([]string{"default_permissions"}, rest...), DirectMountStrict: true, DirectMountFlags: flags | unix.MS_MGC_VAL,
		FsName: flag.Arg(0), Name: "ext4lite", MaxWrite: 1 << 20, DisableReadDirPlus: true, Debug: *debug,
	})
	if err != nil {
		fs.Close()
		return fmt.Errorf("mount %s: %w", flag.Arg(1), err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for range signals {
			for server.Unmount() != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	fmt.Println("mounted")
	server.Wait()
	return fs.Close()
}

// mountFlags sorts mount(8)'s options into flags of mount(2) and the rest.
func mountFlags(options string) (flags uintptr, rest []string) {
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "ro":
			flags |= unix.MS_RDONLY
		case "nosuid":
			flags |= unix.MS_NOSUID
		case "nodev":
			flags |= unix.MS_NODEV
		case "noexec":
			flags |= unix.MS_NOEXEC
		case "", "rw", "suid", "dev", "exec", "allow_other", "default_permissions":
		default:
			rest = append(rest, option)
		}
	}
	return flags, rest
}

func mount(fs *ext4lite.FS, dir string, o fuse.MountOptions) (*fuse.Server, error) {
	v := &volume{RawFileSystem: fuse.NewDefaultRawFileSystem(), fs: fs, nodes: map[uint64]*node{}}
	root, err := fs.Root()
	if err != nil {
		return nil, err
	}
	v.nodes[fuse.FUSE_ROOT_ID] = &node{Inode: root, lookups: 1}
	server, err := fuse.NewServer(v, dir, &o)
	if err != nil {
		return nil, err
	}
	go server.Serve()
	return server, server.WaitMount()
}
