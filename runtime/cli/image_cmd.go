// SPDX-License-Identifier: Apache-2.0

// `rungv image` and its short forms. Names, flags, columns and messages are
// docker's.

package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/images"
)

// newImageCommand makes `rungv image`.
func newImageCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image COMMAND",
		Short: "Manage images",
		Long: `Manage the images of the store.

Images are kept as read-only EROFS layers that all sandboxes share through the
host's page cache. A layer is converted once, however many images and processes
ask for it.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newPullCommand(g), newImportCommand(g), newLoadCommand(g), newListCommand(g),
		newImageInspectCommand(g), newImageRmCommand(g), newImagePruneCommand(g), newSaveCommand(g),
	)
	return cmd
}

// newImageAliases makes the short forms that docker has at the top level.
func newImageAliases(g *globals) []*cobra.Command {
	ls := newListCommand(g)
	ls.Use, ls.Aliases = "images [OPTIONS] [REPOSITORY[:TAG]]", nil
	rmi := newImageRmCommand(g)
	rmi.Use, rmi.Aliases = "rmi [OPTIONS] IMAGE [IMAGE...]", nil
	return []*cobra.Command{
		newPullCommand(g), ls, rmi, newLoadCommand(g), newSaveCommand(g), newImportCommand(g),
	}
}

// openImages opens the image store that the global flags name.
func openImages(g *globals) (*images.Store, error) {
	root, err := imagesRoot(g)
	if err != nil {
		return nil, err
	}
	registries, err := image.LoadRegistryConfig(image.RegistryConfigPaths(g.Root)...)
	if err != nil {
		return nil, err
	}
	return images.Open(root, images.Options{Source: image.Options{Registries: registries}, Warn: g.warn})
}

func imagesRoot(g *globals) (string, error) {
	if g.Root == "" {
		return images.DefaultRoot()
	}
	return filepath.Abs(filepath.Join(g.Root, "images"))
}
