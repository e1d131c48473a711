// SPDX-License-Identifier: Apache-2.0

// `rungv volume`. Names, flags, columns and messages are docker's where docker
// has the thing.

package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/volumes"
)

// newVolumeCommand makes `rungv volume`.
func newVolumeCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume COMMAND",
		Short: "Manage volumes",
		Long: `Manage volumes: ext4 file systems in one file each, which 'rungv run' mounts with
-v and --mount, and which the host's kernel mounts too.

VOLUME is a name, for a volume in the store, or the path of a file: what has a
slash or ends in .ext4 or .delta. A clone is a file that holds only what differs
from its base; it is made in no time whatever the size of the base, and all
clones of a base share its memory. A base must not change while it has clones.`,
		Example: "  rungv volume create --size 20g data\n  rungv volume clone golden.ext4 episode.delta\n  rungv volume cp data:/etc/app.conf .",
		Args:    exactly(0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newVolumeCreateCommand(g), newVolumeListCommand(g), newVolumeInspectCommand(g), newVolumeRmCommand(g), newVolumePruneCommand(g),
		newVolumeCloneCommand(g), newVolumeFlattenCommand(g), newVolumeCommitCommand(g), newVolumeResizeCommand(g), newVolumeCompactCommand(g),
		newVolumeFsckCommand(g), newVolumeCpCommand(g), newVolumeCatCommand(g), newVolumePutCommand(g), newVolumeTreeCommand(g),
	)
	return cmd
}

// openVolumes opens the store of volumes that the global flags name. r names
// who has a volume that is in use.
func openVolumes(g *globals, r *container.Runner) (*volumes.Store, error) {
	root, err := volumesRoot(g)
	if err != nil {
		return nil, err
	}
	return volumes.New(root, volumes.Options{Holder: r.Holder, Warn: g.warn}), nil
}

// volumeStore is openVolumes for verbs, which have no runner yet.
func volumeStore(g *globals) (*volumes.Store, *container.Runner, error) {
	r, err := g.runner(false)
	if err != nil {
		return nil, nil, err
	}
	s, err := openVolumes(g, r)
	return s, r, err
}

// volumesRoot is beside the images: the disk that has room for them has room
// for volumes.
func volumesRoot(g *globals) (string, error) {
	if g.Root == "" {
		root, err := images.DefaultRoot()
		return filepath.Join(filepath.Dir(root), "volumes"), err
	}
	return filepath.Abs(filepath.Join(g.Root, "volumes"))
}

// completeVolumes completes names of volumes for the first n arguments, 0 for
// all, and names of files.
func completeVolumes(g *globals, n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if n > 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if g.setup() != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		s, _, err := volumeStore(g)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return s.Names(), cobra.ShellCompDirectiveDefault
	}
}

// eachVolume runs f for every volume named, prints the names for which it
// worked, and returns all errors.
func eachVolume(cmd *cobra.Command, s *volumes.Store, refs []string, f func(ctx context.Context, r volumes.Ref) error) error {
	var problems []error
	for _, ref := range refs {
		r, err := s.Resolve(ref)
		if err == nil {
			err = f(cmd.Context(), r)
		}
		switch {
		case err == nil:
			fmt.Fprintln(cmd.OutOrStdout(), ref)
		case err != errSaid:
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
