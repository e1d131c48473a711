// SPDX-License-Identifier: Apache-2.0

// Pull: from a reference to a published image.

package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

// Policy says when the source is asked, as `docker run --pull`.
type Policy string

// The policies.
const (
	// PullMissing asks only for what the store lacks; the zero Policy is it too.
	PullMissing Policy = "missing"
	PullAlways  Policy = "always"
	PullNever   Policy = "never"
)

// ParsePolicy reads the value of --pull.
func ParsePolicy(s string) (Policy, error) {
	switch p := Policy(s); p {
	case PullMissing, PullAlways, PullNever:
		return p, nil
	case "":
		return PullMissing, nil
	}
	return "", api.Errorf(api.KindInvalid, "invalid pull option: %q: must be one of \"always\", \"missing\" or \"never\"", s)
}

// PullOptions say what to pull and whom to tell.
type PullOptions struct {
	// Platform selects from an index; its zero value is the host's, and then
	// an image that is already there is taken whatever it is for.
	Platform image.Platform
	Policy   Policy
	// Name, if not empty, is given to the image instead of what its source
	// calls it; `image import` sets it.
	Name string
	// Progress, if not nil, is called for each step, by one goroutine at a
	// time. It must not call the store.
	Progress func(Event)
}

// Pull makes sure that the store holds the image that ref names, and returns
// it. ref is a registry reference, or a local source in the forms of
// [image.Parse], which is read each time: only layers that are new convert.
func (s *Store) Pull(ctx context.Context, ref string, o PullOptions) (*Image, error) {
	policy, err := ParsePolicy(string(o.Policy))
	if err != nil {
		return nil, err
	}
	// An image ID is no reference; it can only be present.
	src, parseErr := image.Parse(ref)
	if remote := parseErr != nil || src.Transport() == image.Registry; remote && policy != PullAlways {
		img, err := s.present(ref, o.Platform)
		_, notID := hexOf(digest.Digest(ref))
		if err == nil || policy == PullNever || notID == nil || !s.shouldAsk(img, err) {
			return img, err
		}
	}
	if parseErr != nil {
		return nil, parseErr
	}
	return s.pullSource(ctx, src, o)
}

// shouldAsk reports whether a registry may have what [Store.present] did not
// find whole. It must not be asked for an image that never came from it: at
// best it does not answer, at worst it has another image of that name.
func (s *Store) shouldAsk(img *Image, err error) bool {
	if !errors.Is(err, errLayerMissing) {
		return api.KindOf(err) == api.KindNotFound
	}
	if len(img.RepoDigests) > 0 {
		return true
	}
	all, err := s.Inspect(string(img.ID))
	if err != nil || len(img.Names) == 0 {
		return false
	}
	repository, _, _ := SplitName(img.Names[0])
	// A pull leaves a digest reference beside the tag; load and import do not.
	return slices.ContainsFunc(all.RepoDigests, func(n string) bool {
		r, _, _ := SplitName(n)
		return r == repository
	})
}

// present finds a whole image for the platform in the store, or is not-found.
// It returns the image, too, when a layer is missing.
func (s *Store) present(ref string, want image.Platform) (*Image, error) {
	img, err := s.Get(ref)
	if err != nil {
		return nil, err
	}
	if want != (image.Platform{}) && !samePlatform(want, img.Platform) {
		return nil, notFound(ref + " for " + want.String())
	}
	for n, key := range img.keys {
		_, err := os.Lstat(s.layerPath(key))
		if errors.Is(err, fs.ErrNotExist) {
			return img, missingLayer(img, n)
		}
		if err != nil {
			return nil, fmt.Errorf("image %s: layer %s: %w", ref, img.LayerDiffIDs[n], err)
		}
	}
	return img, nil
}

// samePlatform reports whether an image is for just the platform asked for.
func samePlatform(want image.Platform, have ispec.Platform) bool {
	return want.OS == have.OS && want.Architecture == have.Architecture &&
		(want.Variant == "" || want.Variant == have.Variant)
}

// pullSource resolves src and stores what it leads to.
func (s *Store) pullSource(ctx context.Context, src image.Source, o PullOptions) (*Image, error) {
	rep := &reporter{sink: o.Progress, ref: src.String()}
	rep.send(Event{Status: StatusResolving})
	scan := &scan{s: s}
	defer scan.discard()
	options := s.sourceOptions(o, rep)
	options.Scanned = scan.convert
	found, err := src.Resolve(ctx, options)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	names, err := namesFor(src, found, o.Name)
	if err != nil {
		return nil, err
	}
	return s.storeImage(ctx, found, names, rep, scan)
}

// sourceOptions are the store's, for one pull.
func (s *Store) sourceOptions(o PullOptions, rep *reporter) image.Options {
	opt := s.opt.Source
	opt.Platform = o.Platform
	opt.Progress = rep.source
	return opt
}

// namesFor are the names under which a found image is stored.
func namesFor(src image.Source, found *image.Image, name string) ([]string, error) {
	if name != "" {
		n, err := NormalizeName(name)
		return []string{n}, err
	}
	if src.Transport() != image.Registry {
		return nil, nil
	}
	n, err := sourceName(src)
	if err != nil {
		return nil, err
	}
	repoDigest := found.IndexDigest
	if repoDigest == "" {
		repoDigest = found.Digest
	}
	names := []string{n, src.Name() + "@" + string(repoDigest)}
	return slices.Compact(names), nil
}

// storeImage converts what is missing and publishes the image under names.
func (s *Store) storeImage(ctx context.Context, found *image.Image, names []string, rep *reporter, scan *scan) (*Image, error) {
	jobs, err := layerJobs(found.Layers)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", rep.ref, err)
	}
	if scan != nil && scan.whole && len(jobs) == 1 {
		jobs[0].scan = scan
	}
	err = s.ensureLayers(ctx, jobs, rep)
	defer func() {
		for _, j := range jobs {
			if j.held != nil {
				j.held.file.Close()
			}
		}
	}()
	var (
		img   *Image
		fresh bool
	)
	if err == nil {
		img, fresh, err = s.publish(ctx, found, jobs, names)
	}
	if err != nil {
		if api.KindOf(err) == api.KindNoSpace {
			s.dropFailed(found, jobs)
		}
		return nil, fmt.Errorf("image %s: %w", rep.ref, err)
	}
	status := StatusUpToDate
	if fresh {
		status = StatusNew
	}
	d := found.IndexDigest
	if d == "" {
		d = found.Digest
	}
	rep.send(Event{Status: status, Digest: d})
	return img, nil
}

// ensureLayers converts the layers that are missing, several at a time.
func (s *Store) ensureLayers(ctx context.Context, jobs []*layerJob, rep *reporter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parallel := s.opt.Parallel
	if parallel <= 0 {
		parallel = runtime.NumCPU()
	}
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for _, j := range jobs {
		rep.send(Event{Status: StatusWaiting, Layer: j.Digest, Total: j.Size})
	}
	for _, j := range jobs {
		// They start lowest first: a layer may have to wait for those below
		// it, and then those have their slots already.
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := s.ensureOne(ctx, j, rep); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// ensureOne is ensureLayer with progress. It closes j.done if it succeeds.
func (s *Store) ensureOne(ctx context.Context, j *layerJob, rep *reporter) error {
	held, err := s.ensureLayer(ctx, j, func() {
		rep.send(Event{Status: StatusWaiting, Layer: j.Digest, Total: j.Size})
	})
	if err != nil {
		return err
	}
	j.held = held
	close(j.done)
	status := StatusExists
	if held.made {
		status = StatusDone
	}
	rep.send(Event{Status: status, Layer: j.Digest, Current: j.Size, Total: j.Size})
	return nil
}

// publish writes the documents, the record and the names. It reports whether
// a name is new or changed, or the image is.
func (s *Store) publish(ctx context.Context, found *image.Image, jobs []*layerJob, names []string) (*Image, bool, error) {
	h, err := hexOf(found.ConfigDigest)
	if err != nil {
		return nil, false, err
	}
	m, err := hexOf(found.Digest)
	if err != nil {
		return nil, false, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if err := s.writeBlob(h, found.RawConfig); err != nil {
		return nil, false, err
	}
	if err := s.writeBlob(m, found.RawManifest); err != nil {
		return nil, false, err
	}
	rec := newImageRecord(found, jobs)
	old, err := s.readImage(h)
	fresh := err != nil
	added := gone(s.imagePath(h))
	if err == nil && slices.Equal(old.Layers, rec.Layers) {
		// A record in use is left alone: its lock is a pin.
		rec = old
	} else if err := s.writeRecord("image", s.imagePath(h), rec); err != nil {
		return nil, false, err
	}
	img := rec.image()
	img.Digest = found.Digest
	for i, n := range names {
		changed, err := s.writeRef(n, found.ConfigDigest, found.Digest)
		if err != nil {
			if now, rerr := s.readRef(s.refPath(n)); added && i == 0 && (rerr != nil || now.Image != found.ConfigDigest) {
				// Nobody asked for an image without a name.
				_ = s.remove(s.imagePath(h), nil)
			}
			return nil, false, err
		}
		fresh = fresh || changed
		img.addName(n)
	}
	return img, fresh, nil
}

func newImageRecord(found *image.Image, jobs []*layerJob) *imageRecord {
	rec := &imageRecord{
		Version: Version, ID: found.ConfigDigest, Manifest: found.Digest,
		Platform: found.Config.Platform, Config: found.Config.Config,
		Created: found.Config.Created, Stored: time.Now().UTC(),
		Layers: make([]imageRecordLayer, len(jobs)),
	}
	for i, j := range jobs {
		rec.Layers[i] = imageRecordLayer{DiffID: j.DiffID, Size: j.held.rec.TarSize}
		if j.held.key != j.diffID {
			rec.Layers[i].Key = j.held.key.digest()
		}
	}
	return rec
}

// writeBlob stores a document unless it is there already.
// Preconditions: the store lock is held, and data has the digest h.
func (s *Store) writeBlob(h hexDigest, data []byte) error {
	if _, err := s.readBlob(h); err == nil {
		return nil
	}
	if digest.FromBytes(data) != h.digest() {
		return api.Errorf(api.KindImage, "document %s has another digest", h)
	}
	return s.writeFile("blob", s.blobPath(h), data, 0o444)
}

// writeRef points a name at an image and reports whether that is news.
// Preconditions: the store lock is held.
func (s *Store) writeRef(name string, id, manifest digest.Digest) (bool, error) {
	path := s.refPath(name)
	old, err := s.readRef(path)
	if err == nil && old.Image == id && old.Manifest == manifest {
		return false, nil
	}
	rec := &refRecord{Version: Version, Name: name, Image: id, Manifest: manifest}
	return true, s.writeRecord("ref", path, rec)
}

// dropFailed removes the layers that a failed pull made and the documents that
// it wrote, unless an image has them: space is short.
func (s *Store) dropFailed(found *image.Image, jobs []*layerJob) {
	unlock, err := s.lock(context.Background())
	if err != nil {
		return
	}
	defer unlock()
	u, err := s.usedFiles()
	if err != nil || u.unknown {
		return
	}
	// Best effort: the full disk is the error to report.
	drop := func(key hexDigest) {
		if !u.layers[key] {
			_ = s.collectLayer(key, &Removed{})
		}
	}
	for _, j := range jobs {
		if j.marked {
			drop(j.diffID)
		}
		if j.held != nil && j.held.made {
			j.held.file.Close()
			drop(j.held.key)
		}
	}
	for _, d := range []digest.Digest{found.ConfigDigest, found.Digest} {
		if h, err := hexOf(d); err == nil && !u.blobs[h] {
			_ = s.remove(s.blobPath(h), nil)
		}
	}
}

// source passes on what oci/image tells.
func (r *reporter) source(e image.Event) {
	switch e.Phase {
	case image.PhaseFetch:
		r.send(Event{Status: StatusConverting, Layer: e.Digest, Current: e.Current, Total: e.Total})
	case image.PhaseScan:
		r.send(Event{Status: StatusScanning, Current: e.Current, Total: e.Total})
	case image.PhaseFallback:
		r.send(Event{Status: StatusFallback, Host: e.Host, Err: e.Err})
	}
}
