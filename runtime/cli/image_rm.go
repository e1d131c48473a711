// SPDX-License-Identifier: Apache-2.0

// Ways out of the store: image rm, image prune, image save.

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/images"
)

func newImageRmCommand(g *globals) *cobra.Command {
	var force, noPrune bool
	cmd := &cobra.Command{
		Use:     "rm [OPTIONS] IMAGE [IMAGE...]",
		Aliases: []string{"remove"},
		Short:   "Remove one or more images",
		Long: `Remove names of images, and images with their last name. Layers that a running
sandbox uses stay on the disk until it has ended and image prune runs.`,
		Args: atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages(g)
			if err != nil {
				return err
			}
			var errs []error
			for _, ref := range args {
				gone, err := store.Remove(cmd.Context(), ref, force)
				if gone != nil {
					printRemoved(cmd.OutOrStdout(), gone, "Untagged", "Deleted")
				}
				if force && api.KindOf(err) == api.KindNotFound {
					fmt.Fprintln(cmd.ErrOrStderr(), "Error:", err) // docker's rm -f is satisfied.
					continue
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Force removal of the image")
	cmd.Flags().BoolVar(&noPrune, "no-prune", false, "Do not delete untagged parents (there are none)")
	return cmd
}

func printRemoved(w io.Writer, r *images.Removed, untagged, deleted string) {
	for _, n := range r.Untagged {
		fmt.Fprintf(w, "%s: %s\n", untagged, images.FamiliarName(n))
	}
	for _, d := range r.Deleted {
		fmt.Fprintf(w, "%s: %s\n", deleted, d)
	}
}

func newImagePruneCommand(g *globals) *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use:   "prune [OPTIONS]",
		Short: "Remove unused images",
		Long: `Remove images without a name, with --all every image that no sandbox uses, and
whatever an interrupted pull left behind.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPrune(cmd, g, all, force)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "Remove all unused images, not just dangling ones")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Do not prompt for confirmation")
	return cmd
}

// The warnings of docker image prune.
const (
	warnPrune    = "WARNING! This will remove all dangling images."
	warnPruneAll = "WARNING! This will remove all images without at least one container associated to them."
)

func runPrune(cmd *cobra.Command, g *globals, all, force bool) error {
	out := cmd.OutOrStdout()
	if !force {
		warning := warnPrune
		if all {
			warning = warnPruneAll
		}
		fmt.Fprintf(out, "%s\nAre you sure you want to continue? [y/N] ", warning)
		answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		if strings.ToLower(strings.TrimSpace(answer)) != "y" {
			return api.Errorf(api.KindInvalid, "image prune has been cancelled")
		}
	}
	store, err := openImages(g)
	if err != nil {
		return err
	}
	gone, err := store.Prune(cmd.Context(), all)
	if gone == nil {
		return err
	}
	if len(gone.Untagged)+len(gone.Deleted) > 0 {
		fmt.Fprintln(out, "Deleted Images:")
		printRemoved(out, gone, "untagged", "deleted")
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "Total reclaimed space: %s\n", humanSize(gone.Freed))
	return err
}

func newSaveCommand(g *globals) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "save [OPTIONS] IMAGE [IMAGE...]",
		Short: "Save one or more images to a tar archive (streamed to STDOUT by default)",
		Long: `Write images as an archive that docker load, skopeo and others read: an OCI layout
with docker's manifest.json. Layers are plain tars, byte for byte those that the
image's configuration names.`,
		Args: atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages(g)
			if err != nil {
				return err
			}
			if output != "" {
				return saveFile(cmd, store, output, args)
			}
			out := cmd.OutOrStdout()
			if isTerminal(out) {
				return api.Errorf(api.KindInvalid, "cowardly refusing to save to a terminal. Use the -o flag or redirect")
			}
			return store.Save(cmd.Context(), args, out)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Write to a file, instead of STDOUT")
	return cmd
}

// saveFile writes the archive beside its place and renames it: a failed save
// does not leave half an archive.
func saveFile(cmd *cobra.Command, store *images.Store, output string, refs []string) error {
	f, err := os.CreateTemp(filepath.Dir(output), ".save-*")
	if err != nil {
		return api.Errorf(api.KindInvalid, "invalid output path: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := store.Save(cmd.Context(), refs, f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("save to %s: %w", output, err)
	}
	return os.Rename(f.Name(), output)
}
