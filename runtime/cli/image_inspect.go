// SPDX-License-Identifier: Apache-2.0

// image inspect: docker's document.

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/images"
)

// imageDocument is what docker's API returns for an image.
type imageDocument struct {
	ID             string `json:"Id"`
	RepoTags       []string
	RepoDigests    []string
	Comment        string `json:",omitempty"`
	Created        string `json:",omitempty"`
	Author         string `json:",omitempty"`
	Config         imageConfigDocument
	Architecture   string
	Variant        string `json:",omitempty"`
	Os             string
	OsVersion      string `json:",omitempty"`
	Size           int64
	RootFS         rootFSDocument
	Metadata       imageMetadata
	ManifestDigest digest.Digest `json:",omitempty"`
}

// imageConfigDocument adds docker's own fields to the specification's.
type imageConfigDocument struct {
	ispec.ImageConfig
	Healthcheck json.RawMessage `json:",omitempty"`
	OnBuild     []string        `json:",omitempty"`
	Shell       []string        `json:",omitempty"`
}

type rootFSDocument struct {
	Type   string
	Layers []digest.Digest
}

type imageMetadata struct {
	LastTagTime time.Time
}

func newImageInspectCommand(g *globals) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "inspect [OPTIONS] IMAGE [IMAGE...]",
		Short:   "Display detailed information on one or more images",
		Long:    `Print what the store knows of images as a JSON array in docker's shape, or a line for each with --format.`,
		Example: "  rungv image inspect debian:12\n  rungv image inspect --format '{{.Config.Cmd}}' debian:12",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages(g)
			if err != nil {
				return err
			}
			var found []*imageDocument
			var errs []error
			for _, ref := range args {
				d, err := inspectImage(store, ref)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				found = append(found, d)
			}
			if err := printInspect(cmd.OutOrStdout(), format, found); err != nil {
				return err
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", `Format output using a custom template: 'json' or 'TEMPLATE'`)
	return cmd
}

// inspectImage makes the document of one image.
func inspectImage(store *images.Store, ref string) (*imageDocument, error) {
	img, err := store.Inspect(ref)
	if err != nil {
		return nil, err
	}
	raw, err := store.RawConfig(img)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", ref, err)
	}
	var config struct {
		Comment  string              `json:"comment"`
		Author   string              `json:"author"`
		Config   imageConfigDocument `json:"config"`
		Variant  string              `json:"variant"`
		Platform string              `json:"os.version"`
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("inspect %s: parse configuration: %w", ref, err)
	}
	d := &imageDocument{
		ID: string(img.ID), RepoTags: familiarNames(img.Names), RepoDigests: familiarNames(img.RepoDigests),
		Comment: config.Comment, Author: config.Author, Config: config.Config,
		Architecture: img.Platform.Architecture, Variant: config.Variant, Os: img.Platform.OS, OsVersion: config.Platform,
		Size: img.Size, RootFS: rootFSDocument{Type: "layers", Layers: img.LayerDiffIDs},
		Metadata: imageMetadata{LastTagTime: img.Stored}, ManifestDigest: img.Digest,
	}
	if !img.Created.IsZero() {
		d.Created = img.Created.Format(time.RFC3339Nano)
	}
	return d, nil
}

// familiarNames is never nil: docker prints [] and not null.
func familiarNames(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = images.FamiliarName(n)
	}
	return out
}
