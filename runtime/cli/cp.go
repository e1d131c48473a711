// SPDX-License-Identifier: Apache-2.0

// `rungv cp`.

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
)

type copyFlags struct {
	archive, follow, quiet bool
}

func newCopyCommand(g *globals) *cobra.Command {
	var f copyFlags
	cmd := &cobra.Command{
		Use:   "cp [OPTIONS] CONTAINER:SRC_PATH DEST_PATH|-\n  rungv cp [OPTIONS] SRC_PATH|- CONTAINER:DEST_PATH",
		Short: "Copy files/folders between a container and the local filesystem",
		Long: `Copy a file or directory into or out of a running container, with the rules of
'docker cp': a directory is copied as itself into one that exists, with a path
ending in /. its contents are, and - is a tar stream on standard input or
output.

A process inside the container reads or writes there, so that links lead nowhere
but into the container. On the host nothing is written outside of the
destination; devices and pipes are left out, and set-user-id bits are dropped.
Files copied out belong to whoever copies, files copied in to root, unless
--archive is given.`,
		Example: "  rungv cp ./src box:/src\n  rungv cp box:/var/log/. ./logs\n  rungv cp box:/etc - | tar tv",
		Args:    exactly(2),
		RunE:    func(cmd *cobra.Command, args []string) error { return runCopy(cmd, g, &f, args[0], args[1]) },

		ValidArgsFunction: completeCopy(g),
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.archive, "archive", "a", false, "Archive mode (copy all uid/gid information)")
	fl.BoolVarP(&f.follow, "follow-link", "L", false, "Always follow symbol link in SRC_PATH")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "Suppress what is said about a copy that worked")
	return cmd
}

// splitCopy tells CONTAINER:PATH from a path of the host, as docker does: one
// that is absolute or begins with a dot is the host's.
func splitCopy(arg string) (name, path string) {
	name, path, ok := strings.Cut(arg, ":")
	if filepath.IsAbs(arg) || !ok || strings.HasPrefix(name, ".") {
		return "", arg
	}
	return name, path
}

func runCopy(cmd *cobra.Command, g *globals, f *copyFlags, src, dest string) error {
	from, src := splitCopy(src)
	to, dest := splitCopy(dest)
	switch {
	case from != "" && to != "":
		return api.Errorf(api.KindInvalid, "copying between containers is not supported")
	case from == "" && to == "":
		return api.Errorf(api.KindInvalid, "must specify at least one container source")
	case src == "" || dest == "":
		return api.Errorf(api.KindInvalid, "source and destination can not be empty")
	}
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	var copied int64
	switch {
	case from != "" && dest == "-":
		if isTerminal(os.Stdout) {
			return api.Errorf(api.KindInvalid, "cowardly refusing to save to a terminal. Use a file or a pipe")
		}
		return r.CopyStreamOut(cmd.Context(), from, src, os.Stdout, f.follow)
	case to != "" && src == "-":
		return r.CopyStreamIn(cmd.Context(), to, os.Stdin, dest, f.archive)
	case from != "":
		copied, err = r.CopyOut(cmd.Context(), from, src, dest, f.follow, f.archive, func(name, why string) {
			g.warn("%s: left out: %s", control.Clean(name, maxNameShown), why)
		})
	default:
		copied, err = r.CopyIn(cmd.Context(), to, src, dest, f.follow, f.archive)
		dest = to + ":" + dest
	}
	if err == nil && !f.quiet && isTerminal(os.Stdout) {
		fmt.Fprintf(cmd.ErrOrStderr(), "Successfully copied %s to %s\n", units.HumanSize(float64(copied)), dest)
	}
	return err
}

// maxNameShown bounds a guest's file name in a message.
const maxNameShown = 256

// completeCopy completes NAME: beside the host's files.
func completeCopy(g *globals) cobra.CompletionFunc {
	names := completeContainers(g, isRunning)
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		list, _ := names(cmd, args, toComplete)
		for i := range list {
			list[i] += ":"
		}
		return list, cobra.ShellCompDirectiveNoSpace
	}
}
