// SPDX-License-Identifier: Apache-2.0

// Ways into the store: image pull, image import, image load.

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/images"
)

// pullFlags are what the verbs of this file share.
type pullFlags struct {
	platform string
	progress string
	quiet    bool
}

func (f *pullFlags) register(cmd *cobra.Command, platform bool) {
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "Suppress verbose output")
	cmd.Flags().StringVar(&f.progress, "progress", progressAuto, `Set type of progress output ("auto", "plain", "none", "json")`)
	if platform {
		cmd.Flags().StringVar(&f.platform, "platform", "", "Set platform if server is multi-platform capable")
	}
	_ = cmd.RegisterFlagCompletionFunc("progress", cobra.FixedCompletions(
		[]string{progressAuto, progressPlain, progressNone, progressJSON}, cobra.ShellCompDirectiveNoFileComp))
}

// parsePlatform reads --platform; empty is the zero Platform.
func parsePlatform(s string) (image.Platform, error) {
	if s == "" {
		return image.Platform{}, nil
	}
	return image.ParsePlatform(s)
}

// start makes the progress display, on out.
func (f *pullFlags) start(out io.Writer) (progress, error) {
	if f.quiet && f.progress == progressAuto {
		return newProgress(progressNone, out)
	}
	return newProgress(f.progress, out)
}

func newPullCommand(g *globals) *cobra.Command {
	var f pullFlags
	cmd := &cobra.Command{
		Use:   "pull [OPTIONS] NAME[:TAG|@DIGEST]",
		Short: "Download an image from a registry",
		Long: `Download an image from a registry, or take it from a local source.

NAME is a registry reference (docker.io is the default registry), or one of
oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME:TAG],
rootfs:DIR, rootfs-tar:FILE. Credentials come from docker's config.json and its
helpers; mirrors and plain-http registries from registries.json.`,
		Example: "  rungv image pull debian:12\n  rungv image pull --platform linux/arm64 alpine\n  rungv image pull oci-archive:image.tar",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPull(cmd, g, &f, args[0])
		},
	}
	f.register(cmd, true)
	return cmd
}

func runPull(cmd *cobra.Command, g *globals, f *pullFlags, ref string) error {
	src, err := image.Parse(ref)
	if err != nil {
		return err
	}
	platform, err := parsePlatform(f.platform)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	show, err := f.start(out)
	if err != nil {
		return err
	}
	chatty := !f.quiet && f.progress != progressJSON
	if chatty {
		announce(out, src, ref)
	}
	var last images.Event
	img, err := pullImage(cmd.Context(), g, ref, images.PullOptions{
		Platform: platform, Policy: images.PullAlways,
		Progress: func(e images.Event) { last = e; show.Event(e) },
	})
	show.Close()
	if err != nil {
		return err
	}
	name := string(img.ID)
	if src.Transport() == image.Registry {
		name = src.String()
	}
	if chatty {
		fmt.Fprintf(out, "Digest: %s\nStatus: %s for %s\n", last.Digest, last.Status, src.Familiar())
	}
	if f.progress != progressJSON {
		fmt.Fprintln(out, name)
	}
	return nil
}

// announce prints docker's first lines.
func announce(out io.Writer, src image.Source, ref string) {
	if src.Transport() != image.Registry {
		fmt.Fprintf(out, "Pulling from %s\n", src)
		return
	}
	if src.Digest() != "" {
		fmt.Fprintf(out, "%s: Pulling from %s\n", src.FamiliarName()+"@"+string(src.Digest()), repositoryPath(src))
		return
	}
	if !strings.HasSuffix(ref, ":"+src.Tag()) {
		fmt.Fprintf(out, "Using default tag: %s\n", src.Tag())
	}
	fmt.Fprintf(out, "%s: Pulling from %s\n", src.Tag(), repositoryPath(src))
}

// repositoryPath is the repository without its registry.
func repositoryPath(src image.Source) string {
	_, path, _ := strings.Cut(src.Name(), "/")
	return path
}

// pullImage opens the store and pulls.
func pullImage(ctx context.Context, g *globals, ref string, o images.PullOptions) (*images.Image, error) {
	store, err := openImages(g)
	if err != nil {
		return nil, err
	}
	return store.Pull(ctx, ref, o)
}

func newImportCommand(g *globals) *cobra.Command {
	var f pullFlags
	cmd := &cobra.Command{
		Use:   "import [OPTIONS] FILE|DIR|- [REPOSITORY[:TAG]]",
		Short: "Import the contents from a tarball to create a filesystem image",
		Long: `Make an image of one layer from a root file system: a tar file (plain, gzip or
zstd), the standard input (-), or a directory. With a transport (oci:DIR[:TAG],
oci-archive:FILE, docker-archive:FILE, rootfs:DIR, rootfs-tar:FILE) the image is
taken from there as it is, under the given name.`,
		Example: "  rungv image import rootfs.tar.gz my/debian:12\n  docker export box | rungv image import - box",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			return runImport(cmd, g, &f, args[0], name)
		},
	}
	f.register(cmd, true)
	return cmd
}

func runImport(cmd *cobra.Command, g *globals, f *pullFlags, from, name string) error {
	platform, err := parsePlatform(f.platform)
	if err != nil {
		return err
	}
	if name != "" {
		// A bad name is told before a long conversion, not after it.
		if _, err := images.NormalizeName(name); err != nil {
			return err
		}
	}
	store, err := openImages(g)
	if err != nil {
		return err
	}
	show, err := f.start(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	o := images.PullOptions{Platform: platform, Policy: images.PullAlways, Name: name, Progress: show.Event}
	var img *images.Image
	if from == "-" {
		img, err = store.Import(cmd.Context(), cmd.InOrStdin(), o)
	} else {
		img, err = store.Pull(cmd.Context(), importSource(from), o)
	}
	show.Close()
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), img.ID)
	return nil
}

// importSource makes a reference of what import is given: a path unless it
// names a transport.
func importSource(from string) string {
	if src, err := image.Parse(from); err == nil && src.Transport() != image.Registry {
		return from
	}
	if fi, err := os.Stat(from); err == nil && fi.IsDir() {
		return string(image.RootfsDir) + ":" + from
	}
	return string(image.RootfsTar) + ":" + filepath.Clean(from)
}

func newLoadCommand(g *globals) *cobra.Command {
	var f pullFlags
	var input string
	cmd := &cobra.Command{
		Use:     "load [OPTIONS]",
		Short:   "Load images from a tar archive or STDIN",
		Long:    `Load all images of an archive that docker save, image save, skopeo or buildx wrote, with their names.`,
		Example: "  rungv image load -i images.tar\n  docker save debian:12 | rungv image load",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runLoad(cmd, g, &f, input)
		},
	}
	f.register(cmd, true)
	cmd.Flags().StringVarP(&input, "input", "i", "", "Read from tar archive file, instead of STDIN")
	return cmd
}

func runLoad(cmd *cobra.Command, g *globals, f *pullFlags, input string) error {
	in := cmd.InOrStdin()
	if input == "" && isTerminalReader(in) {
		return api.Errorf(api.KindInvalid, "requested load from stdin, but stdin is empty")
	}
	platform, err := parsePlatform(f.platform)
	if err != nil {
		return err
	}
	store, err := openImages(g)
	if err != nil {
		return err
	}
	show, err := f.start(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	o := images.PullOptions{Platform: platform, Progress: show.Event}
	var loaded []*images.Image
	if input != "" {
		loaded, err = store.LoadFile(cmd.Context(), input, o)
	} else {
		loaded, err = store.Load(cmd.Context(), in, o)
	}
	show.Close()
	for _, img := range loaded {
		for _, n := range img.Names {
			fmt.Fprintf(cmd.OutOrStdout(), "Loaded image: %s\n", images.FamiliarName(n))
		}
		if len(img.Names) == 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "Loaded image ID: %s\n", img.ID)
		}
	}
	return err
}

// isTerminalReader reports whether r is a terminal.
func isTerminalReader(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && isTerminal(f)
}
