// SPDX-License-Identifier: Apache-2.0

// Command mkimage packs root file system tars into an OCI image layout:
//
//	mkimage -out DIR [flags] LAYER.tar…
//
// The first tar is the lowest layer. It writes the layout and nothing else, and
// gives the same bytes for the same input, so that caches can key on it. It is a
// tool of this repository (the demo image, the test bed), never part of what gvx
// installs: rungv neither imports nor executes it.
package main

import (
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options are the command line.
type options struct {
	out, compress, tag string
	platform           string
	config             v1.Config
	layers             []string
}

func main() {
	opts, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = write(opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var (
		opts  options
		flags = flag.NewFlagSet("mkimage", flag.ContinueOnError)
	)
	flags.StringVar(&opts.out, "out", "", "the layout's directory, which must not exist")
	flags.StringVar(&opts.compress, "compress", "gzip", "layer compression: gzip or none")
	flags.StringVar(&opts.tag, "tag", "latest", "the image's name in the layout")
	flags.StringVar(&opts.platform, "platform", "linux/amd64", "the image's platform")
	flags.StringVar(&opts.config.User, "user", "", "config: User")
	flags.StringVar(&opts.config.WorkingDir, "workdir", "", "config: WorkingDir")
	flags.StringVar(&opts.config.StopSignal, "stop-signal", "", "config: StopSignal")
	appendTo := func(list *[]string) func(string) error {
		return func(value string) error { *list = append(*list, value); return nil }
	}
	flags.Func("cmd", "config: one word of Cmd; repeatable", appendTo(&opts.config.Cmd))
	flags.Func("entrypoint", "config: one word of Entrypoint; repeatable", appendTo(&opts.config.Entrypoint))
	opts.config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	flags.Func("env", "config: NAME=value; repeatable", appendTo(&opts.config.Env))
	addTo := func(set *map[string]struct{}) func(string) error {
		return func(value string) error {
			if *set == nil {
				*set = map[string]struct{}{}
			}
			(*set)[value] = struct{}{}
			return nil
		}
	}
	flags.Func("volume", "config: one Volumes path; repeatable", addTo(&opts.config.Volumes))
	flags.Func("expose", "config: one ExposedPorts entry, as 80/tcp; repeatable", addTo(&opts.config.ExposedPorts))
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	opts.layers = flags.Args()
	if opts.out == "" || len(opts.layers) == 0 {
		return opts, errors.New("-out and at least one layer are needed; see -h")
	}
	return opts, nil
}

// write builds the image and writes it as a layout.
func write(opts options) error {
	platform, err := v1.ParsePlatform(opts.platform)
	if err != nil {
		return fmt.Errorf("parse -platform %q: %w", opts.platform, err)
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	for _, name := range opts.layers {
		layer, err := openLayer(name, opts.compress)
		if err != nil {
			return fmt.Errorf("layer %s: %w", name, err)
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:   layer,
			History: v1.History{CreatedBy: "mkimage"},
		})
		if err != nil {
			return fmt.Errorf("layer %s: append: %w", name, err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Config = opts.config
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return fmt.Errorf("set config: %w", err)
	}
	path, err := layout.Write(opts.out, empty.Index)
	if err != nil {
		return fmt.Errorf("create layout %s: %w", opts.out, err)
	}
	err = path.AppendImage(image, layout.WithPlatform(*platform), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": opts.tag,
	}))
	if err != nil {
		return fmt.Errorf("write layout %s: %w", opts.out, err)
	}
	return nil
}

// openLayer makes a layer of a tar file.
func openLayer(name, compress string) (v1.Layer, error) {
	switch compress {
	case "gzip":
		return tarball.LayerFromFile(name,
			tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer))
	case "none":
		return newPlainLayer(name)
	}
	return nil, fmt.Errorf("unknown -compress %q: gzip or none", strings.TrimSpace(compress))
}
