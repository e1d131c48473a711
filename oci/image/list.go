// SPDX-License-Identifier: Apache-2.0

package image

// Listing an archive: what `image load` takes from it.

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// ArchiveEntry is one image of an archive.
type ArchiveEntry struct {
	// Source resolves to the image.
	Source Source
	// Names are its canonical names, none if the archive gives none.
	Names []string
}

// ListArchive lists the images of the tar file at path, an OCI layout or what
// docker save writes. An image for several platforms is one entry.
func ListArchive(ctx context.Context, path string, o Options) ([]ArchiveEntry, error) {
	t, err := openArchive(ctx, path, o)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if _, ok := t.entries["/"+ispec.ImageLayoutFile]; ok {
		return listIndex(t, path)
	}
	if _, ok := t.entries["/manifest.json"]; ok {
		return listDocker(t, path)
	}
	// Before docker 1.10; or no archive of images, which Resolve explains.
	return []ArchiveEntry{{Source: Source{transport: DockerArchive, path: path}}}, nil
}

// listIndex groups the entries of index.json by manifest, and those of one
// name into one image.
func listIndex(fs files, path string) ([]ArchiveEntry, error) {
	index, err := readIndex(fs)
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", path, err)
	}
	var out []ArchiveEntry
	for _, d := range index.Manifests {
		if d.Annotations["vnd.docker.reference.type"] != "" {
			continue // An attestation about another entry.
		}
		src := Source{transport: OCIArchive, path: path, digest: d.Digest}
		name := canonicalName(namesOf(d))
		if name == "" {
			out = append(out, ArchiveEntry{Source: src})
			continue
		}
		if slices.ContainsFunc(out, func(e ArchiveEntry) bool { return slices.Contains(e.Names, name) }) {
			// Another platform under the same name: select by name instead.
			for i := range out {
				if slices.Contains(out[i].Names, name) && out[i].Source.digest != d.Digest {
					out[i].Source = Source{transport: OCIArchive, path: path, tag: name}
				}
			}
			continue
		}
		if i := slices.IndexFunc(out, func(e ArchiveEntry) bool { return e.Source.digest == d.Digest }); i >= 0 {
			out[i].Names = append(out[i].Names, name)
			continue
		}
		out = append(out, ArchiveEntry{Source: src, Names: []string{name}})
	}
	return out, nil
}

// listDocker lists manifest.json.
func listDocker(fs files, path string) ([]ArchiveEntry, error) {
	raw, err := readFile(fs, "manifest.json", MaxManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", path, err)
	}
	var images []dockerImage
	if err := json.Unmarshal(raw, &images); err != nil {
		return nil, api.Errorf(api.KindImage, "archive %s: manifest.json is not what docker save writes: %w", path, err)
	}
	if len(images) > MaxIndexEntries {
		return nil, api.Errorf(api.KindLimit, "archive %s: %d images, more than the %d allowed", path, len(images), MaxIndexEntries)
	}
	var out []ArchiveEntry
	for _, di := range images {
		e := ArchiveEntry{Source: Source{transport: DockerArchive, path: path, tag: di.Config}}
		for _, n := range di.RepoTags {
			if c := canonicalName([]string{strings.TrimSpace(n)}); c != "" {
				e.Names = append(e.Names, c)
			}
		}
		out = append(out, e)
	}
	return out, nil
}
