// SPDX-License-Identifier: Apache-2.0

// Progress of pulls, loads and imports: bars on a terminal, lines, JSON, or
// nothing.

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/docker/go-units"
	"github.com/opencontainers/go-digest"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/images"
)

// The values of --progress.
const (
	progressAuto  = "auto"
	progressPlain = "plain"
	progressNone  = "none"
	progressJSON  = "json"
)

// barWidth is that of the bar alone, as docker's.
const barWidth = 50

// progress shows events until it is closed.
type progress interface {
	// Event is called by one goroutine at a time.
	Event(images.Event)
	// Close waits until all is shown.
	Close()
}

// newProgress makes what --progress asks for. auto is bars on a terminal and
// nothing elsewhere.
func newProgress(mode string, w io.Writer) (progress, error) {
	switch mode {
	case progressAuto:
		if isTerminal(w) {
			return newBars(w), nil
		}
		return noProgress{}, nil
	case progressPlain:
		return &lineProgress{w: w, last: map[digest.Digest]images.Status{}}, nil
	case progressNone:
		return noProgress{}, nil
	case progressJSON:
		return &jsonProgress{enc: json.NewEncoder(w)}, nil
	}
	return nil, api.Errorf(api.KindInvalid, "invalid value %q for --progress: want auto, plain, none or json", mode)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

type noProgress struct{}

func (noProgress) Event(images.Event) {}
func (noProgress) Close()             {}

// shortDigest is how docker shows digests in progress and lists.
func shortDigest(d digest.Digest) string {
	h := strings.TrimPrefix(string(d), "sha256:")
	return h[:min(12, len(h))]
}

// lineProgress prints a line for each change of status.
type lineProgress struct {
	w    io.Writer
	last map[digest.Digest]images.Status
}

func (p *lineProgress) Event(e images.Event) {
	switch e.Status {
	case images.StatusNew, images.StatusUpToDate:
		return // The verb prints how it ended.
	case images.StatusFallback:
		fmt.Fprintf(p.w, "%s failed, asking another: %v\n", e.Host, e.Err)
		return
	}
	if p.last[e.Layer] == e.Status {
		return
	}
	p.last[e.Layer] = e.Status
	if e.Layer == "" {
		fmt.Fprintf(p.w, "%s %s\n", e.Status, images.FamiliarName(e.Ref))
		return
	}
	fmt.Fprintf(p.w, "%s: %s\n", shortDigest(e.Layer), e.Status)
}

func (p *lineProgress) Close() {}

// jsonProgress prints an object a line, in the shape of docker's API.
type jsonProgress struct{ enc *json.Encoder }

// jsonEvent is docker's JSONMessage.
type jsonEvent struct {
	Status string      `json:"status"`
	ID     string      `json:"id,omitempty"`
	Detail *jsonDetail `json:"progressDetail,omitempty"`
	Digest string      `json:"digest,omitempty"`
	Error  string      `json:"error,omitempty"`
}

type jsonDetail struct {
	Current int64 `json:"current"`
	Total   int64 `json:"total,omitempty"`
}

func (p *jsonProgress) Event(e images.Event) {
	j := jsonEvent{Status: string(e.Status), ID: shortDigest(e.Layer), Digest: string(e.Digest)}
	if e.Layer == "" {
		j.ID = e.Ref
	}
	if e.Current > 0 {
		j.Detail = &jsonDetail{Current: e.Current, Total: e.Total}
	}
	if e.Err != nil {
		j.Error = e.Err.Error()
	}
	// A closed pipe must not stop the pull.
	_ = p.enc.Encode(j)
}

func (p *jsonProgress) Close() {}

// bars shows a bar for each layer.
type bars struct {
	p      *mpb.Progress
	layers map[digest.Digest]*layerBar
	scan   *layerBar
}

// layerBar is one line: a name, a status, and a bar while bytes come.
type layerBar struct {
	bar    *mpb.Bar
	status images.Status
}

func newBars(w io.Writer) *bars {
	return &bars{
		p:      mpb.New(mpb.WithOutput(w), mpb.WithWidth(barWidth), mpb.ForceAutoRefresh()),
		layers: map[digest.Digest]*layerBar{},
	}
}

func (b *bars) Event(e images.Event) {
	switch {
	case e.Layer != "":
		l := b.layers[e.Layer]
		if l == nil {
			l = b.add(shortDigest(e.Layer), e)
			b.layers[e.Layer] = l
		}
		l.update(e)
	case e.Status == images.StatusScanning:
		if b.scan == nil {
			b.scan = b.add("archive", e)
		}
		b.scan.update(e)
	case e.Status == images.StatusFallback:
		fmt.Fprintf(b.p, "%s failed, asking another: %v\n", e.Host, e.Err)
	}
}

// add makes a bar. Its decorators run on mpb's goroutine and read only what
// mpb hands them, so the status travels as the bar's state.
func (b *bars) add(name string, e images.Event) *layerBar {
	l := &layerBar{status: e.Status}
	l.bar = b.p.New(max(e.Total, 1), mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.PrependDecorators(decor.Name(name+":")),
		mpb.AppendDecorators(decor.OnComplete(decor.Any(byteCounts), "done")),
		mpb.BarFillerOnComplete(""),
	)
	return l
}

func byteCounts(s decor.Statistics) string {
	if s.Current == 0 {
		return "waiting"
	}
	return units.HumanSizeWithPrecision(float64(s.Current), 3) + "/" + units.HumanSizeWithPrecision(float64(s.Total), 3)
}

func (l *layerBar) update(e images.Event) {
	l.status = e.Status
	switch e.Status {
	case images.StatusDone, images.StatusExists:
		l.bar.SetTotal(max(e.Total, 1), false)
		l.bar.SetCurrent(max(e.Total, 1))
		l.bar.SetTotal(-1, true)
	case images.StatusConverting, images.StatusScanning:
		// The last bytes are read before the layer is durable: the bar
		// completes with the layer, not with the download.
		if e.Total > 0 {
			l.bar.SetTotal(e.Total+1, false)
		}
		l.bar.SetCurrent(e.Current)
	}
}

// Close ends bars of layers that did not come, and the display.
func (b *bars) Close() {
	if b.scan != nil {
		b.layers["scan"] = b.scan
	}
	for _, l := range b.layers {
		if !l.bar.Completed() {
			l.bar.Abort(false)
		}
	}
	b.p.Wait()
}
