// SPDX-License-Identifier: Apache-2.0

// `rungv stats`: what sandboxes use.

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/state"
)

// statsInterval is docker's; a processor share is measured over one.
const statsInterval = time.Second

// statsHeader are the column titles by field.
var statsHeader = map[string]string{
	"ID": "CONTAINER ID", "Container": "CONTAINER", "Name": "NAME", "CPUPerc": "CPU %", "MemUsage": "MEM USAGE / LIMIT",
	"MemPerc": "MEM %", "NetIO": "NET I/O", "BlockIO": "BLOCK I/O", "PIDs": "PIDS",
	"MemPeak": "MEM PEAK", "Throttled": "THROTTLED", "OOMKills": "OOM KILLS", "SentryHeap": "SENTRY HEAP",
}

const statsTable = "{{.ID}}\t{{.Name}}\t{{.CPUPerc}}\t{{.MemUsage}}\t{{.MemPerc}}\t{{.NetIO}}\t{{.BlockIO}}\t{{.PIDs}}"

// statsRow is one line: docker's fields, then ours.
type statsRow struct {
	BlockIO   string
	CPUPerc   string
	Container string
	ID        string
	MemPerc   string
	MemUsage  string
	Name      string
	NetIO     string
	PIDs      string

	MemPeak    string
	Throttled  string
	OOMKills   string
	SentryHeap string
}

type statsFlags struct {
	all, noStream, noTrunc bool
	format                 string
}

func newStatsCommand(g *globals) *cobra.Command {
	var f statsFlags
	cmd := &cobra.Command{
		Use:   "stats [OPTIONS] [CONTAINER...]",
		Short: "Display a live stream of container(s) resource usage statistics",
		Long: `Print what running containers use, every second until interrupted, or once with
--no-stream. Memory is what the guests hold; the sandbox's own is not counted.
Block I/O is not told.
Templates have docker's fields, and MemPeak, Throttled, OOMKills, SentryHeap.`,
		Example: "  rungv stats --no-stream\n  rungv stats --no-stream --format '{{.Name}} {{.MemPeak}}' box",
		RunE:    func(cmd *cobra.Command, args []string) error { return runStats(cmd, g, &f, args) },

		ValidArgsFunction: completeContainers(g, isRunning),
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.all, "all", "a", false, "Show all containers (default shows just running)")
	fl.BoolVar(&f.noStream, "no-stream", false, "Disable streaming stats and only pull the first result")
	fl.BoolVar(&f.noTrunc, "no-trunc", false, "Do not truncate output")
	fl.StringVar(&f.format, "format", "", `Format output using a custom template: 'table', 'table TEMPLATE', 'json', or 'TEMPLATE'`)
	return cmd
}

func runStats(cmd *cobra.Command, g *globals, f *statsFlags, args []string) error {
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	terminal := isTerminal(os.Stdout)
	before, err := sampleAll(cmd.Context(), r, args, f.all)
	if err != nil {
		return err
	}
	for {
		select {
		case <-time.After(statsInterval):
		case <-cmd.Context().Done():
			return nil
		}
		now, err := sampleAll(cmd.Context(), r, args, f.all)
		if err != nil {
			return err
		}
		if !f.noStream && terminal {
			io.WriteString(cmd.OutOrStdout(), "\x1b[2J\x1b[H")
		}
		rows := make([]statsRow, 0, len(now))
		for _, s := range now {
			rows = append(rows, s.row(before, f.noTrunc))
		}
		if err := printList(cmd.OutOrStdout(), f.format, statsTable, statsHeader, rows); err != nil || f.noStream {
			return err
		}
		before = now
	}
}

// sample is one container's answer at one time.
type sample struct {
	rec   *state.Record
	stats control.Stats
	at    time.Time
	live  bool
}

// sampleAll asks the containers named, or all that run.
func sampleAll(ctx context.Context, r *container.Runner, refs []string, all bool) ([]sample, error) {
	named := len(refs) > 0
	if !named {
		list, err := r.State.List()
		if err != nil {
			return nil, err
		}
		for _, rec := range list {
			if all || isRunning(rec) {
				refs = append(refs, rec.ID)
			}
		}
	}
	var samples []sample
	for _, ref := range refs {
		rec, err := r.State.Get(ref)
		if err != nil {
			if named || api.KindOf(err) != api.KindNotFound {
				return nil, err
			}
			continue
		}
		s := sample{rec: rec, at: time.Now()}
		if isRunning(rec) {
			if _, s.stats, err = r.Stats(ctx, rec.ID); err == nil {
				s.live = true
			}
		}
		samples = append(samples, s)
	}
	return samples, nil
}

// row turns a sample into a line; the processor's share is since the sample of
// the same container in before.
func (s sample) row(before []sample, noTrunc bool) statsRow {
	row := statsRow{
		ID: s.rec.ShortID(), Container: s.rec.ShortID(), Name: s.rec.Name,
		CPUPerc: "--", MemUsage: "-- / --", MemPerc: "--", NetIO: "--", BlockIO: "--", PIDs: "--",
	}
	if noTrunc {
		row.ID, row.Container = s.rec.ID, s.rec.ID
	}
	if !s.live {
		return row
	}
	st := s.stats
	row.NetIO = units.HumanSize(float64(st.NetworkReceived)) + " / " + units.HumanSize(float64(st.NetworkSent))
	row.PIDs = strconv.FormatUint(st.Pids, 10)
	limit := "unlimited"
	if st.MemoryLimitBytes > 0 {
		limit = units.BytesSize(float64(st.MemoryLimitBytes))
		row.MemPerc = fmt.Sprintf("%.2f%%", 100*float64(st.MemoryBytes)/float64(st.MemoryLimitBytes))
	}
	row.MemUsage = units.BytesSize(float64(st.MemoryBytes)) + " / " + limit
	for _, b := range before {
		if b.live && b.rec.ID == s.rec.ID && s.at.After(b.at) {
			used := st.CPUUser + st.CPUSystem - b.stats.CPUUser - b.stats.CPUSystem
			row.CPUPerc = fmt.Sprintf("%.2f%%", 100*float64(used)/float64(s.at.Sub(b.at)))
		}
	}
	row.MemPeak = units.BytesSize(float64(st.MemoryPeakBytes))
	row.Throttled = st.CPUThrottled.String()
	row.OOMKills = strconv.FormatUint(st.OOMKills, 10)
	row.SentryHeap = units.BytesSize(float64(st.SentryHeapBytes))
	return row
}
