// SPDX-License-Identifier: Apache-2.0

// `rungv files`: what a program wants to know of single files of a container.

package cli

import (
	"os"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/treecopy"
)

// newFilesCommand makes a verb for programs; people have `rungv exec`, which
// needs programs in the image.
func newFilesCommand(g *globals) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "files stat|list|remove|mkdir CONTAINER PATH",
		Short: "Look at, remove or make single files of a running container",
		Long: `For programs: stat and list print a line of JSON for a file, or for each file of
a directory; remove removes a file or tree; mkdir makes a directory and those
above it. A process inside the container does it, as root.`,
		Example: "  rungv files list box /etc",
		Args:    exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			do := treecopy.Do(args[0])
			switch do {
			case treecopy.DoStat, treecopy.DoList, treecopy.DoRemove, treecopy.DoMkdir:
			default:
				return api.Errorf(api.KindInvalid, "unknown job %q: want stat, list, remove or mkdir", args[0])
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			ctx, stop := g.caller.context(cmd.Context())
			defer stop()
			return r.Files(ctx, args[1], do, args[2], follow, os.Stdout)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow-link", "L", false, "Follow a symbolic link")
	return cmd
}
