// SPDX-License-Identifier: Apache-2.0

// volume fsck.

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/ext4lite/fsck"
	"z.gfire.dev/gvx/runtime/volumes"
)

// The exit codes of fsck(8), which are added up.
const (
	fsckCorrected = 1
	fsckDamaged   = 4
	fsckFailed    = 8
	fsckUsage     = 16
)

// fsckDocument is what --format sees of a volume.
type fsckDocument struct {
	Volume      string
	Clean       bool
	Replayed    bool
	Files       int
	Directories int
	BlocksUsed  uint64
	Extents     int
	Problems    []fsck.Problem
}

func newVolumeFsckCommand(g *globals) *cobra.Command {
	var replay, quiet bool
	var format string
	cmd := &cobra.Command{
		Use:   "fsck [OPTIONS] VOLUME [VOLUME...]",
		Short: "Check volumes for damage",
		Long: `Check each volume and print what is wrong, by the code of the problem. Nothing is
changed, but that --replay first closes a volume that was not closed, as the next
mount would: its journal is replayed and files without names are removed. Nobody
may write the volume meanwhile. e2fsck mends what this finds: a volume is a plain
ext4 file system.

The exit code is that of fsck(8), added up: 0 nothing found, 1 replayed, 4 damage
or not closed, 8 could not be checked, 16 wrong usage.`,
		Example: "  rungv volume fsck data\n  rungv volume fsck --replay ./golden.ext4 && rungv volume clone golden.ext4 ep.delta",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := atLeast(1)(cmd, args); err != nil {
				return &exitError{code: fsckUsage, err: err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := volumeStore(g)
			if err != nil {
				return &exitError{code: fsckFailed, err: err}
			}
			code := 0
			var problems []error
			var found []fsckDocument
			for _, ref := range args {
				d, err := checkVolume(s, ref, replay)
				if err != nil {
					code |= fsckFailed
					problems = append(problems, err)
					continue
				}
				if d.Replayed {
					code |= fsckCorrected
				}
				if !d.Clean {
					code |= fsckDamaged
				}
				found = append(found, d)
			}
			if format != "" {
				problems = append(problems, printList(cmd.OutOrStdout(), format, "", nil, found))
			} else if !quiet {
				printFsck(cmd, found)
			}
			if err := errors.Join(problems...); err != nil || code != 0 {
				return &exitError{code: max(code, fsckCorrected), err: err}
			}
			return nil
		},
		ValidArgsFunction: completeVolumes(g, 0),
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &exitError{code: fsckUsage, err: &usageError{err: err, verb: cmd.CommandPath()}}
	})
	cmd.Flags().BoolVar(&replay, "replay", false, "Close a volume that was not closed, before it is checked")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "Print nothing: the exit code tells")
	cmd.Flags().StringVarP(&format, "format", "f", "", `Format output using a custom template: 'json' or 'TEMPLATE'`)
	return cmd
}

func checkVolume(s *volumes.Store, ref string, replay bool) (fsckDocument, error) {
	v, err := s.Resolve(ref)
	if err != nil {
		return fsckDocument{}, err
	}
	r, replayed, err := s.Check(v, replay)
	if err != nil {
		return fsckDocument{}, err
	}
	return fsckDocument{
		Volume: ref, Clean: r.Clean(), Replayed: replayed, Files: r.Files, Directories: r.Directories, BlocksUsed: r.BlocksUsed,
		Extents: r.Extents, Problems: r.Problems,
	}, nil
}

func printFsck(cmd *cobra.Command, found []fsckDocument) {
	out := cmd.OutOrStdout()
	for _, d := range found {
		for _, p := range d.Problems {
			// The text holds names, which are a guest's.
			fmt.Fprintf(out, "%s: %s\n", d.Volume, visible(p.String()))
			if p.Code == fsck.NotReplayed {
				fmt.Fprintf(out, "%s: it was not closed, or is in use: --replay closes it\n", d.Volume)
			}
		}
		word := "clean"
		if !d.Clean {
			word = "not clean"
		}
		if d.Replayed {
			word += " (replayed)"
		}
		fmt.Fprintf(out, "%s: %s, %d files, %d directories, %d blocks, %d extents\n", d.Volume, word, d.Files, d.Directories, d.BlocksUsed, d.Extents)
	}
}
