// SPDX-License-Identifier: Apache-2.0

// `rungv top`: the processes of a container, in the words of ps.

package cli

import (
	"cmp"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

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
	"uid":  {"UID", func(p *control.Process, _ time.Time) string { return strconv.FormatUint(uint64(p.UID), 10) }},
	"user": {"USER", func(p *control.Process, _ time.Time) string { return userName(p.UID) }},
	"pid":  {"PID", func(p *control.Process, _ time.Time) string { return strconv.Itoa(p.PID) }},
	"ppid": {"PPID", func(p *control.Process, _ time.Time) string { return strconv.Itoa(p.PPID) }},
	"c":    {"C", func(p *control.Process, now time.Time) string { return strconv.Itoa(int(processorShare(p, now))) }},
	"%cpu": {"%CPU", func(p *control.Process, now time.Time) string { return fmt.Sprintf("%.1f", processorShare(p, now)) }},
	"%mem": {"%MEM", func(p *control.Process, _ time.Time) string {
		return fmt.Sprintf("%.1f", float64(p.ResidentPermille)/10)
	}},
	"stime":    {"STIME", startTime},
	"start":    {"START", startTime},
	"stat":     {"STAT", func(p *control.Process, _ time.Time) string { return p.State }},
	"tty":      {"TTY", func(p *control.Process, _ time.Time) string { return orUnknown(p.TTY) }},
	"time":     {"TIME", func(p *control.Process, _ time.Time) string { return clock(p.CPU) }},
	"rss":      {"RSS", func(p *control.Process, _ time.Time) string { return strconv.FormatUint(p.ResidentBytes/1024, 10) }},
	"vsz":      {"VSZ", func(p *control.Process, _ time.Time) string { return strconv.FormatUint(p.VirtualBytes/1024, 10) }},
	"size":     {"SIZE", func(p *control.Process, _ time.Time) string { return units.BytesSize(float64(p.ResidentBytes)) }},
	"comm":     {"COMMAND", func(p *control.Process, _ time.Time) string { return oneLine(p.Command) }},
	"cmd":      {"CMD", func(p *control.Process, _ time.Time) string { return commandOf(p) }},
	"args":     {"COMMAND", func(p *control.Process, _ time.Time) string { return commandOf(p) }},
	"uid_hack": {"UID", func(p *control.Process, _ time.Time) string { return userName(p.UID) }},
	"ucmd":     {"CMD", func(p *control.Process, _ time.Time) string { return oneLine(p.Command) }},
	"bsdtime": {"TIME", func(p *control.Process, _ time.Time) string {
		s := int(p.CPU.Seconds())
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}},
}

// topAliases are ps' other names of columns.
var topAliases = map[string]string{"euser": "user", "euid": "uid", "tt": "tty", "tname": "tty", "start_time": "stime", "state": "stat", "s": "stat",
	"cputime": "time", "command": "args", "ucomm": "comm", "pcpu": "%cpu", "pmem": "%mem", "rssize": "rss", "vsize": "vsz"}

// Columns of ps' formats: of -f, which docker top and runc have, of no option, and of
// BSD's x and u.
const (
	topFull  = "uid_hack,pid,ppid,c,stime,tty,time,cmd"
	topShort = "pid,tty,time,ucmd"
	topBSD   = "pid,tty,stat,bsdtime,args"
	topUser  = "user,pid,%cpu,%mem,vsz,rss,tty,stat,start,bsdtime,args"
)

func newTopCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top CONTAINER [ps OPTIONS]",
		Short: "Display the running processes of a container",
		Long: `List the processes of a container, as the container's kernel numbers them. Of the
options of ps, f (the default), u and x choose a format, and -o columns: uid, user,
pid, ppid, c, %cpu, %mem, stime, start, stat, tty, time, rss and vsz (KiB), comm,
args, cmd. Options that select processes are accepted, and all are listed. Users
have the names that the host has for their numbers, as with docker.`,
		Example: "  rungv top box\n  rungv top box aux\n  rungv top box -eo pid,ppid,cmd",
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
	letters, names := "", ""
	for i := 0; i < len(options); i++ {
		o := strings.TrimLeft(options[i], "-")
		head, tail, found := strings.Cut(o, "o")
		switch {
		case strings.Trim(head, "aAeflFxwuH") != "":
			return nil, api.Errorf(api.KindInvalid, "top: unknown option of ps %q: want f, u, x or -o COLUMNS", options[i])
		case !found:
		case tail != "":
			names = strings.TrimPrefix(tail, "=")
		case i+1 < len(options):
			i++
			names = options[i]
		default:
			return nil, api.Errorf(api.KindInvalid, "top: -o without columns")
		}
		letters += head
	}
	return columnsOf(cmp.Or(strings.ToLower(names), topFormat(letters)))
}

// topFormat is the format that ps has for its options; without any it is that of
// docker and runc.
func topFormat(letters string) string {
	switch {
	case letters == "" || strings.ContainsAny(letters, "fFl"):
		return topFull
	case strings.Contains(letters, "u"):
		return topUser
	case strings.ContainsAny(letters, "x"):
		return topBSD
	}
	return topShort
}

// columnsOf are the columns of a list.
func columnsOf(names string) ([]topColumn, error) {
	var columns []topColumn
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, title, renamed := strings.Cut(name, "=")
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

// printProcesses writes a table like docker's.
func printProcesses(w io.Writer, columns []topColumn, list []control.Process) error {
	tw := tabwriter.NewWriter(w, 10, 1, 3, ' ', 0)
	for _, line := range cellsOf(columns, list) {
		fmt.Fprintln(tw, strings.Join(line, "\t"))
	}
	return tw.Flush()
}

// pidWidth is the least width of a column of numbers of processes in ps' tables.
const pidWidth = 7

// printLikePs writes a table like ps', which runc's is: numbers and times stand to the
// right, the last column is as long as it is.
func printLikePs(w io.Writer, columns []topColumn, list []control.Process) error {
	lines := cellsOf(columns, list)
	width := make([]int, len(columns))
	for i, c := range columns {
		if strings.HasSuffix(c.title, "PID") {
			width[i] = pidWidth
		}
		for _, line := range lines {
			width[i] = max(width[i], utf8.RuneCountInString(line[i]))
		}
	}
	var text strings.Builder
	for _, line := range lines {
		for i, cell := range line {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			switch {
			case slices.Contains(rightTitles, columns[i].title):
				cell = pad + cell
			case i < len(line)-1:
				cell += pad
			}
			if i > 0 {
				text.WriteByte(' ')
			}
			text.WriteString(cell)
		}
		text.WriteByte('\n')
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// rightTitles are the columns that stand to the right.
var rightTitles = []string{"PID", "PPID", "C", "%CPU", "%MEM", "VSZ", "RSS", "SIZE", "TIME"}

// cellsOf are the title and a line for each process.
func cellsOf(columns []topColumn, list []control.Process) [][]string {
	now := time.Now()
	lines := make([][]string, 1, len(list)+1)
	for i := range columns {
		lines[0] = append(lines[0], columns[i].title)
	}
	for n := range list {
		var line []string
		for i := range columns {
			line = append(line, columns[i].show(&list[n], now))
		}
		lines = append(lines, line)
	}
	return lines
}

// processorShare is ps' C and %CPU: the share of its life that a process has run, in
// hundredths.
func processorShare(p *control.Process, now time.Time) float64 {
	lived := now.Sub(p.StartedAt)
	if lived <= 0 {
		return 0
	}
	return min(100*float64(p.CPU)/float64(lived), 99)
}

// startTime is a time of today, or a day.
func startTime(p *control.Process, now time.Time) string {
	if now.Sub(p.StartedAt) < 24*time.Hour {
		return p.StartedAt.Local().Format("15:04")
	}
	return p.StartedAt.Local().Format("Jan02")
}

// userName is the host's name for a user, or the number: docker's is the host's, too.
func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil && u.Username != "" {
		return oneLine(u.Username)
	}
	return number
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
