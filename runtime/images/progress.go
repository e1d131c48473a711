// SPDX-License-Identifier: Apache-2.0

// What a pull, load or import tells about its progress.

package images

import (
	"sync"

	"github.com/opencontainers/go-digest"
)

// Status is what happens to a layer or an image, in docker's words.
type Status string

// The states of a layer, in order; a layer may skip some. The last two are
// final.
const (
	StatusWaiting    Status = "Waiting"
	StatusConverting Status = "Downloading"
	StatusDone       Status = "Pull complete"
	StatusExists     Status = "Already exists"
)

// The states of an image.
const (
	StatusResolving Status = "Pulling from"
	StatusNew       Status = "Downloaded newer image"
	StatusUpToDate  Status = "Image is up to date"
	// StatusScanning reads a source that has no digests, to compute them.
	StatusScanning Status = "Scanning"
	// StatusFallback tells that Host failed with Err and another is asked.
	StatusFallback Status = "Falling back"
)

// Event is one step. A layer's events come in order; those of different layers
// mix.
type Event struct {
	Status Status
	// Ref is what is pulled, in every event.
	Ref string
	// Layer is the layer's digest, empty for events of the whole image.
	Layer digest.Digest
	// Current and Total count compressed bytes. Total is 0 when unknown.
	Current, Total int64
	// Digest is the manifest's, in final events of an image.
	Digest digest.Digest
	// Host and Err are those of a fallback.
	Host string
	Err  error
}

// reporter calls the sink from one goroutine at a time.
type reporter struct {
	mu   sync.Mutex
	sink func(Event)
	ref  string
}

func (r *reporter) send(e Event) {
	if r == nil || r.sink == nil {
		return
	}
	e.Ref = r.ref
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sink(e)
}
