// SPDX-License-Identifier: Apache-2.0

// `rungv events`: what happens to a container of an OCI bundle, as runc prints it.

package cli

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/control"
)

// defaultEventsInterval is runc's.
const defaultEventsInterval = 5 * time.Second

// taskEvent is a line of the output; the names are runc's.
type taskEvent struct {
	Type string     `json:"type"`
	ID   string     `json:"id"`
	Data *taskStats `json:"data,omitempty"`
}

// taskStats are the figures that a sandbox has of its guests.
type taskStats struct {
	CPU    taskCPU    `json:"cpu"`
	Memory taskMemory `json:"memory"`
	Pids   taskPids   `json:"pids"`
}

type taskCPU struct {
	Usage struct {
		Total  uint64 `json:"total"`
		Kernel uint64 `json:"kernel"`
		User   uint64 `json:"user"`
	} `json:"usage"`
	Throttling struct {
		ThrottledTime uint64 `json:"throttledTime,omitempty"`
	} `json:"throttling"`
}

type taskMemory struct {
	Usage struct {
		Limit   uint64 `json:"limit"`
		Usage   uint64 `json:"usage,omitempty"`
		Max     uint64 `json:"max,omitempty"`
		Failcnt uint64 `json:"failcnt"`
	} `json:"usage"`
}

type taskPids struct {
	Current uint64 `json:"current,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`
}

func newEventsCommand(g *globals) *cobra.Command {
	var stats bool
	interval := defaultEventsInterval
	cmd := &cobra.Command{
		Use:   "events [OPTIONS] CONTAINER",
		Short: "Display container events such as OOM notifications, cpu, memory, and IO usage statistics",
		Long: `Print, as lines of JSON, what a container of an OCI bundle uses, at every interval
and until it ends, and when the memory limit has killed something in it; with
--stats, what it uses now.`,
		Example: "  rungv events --stats box\n  rungv events --interval 1s box",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval <= 0 {
				return api.Errorf(api.KindInvalid, "duration interval must be greater than 0")
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			p := &eventPrinter{r: r, id: args[0], out: json.NewEncoder(cmd.OutOrStdout())}
			if stats {
				return p.stats(cmd.Context())
			}
			return p.follow(cmd.Context(), interval)
		},
		ValidArgsFunction: completeContainers(g, isTask),
	}
	cmd.Flags().BoolVar(&stats, "stats", false, "Display the container's stats then exit")
	cmd.Flags().DurationVar(&interval, "interval", interval, "Set the stats collection interval")
	return cmd
}

// eventPrinter prints the events of one container.
type eventPrinter struct {
	r  *container.Runner
	id string

	mu  sync.Mutex
	out *json.Encoder
}

func (p *eventPrinter) print(e taskEvent) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.ID = p.id
	return p.out.Encode(e)
}

// stats prints what the container uses now.
func (p *eventPrinter) stats(ctx context.Context) error {
	_, s, err := p.r.Stats(ctx, p.id)
	if err != nil {
		return err
	}
	return p.print(taskEvent{Type: "stats", Data: statsOf(&s)})
}

// follow prints until the container has ended.
func (p *eventPrinter) follow(ctx context.Context, interval time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				// One that does not answer is on its way out, or paused.
				_ = p.stats(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	return p.r.TaskEvents(ctx, p.id, func() { _ = p.print(taskEvent{Type: "oom"}) })
}

func statsOf(s *control.Stats) *taskStats {
	var t taskStats
	t.CPU.Usage.User, t.CPU.Usage.Kernel = uint64(s.CPUUser), uint64(s.CPUSystem)
	t.CPU.Usage.Total = t.CPU.Usage.User + t.CPU.Usage.Kernel
	t.CPU.Throttling.ThrottledTime = uint64(s.CPUThrottled)
	t.Memory.Usage.Limit, t.Memory.Usage.Usage, t.Memory.Usage.Max = s.MemoryLimitBytes, s.MemoryBytes, s.MemoryPeakBytes
	t.Memory.Usage.Failcnt = s.OOMKills
	t.Pids.Current, t.Pids.Limit = s.Pids, s.PidsLimit
	return &t
}
