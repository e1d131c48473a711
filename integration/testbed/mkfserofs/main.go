// SPDX-License-Identifier: Apache-2.0

// Command mkfserofs stands in for mkfs.erofs in containerd's PATH, for hosts
// whose erofs-utils are older than 1.7 and cannot read a tar: containerd's erofs
// differ turns layers into images by
//
//	mkfs.erofs --tar=f --aufs --quiet -Enoinline_data -b4096 -U UUID IMAGE < TAR
//
// which this does with the project's own writer. Everything else is left to the
// host's mkfs.erofs. It belongs to the test bed, and is never part of what gvx
// installs.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/oci/layer"
)

// hostProgram is the program of the host's own package.
const hostProgram = "/usr/bin/mkfs.erofs"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkfserofs:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case slices.Contains(args, "--help"):
		// What containerd looks for before it offers the differ.
		fmt.Println("usage: mkfs.erofs --tar=f [options] FILE < TAR")
		return nil
	case slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--tar=") }):
		return fromTar(args)
	}
	// Old versions know no block size but 4096, and no option for it.
	args = slices.DeleteFunc(args, func(a string) bool { return a == "-b4096" })
	return syscall.Exec(hostProgram, append([]string{"mkfs.erofs"}, args...), os.Environ())
}

// fromTar writes the image that the last argument names, from the layer on
// standard input.
func fromTar(args []string) (err error) {
	if !slices.Contains(args, "--tar=f") {
		return fmt.Errorf("%q: of the tar modes there is only f", args)
	}
	path := args[len(args)-1]
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			os.Remove(path)
		}
	}()
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if _, err := layer.Convert(ctx, os.Stdin, b, layer.Limits{}); err != nil {
		return err
	}
	_, err = b.Finish(ctx)
	return err
}
