// SPDX-License-Identifier: Apache-2.0

package image

// Archives of docker before 1.10: `repositories` names the top of a chain of
// ID/json, each with its parent's ID, and ID/layer.tar. IDs are random, digests
// there are none; they are computed here, and a configuration is made.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

// legacyID is an image ID before docker 1.10: not a content digest.
var legacyID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// legacyJSON is ID/json, of which a configuration is made.
type legacyJSON struct {
	Parent       string          `json:"parent"`
	Created      json.RawMessage `json:"created"`
	Author       string          `json:"author"`
	Architecture string          `json:"architecture"`
	OS           string          `json:"os"`
	Config       json.RawMessage `json:"config"`
}

// fromRepositories reads an archive of docker before 1.10.
func (s Source) fromRepositories(ctx context.Context, t *tarFiles, o Options) (*Image, error) {
	raw, err := readFile(t, "repositories", MaxManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	var repos map[string]map[string]string
	if err := json.Unmarshal(raw, &repos); err != nil {
		return nil, api.Errorf(api.KindImage, "image %s: repositories is not what docker save writes: %w", s, err)
	}
	tops := map[string]string{}
	var images []dockerImage
	for repo, tags := range repos {
		for tag, id := range tags {
			tops[repo+":"+tag] = id
			images = append(images, dockerImage{RepoTags: []string{repo + ":" + tag}})
		}
	}
	slices.SortFunc(images, func(a, b dockerImage) int { return strings.Compare(a.RepoTags[0], b.RepoTags[0]) })
	di, err := s.selectDocker(images)
	if err != nil {
		return nil, err
	}
	top, err := s.legacyChain(t, tops[di.RepoTags[0]], di)
	if err != nil {
		return nil, err
	}
	diffIDs, err := legacyDiffIDs(ctx, t, di.Layers, o)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	config, err := legacyConfig(top, diffIDs)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	return s.assemble(ctx, t, o, config, diffIDs, di)
}

// legacyChain follows the parents, fills di.Layers (lowest first) and returns
// the top's document.
func (s Source) legacyChain(t *tarFiles, id string, di *dockerImage) (*legacyJSON, error) {
	var top *legacyJSON
	for id != "" {
		if !legacyID().MatchString(id) {
			return nil, api.Errorf(api.KindImage, "image %s: %q is not an image ID", s, id)
		}
		if len(di.Layers) == MaxLayers {
			return nil, api.Errorf(api.KindLimit, "image %s: more than %d layers, or a loop of parents", s, MaxLayers)
		}
		raw, err := readFile(t, id+"/json", MaxConfigBytes)
		if err != nil {
			return nil, api.Errorf(api.KindImage, "image %s: layer %s: %w", s, id, err)
		}
		var doc legacyJSON
		if err := json.Unmarshal(raw, &doc); err != nil {
			return nil, api.Errorf(api.KindImage, "image %s: layer %s: %w", s, id, err)
		}
		if top == nil {
			top = &doc
		}
		di.Layers = append(di.Layers, id+"/layer.tar")
		id = doc.Parent
	}
	slices.Reverse(di.Layers)
	return top, nil
}

// legacyDiffIDs computes what the archive does not say.
func legacyDiffIDs(ctx context.Context, t *tarFiles, layers []string, o Options) ([]digest.Digest, error) {
	var ids []digest.Digest
	for _, name := range layers {
		rc, size, err := t.open(name)
		if err != nil {
			return nil, api.Errorf(api.KindImage, "%w", err)
		}
		src := &observer{ReadCloser: rc, ctx: ctx, report: o.Progress, event: Event{Phase: PhaseScan, Name: name, Total: size}}
		id, err := uncompressedDigest(ctx, src, o.Limits, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// uncompressedDigest reads rc to its end, and closes it. scanned, if not nil, is
// shown what is read.
func uncompressedDigest(ctx context.Context, rc io.ReadCloser, limits layer.Limits, scanned func(context.Context, io.Reader)) (digest.Digest, error) {
	st, err := layer.Decompress(ctx, rc, "", limits)
	if err != nil {
		return "", err
	}
	defer st.Close()
	if scanned != nil {
		scanned(ctx, st)
	}
	// The rest, which may be all; and what reading it failed with, if it did.
	if _, err := io.Copy(io.Discard, st); err != nil {
		return "", err
	}
	return st.Sum(), nil
}

// legacyConfig makes a configuration of the top layer's document.
func legacyConfig(top *legacyJSON, diffIDs []digest.Digest) ([]byte, error) {
	config := map[string]any{
		"architecture": top.Architecture,
		"os":           top.OS,
		"rootfs":       ispec.RootFS{Type: "layers", DiffIDs: diffIDs},
	}
	if top.Author != "" {
		config["author"] = top.Author
	}
	if top.Created != nil {
		config["created"] = top.Created
	}
	if top.Config != nil {
		config["config"] = top.Config
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("make configuration: %w", err)
	}
	return raw, nil
}
