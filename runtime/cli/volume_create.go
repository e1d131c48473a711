// SPDX-License-Identifier: Apache-2.0

// volume create.

package cli

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/volumes"
)

// labelAnonymous is docker's mark of a volume that nobody named.
const labelAnonymous = "com.docker.volume.anonymous"

type volumeCreateFlags struct {
	driver                  string
	labels, options         []string
	size, journal, perInode bytesFlag
	blockSize               int
	fsLabel, uuid, mode     string
	uid, gid                uint32
}

func newVolumeCreateCommand(g *globals) *cobra.Command {
	f := &volumeCreateFlags{}
	cmd := &cobra.Command{
		Use:   "create [OPTIONS] [VOLUME]",
		Short: "Create a volume",
		Long: `Create an empty volume and print its name. Without a name it gets a random one;
a path makes a file there.

A volume is a sparse file: it costs what is in it, not what --size says. A named
volume that exists is left as it is, as in docker; a file that exists is an error.`,
		Example: "  rungv volume create data\n  rungv volume create --size 200g --label tier=gold golden\n  rungv volume create ./golden.ext4",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVolumeCreate(cmd, g, f, args)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.driver, "driver", "d", "local", "Specify volume driver name (there is only local)")
	fl.StringArrayVar(&f.labels, "label", nil, "Set metadata for a volume")
	fl.StringArrayVarP(&f.options, "opt", "o", nil, "Set driver specific options (size=SIZE)")
	fl.Var(&f.size, "size", "Size of the volume (default 64GiB)")
	fl.Uint32Var(&f.uid, "uid", 0, "Owner of the volume's root directory")
	fl.Uint32Var(&f.gid, "gid", 0, "Group of the volume's root directory")
	fl.StringVar(&f.mode, "mode", "0755", "Mode of the volume's root directory")
	fl.StringVar(&f.fsLabel, "fs-label", "", "Label of the file system, at most 16 bytes")
	fl.StringVar(&f.uuid, "uuid", "", "UUID of the file system (default random)")
	fl.Var(&f.perInode, "inode-ratio", "Make one inode for so many bytes (default 16KiB)")
	fl.Var(&f.journal, "journal-size", "Size of the journal (default by size, 4MiB to 64MiB)")
	fl.IntVar(&f.blockSize, "block-size", 4096, "Size of blocks: 1024, 2048 or 4096")
	return cmd
}

// options checks the flags.
func (f *volumeCreateFlags) parse() (volumes.CreateOptions, error) {
	var o volumes.CreateOptions
	var err error
	if f.driver != "" && f.driver != "local" {
		return o, api.Errorf(api.KindUnsupported, "create volume: no driver %q: there is only local", f.driver)
	}
	for _, opt := range f.options {
		key, value, _ := strings.Cut(opt, "=")
		if key != "size" {
			return o, api.Errorf(api.KindInvalid, "create volume: invalid option: %q: want size=SIZE", opt)
		}
		if err := f.size.Set(value); err != nil {
			return o, err
		}
	}
	if o.Labels, err = keyValues("label", f.labels); err != nil {
		return o, err
	}
	mode, err := parseMode(f.mode)
	if err != nil {
		return o, err
	}
	o.SizeBytes = int64(f.size)
	o.Filesystem = ext4lite.MkfsOptions{
		BlockSize: f.blockSize, BytesPerIno: int64(f.perInode), Journal: int64(f.journal), Label: f.fsLabel,
		RootUID: f.uid, RootGID: f.gid, RootMode: mode,
	}
	if f.uuid != "" {
		raw, err := hex.DecodeString(strings.ReplaceAll(f.uuid, "-", ""))
		if err != nil || len(raw) != len(o.Filesystem.UUID) {
			return o, api.Errorf(api.KindInvalid, "create volume: invalid --uuid %q: want 32 hexadecimal digits", f.uuid)
		}
		copy(o.Filesystem.UUID[:], raw)
	}
	return o, nil
}

func runVolumeCreate(cmd *cobra.Command, g *globals, f *volumeCreateFlags, args []string) error {
	o, err := f.parse()
	if err != nil {
		return err
	}
	s, _, err := volumeStore(g)
	if err != nil {
		return err
	}
	name := ""
	if len(args) == 0 {
		name = state.NewID()
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[labelAnonymous] = ""
	} else {
		name = args[0]
	}
	r, err := s.Resolve(name)
	if err != nil {
		return err
	}
	err = s.Create(r, o)
	if api.KindOf(err) == api.KindExists && !convert.IsVolumeFile(name) {
		err = sameVolume(s, r, o)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), name)
	return err
}

// sameVolume accepts a volume that exists, unless another size is asked for.
func sameVolume(s *volumes.Store, r volumes.Ref, o volumes.CreateOptions) error {
	in, err := s.Inspect(r)
	if err != nil {
		return err
	}
	if o.SizeBytes > in.SizeBytes {
		return api.Errorf(api.KindExists, "create volume %s: it exists, with %d bytes: 'rungv volume resize' makes it larger", r, in.SizeBytes)
	}
	return nil
}
