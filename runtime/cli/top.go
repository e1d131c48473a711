// SPDX-License-Identifier: Apache-2.0

// `rungv top`: the processes of a container, in the words of ps.

package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
)

// topColumn is one column: its title and what it shows.
type topColumn struct {
	title string
	show  func(p *control.Process, now time.Time) string
}

// topColumns are those that `-o` may name.
var topColumns = map[string]topColumn{
	"uid":   {"UID", func(p *control.Process, _ time.Time) string { return strconv.FormatUint(uint64(p.UID), 10) }},
	"pid":   {"PID", func(p *control.Process, _ time.Time) string { return strconv.Itoa(p.PID) }},
	"ppid":  {"PPID", func(p *control.Process, _ time.Time) string { return strconv.Itoa(p.PPID) }},
	"c":     {"C", func(p *control.Process, now time.Time) string { return strconv.Itoa(processorShare(p, now)) }},
	"%cpu":  {"%CPU", func(p *control.Process, now time.Time) string { return strconv.Itoa(processorShare(p, now)) }},
	"stime": {"STIME", func(p *control.Process, _ time.Time) string { return p.StartedAt.Local().Format("15:04") }},
	"tty":   {"TTY", func(p *control.Process, _ time.Time) string { return orUnknown(p.TTY) }},
	"time":  {"TIME", func(p *control.Process, _ time.Time) string { return clock(p.CPU) }},
	"rss":   {"RSS", func(p *control.Process, _ time.Time) string { return strconv.FormatUint(p.ResidentBytes/1024, 10) }},
	"size":  {"SIZE", func(p *control.Process, _ time.Time) string { return units.BytesSize(float64(p.ResidentBytes)) }},
	"comm":  {"COMMAND", func(p *control.Process, _ time.Time) string { return oneLine(p.Command) }},
	"cmd":   {"CMD", func(p *control.Process, _ time.Time) string { return commandOf(p) }},
	"args":  {"COMMAND", func(p *control.Process, _ time.Time) string { return commandOf(p) }},
}

// topAliases are ps' other names of columns.
var topAliases = map[string]string{"user": "uid", "euid": "uid", "tt": "tty", "tname": "tty", "start": "stime", "start_time": "stime",
	"cputime": "time", "command": "args", "ucmd": "comm", "ucomm": "comm", "pcpu": "%cpu", "rssize": "rss"}

// topDefault are the columns of docker top.
const topDefault = "uid,pid,ppid,c,stime,tty,time,cmd"

func newTopCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top CONTAINER [ps OPTIONS]",
		Short: "Display the running processes of a container",
		Long: `List the processes of a container, as the container's kernel numbers them. Of the
options of ps, -o selects columns: uid, pid, ppid, c, %cpu, stime, tty, time, rss
(KiB), comm, args, cmd; options that select processes are accepted, and all are
listed.`,
		Example: "  rungv top box\n  rungv top box -eo pid,ppid,cmd",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			columns, err := parseTop(args[1:])
			if err != nil {
				return err
			}
			r, err := g.runner(false)
			if err != nil {
				return err
			}
			list, err := r.Processes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printProcesses(cmd.OutOrStdout(), columns, list)
		},
		ValidArgsFunction: completeContainers(g, isRunning),
	}
	// What follows CONTAINER is ps'.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// parseTop reads options of ps.
func parseTop(options []string) ([]topColumn, error) {
	names := topDefault
	for i := 0; i < len(options); i++ {
		o := strings.TrimLeft(options[i], "-")
		head, tail, found := strings.Cut(o, "o")
		switch {
		case strings.Trim(head, "aAeflFxwuH") != "":
			return nil, api.Errorf(api.KindInvalid, "top: unknown option of ps %q: want -o COLUMNS", options[i])
		case !found:
		case tail != "":
			names = strings.TrimPrefix(tail, "=")
		case i+1 < len(options):
			i++
			names = options[i]
		default:
			return nil, api.Errorf(api.KindInvalid, "top: -o without columns")
		}
	}
	var columns []topColumn
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, title, renamed := strings.Cut(strings.ToLower(name), "=")
		if real, ok := topAliases[name]; ok {
			name = real
		}
		c, ok := topColumns[name]
		if !ok {
			return nil, api.Errorf(api.KindInvalid, "top: unknown column %q", name)
		}
		if renamed {
			c.title = strings.ToUpper(title)
		}
		columns = append(columns, c)
	}
	return columns, nil
}

func printProcesses(w io.Writer, columns []topColumn, list []control.Process) error {
	tw := tabwriter.NewWriter(w, 10, 1, 3, ' ', 0)
	now := time.Now()
	line := func(cell func(c *topColumn) string) {
		cells := make([]string, len(columns))
		for i := range columns {
			cells[i] = cell(&columns[i])
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	line(func(c *topColumn) string { return c.title })
	for i := range list {
		line(func(c *topColumn) string { return c.show(&list[i], now) })
	}
	return tw.Flush()
}

// processorShare is ps' C: the share of its life that a process has run.
func processorShare(p *control.Process, now time.Time) int {
	lived := now.Sub(p.StartedAt)
	if lived <= 0 {
		return 0
	}
	return min(int(100*p.CPU/lived), 99)
}

// commandOf is a process' command line, or its name in brackets where that is
// hidden or gone.
func commandOf(p *control.Process) string {
	if len(p.Args) == 0 {
		return "[" + oneLine(p.Command) + "]"
	}
	return oneLine(strings.Join(p.Args, " "))
}

func oneLine(s string) string { return strings.NewReplacer("\n", " ", "\t", " ").Replace(s) }

func orUnknown(s string) string {
	if s == "" {
		return "?"
	}
	return s
}

// clock is ps' way to write processor time.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
}
