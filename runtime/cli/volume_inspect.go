// SPDX-License-Identifier: Apache-2.0

// volume inspect: docker's document, and what only we know.

package cli

import (
	"encoding/hex"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/volumes"
)

// volumeDocument is what docker's API returns for a volume, then ours.
type volumeDocument struct {
	CreatedAt  time.Time
	Driver     string
	Labels     map[string]string
	Mountpoint string
	Name       string
	Options    map[string]string
	Scope      string

	// Size is the volume's, DiskSize what its file takes on the host.
	Size, DiskSize int64
	// Bases are the files below a clone, the nearest first; Clones are those
	// made of this volume.
	Bases, Clones []string
	// UsedBy are containers.
	UsedBy     []string
	Filesystem *filesystemDocument
	// Problem says what is wrong with the volume.
	Problem string `json:",omitempty"`
}

// filesystemDocument is what the superblock says.
type filesystemDocument struct {
	UUID, Label string
	BlockSize   int
	Free        int64
	Inodes      uint32
	FreeInodes  uint32
	Features    []string
	// Clean says that the volume was closed: it can be cloned.
	Clean bool
}

func newVolumeInspectCommand(g *globals) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect [OPTIONS] VOLUME [VOLUME...]",
		Short: "Display detailed information on one or more volumes",
		Long: `Print what is known of volumes as a JSON array in docker's shape, or a line for
each with --format. Mountpoint is the volume's file: no volume is mounted on the
host. A volume that is in use can be inspected; its counts lag behind.`,
		Example: "  rungv volume inspect data\n  rungv volume inspect -f '{{.Filesystem.UUID}}' golden.ext4\n  rungv volume inspect -f '{{json .Clones}}' golden.ext4",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, r, err := volumeStore(g)
			if err != nil {
				return err
			}
			var found []*volumeDocument
			var problems []error
			for _, ref := range args {
				d, err := inspectVolume(s, r, ref)
				if err != nil {
					problems = append(problems, err)
					continue
				}
				found = append(found, d)
			}
			if err := printInspect(cmd.OutOrStdout(), format, found); err != nil {
				return err
			}
			return errors.Join(problems...)
		},
		ValidArgsFunction: completeVolumes(g, 0),
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", `Format output using a custom template: 'json' or 'TEMPLATE'`)
	return cmd
}

func inspectVolume(s *volumes.Store, r *container.Runner, ref string) (*volumeDocument, error) {
	v, err := s.Resolve(ref)
	if err != nil {
		return nil, err
	}
	in, err := s.Inspect(v)
	if err != nil {
		return nil, err
	}
	d := &volumeDocument{
		CreatedAt: in.Created, Driver: volumeDriver, Labels: in.Labels, Mountpoint: in.Path, Name: v.String(), Scope: "local",
		Size: in.SizeBytes, DiskSize: in.DiskBytes, Bases: notNil(in.Bases), Clones: notNil(s.Clones(in.Path)),
		UsedBy: notNil(volumeUsers(r, in.Path)), Problem: in.Problem,
	}
	if f := in.Summary; f != nil {
		u := hex.EncodeToString(f.UUID[:])
		d.Filesystem = &filesystemDocument{
			UUID:  u[:8] + "-" + u[8:12] + "-" + u[12:16] + "-" + u[16:20] + "-" + u[20:],
			Label: f.Label, BlockSize: f.BlockSize, Free: f.FreeBytes, Inodes: f.Inodes, FreeInodes: f.FreeInodes,
			Features: f.Features, Clean: !f.InUse,
		}
	}
	return d, nil
}

// notNil makes JSON print [] and not null.
func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
