// SPDX-License-Identifier: Apache-2.0

// volume clone, flatten, commit, resize and compact.

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/volumes"
)

func newVolumeCloneCommand(g *globals) *cobra.Command {
	var delta, reflink, full bool
	var mode string
	cmd := &cobra.Command{
		Use:   "clone [OPTIONS] VOLUME NEW",
		Short: "Clone a volume",
		Long: `Clone a volume and print the clone's name. NEW must not exist.

--delta, the default, makes a file that holds what will differ from VOLUME. It
takes the same time whatever the size, works on every file system, and all clones
share the memory of what they did not change. VOLUME must have been closed, and
must not change as long as the clone is used.

--reflink makes a volume of its own that shares blocks on the disk, where the
host's file system can (XFS, Btrfs).

--copy makes a volume of its own by copying.`,
		Example: "  rungv volume clone golden.ext4 episode-1.delta\n  rungv volume clone --reflink golden.ext4 episode-1.ext4\n  rungv volume clone --copy data data-backup",
		Args:    exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := volumeStore(g)
			if err != nil {
				return err
			}
			from, err := s.Resolve(args[0])
			if err != nil {
				return err
			}
			to, err := s.Resolve(args[1])
			if err != nil {
				return err
			}
			switch {
			case reflink:
				err = s.Reflink(from, to)
			case full:
				err = withProgress(cmd, mode, args[0], func(p volumes.Progress) error { return s.Copy(from, to, p) })
			default:
				err = s.CloneDelta(from, to)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), args[1])
			return err
		},
		ValidArgsFunction: completeVolumes(g, 1),
	}
	fl := cmd.Flags()
	fl.BoolVar(&delta, "delta", false, "Hold only what differs from the volume (the default)")
	fl.BoolVar(&reflink, "reflink", false, "Share blocks on the disk, on file systems that can")
	fl.BoolVar(&full, "copy", false, "Copy everything")
	cmd.MarkFlagsMutuallyExclusive("delta", "reflink", "copy")
	addProgressFlag(cmd, &mode)
	return cmd
}

func newVolumeFlattenCommand(g *globals) *cobra.Command {
	var mode string
	cmd := &cobra.Command{
		Use:   "flatten [OPTIONS] VOLUME [NEW]",
		Short: "Make a plain volume of a clone",
		Long: `Make a volume of its own out of a clone and its bases: in the clone's place, or
as NEW, which must not exist.`,
		Example: "  rungv volume flatten episode-1.delta\n  rungv volume flatten episode-1.delta golden-2.ext4",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := volumeStore(g)
			if err != nil {
				return err
			}
			from, err := s.Resolve(args[0])
			if err != nil {
				return err
			}
			to := from
			if len(args) == 2 {
				if to, err = s.Resolve(args[1]); err != nil {
					return err
				}
			}
			err = withProgress(cmd, mode, args[0], func(p volumes.Progress) error {
				if len(args) == 2 {
					return s.Copy(from, to, p)
				}
				return s.Flatten(from, p)
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), args[len(args)-1])
			return err
		},
		ValidArgsFunction: completeVolumes(g, 1),
	}
	addProgressFlag(cmd, &mode)
	return cmd
}

func newVolumeCommitCommand(g *globals) *cobra.Command {
	var mode string
	cmd := &cobra.Command{
		Use:   "commit [OPTIONS] VOLUME",
		Short: "Write what a clone changed into its base",
		Long: `Write what a clone changed into its base, remove the clone, and print the base's
name. The base must be a plain volume, have no other clone, and neither may be in
use. A commit that was cut short is finished by calling it again; until then
neither volume is of use.`,
		Example: "  rungv volume commit episode-1.delta",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, r, err := volumeStore(g)
			if err != nil {
				return err
			}
			v, err := s.Resolve(args[0])
			if err != nil {
				return err
			}
			if err := unusedVolume(r, v); err != nil {
				return fmt.Errorf("commit %s: %w", v, err)
			}
			var base volumes.Ref
			err = withProgress(cmd, mode, args[0], func(p volumes.Progress) (err error) {
				base, err = s.Commit(v, p)
				return err
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), base)
			return err
		},
		ValidArgsFunction: completeVolumes(g, 1),
	}
	addProgressFlag(cmd, &mode)
	return cmd
}

func newVolumeResizeCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "resize VOLUME SIZE",
		Short: "Make a volume larger",
		Long: `Make a volume larger: to SIZE, or by it if it begins with +. Nobody may have the
volume. Being sparse, the file grows with what is put in it.

Volumes are not made smaller: what is in one may lie anywhere. 'rungv volume
compact' gives back to the host what is not used.`,
		Example: "  rungv volume resize data 200g\n  rungv volume resize ./golden.ext4 +10g",
		Args:    exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := volumeStore(g)
			if err != nil {
				return err
			}
			v, err := s.Resolve(args[0])
			if err != nil {
				return err
			}
			text, more := strings.CutPrefix(args[1], "+")
			size, err := convert.ParseBytes(text)
			if err != nil {
				return err
			}
			if more {
				in, err := s.Inspect(v)
				if err != nil {
					return err
				}
				size += in.SizeBytes
			}
			if size <= 0 {
				return api.Errorf(api.KindInvalid, "invalid size %q: a volume of no size", args[1])
			}
			if err := s.Resize(v, size); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), args[0])
			return err
		},
		ValidArgsFunction: completeVolumes(g, 1),
	}
}

func newVolumeCompactCommand(g *globals) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "compact [OPTIONS] VOLUME [VOLUME...]",
		Short: "Give unused space of volumes back to the host",
		Long: `Give back to the host what is free in each volume, empty its journal and mark it
clean: what a graceful end of a sandbox does to its volumes too. Nobody may have
the volume.`,
		Example: "  rungv volume compact golden.ext4",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := volumeStore(g)
			if err != nil {
				return err
			}
			return eachVolume(cmd, s, args, func(_ context.Context, v volumes.Ref) error {
				before, after, err := s.Compact(v)
				if err != nil || quiet {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s on disk, %s before\n", v, units.HumanSizeWithPrecision(float64(after), 3), units.HumanSizeWithPrecision(float64(before), 3))
				return nil
			})
		},
		ValidArgsFunction: completeVolumes(g, 0),
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "Do not say how much was gained")
	return cmd
}
