// SPDX-License-Identifier: Apache-2.0

// volume cp, cat, put and tree: files of a volume that is mounted nowhere.

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/volumes"
)

// stdStream stands for standard input and output.
const stdStream = "-"

// splitVolumePath cuts VOLUME:PATH. What begins like a path of the host and
// names no volume's file is one of the host.
func splitVolumePath(s string) (volume, file string, ok bool) {
	for i := 0; i < len(s); i++ {
		if s[i] != ':' {
			continue
		}
		volume, file = s[:i], s[i+1:]
		isFile := strings.HasSuffix(volume, convert.VolumeExt) || strings.HasSuffix(volume, convert.DeltaExt)
		if isFile || !convert.IsVolumeFile(volume) && convert.CheckVolumeName(volume) == nil {
			return volume, file, true
		}
		if fi, err := os.Stat(volume); err == nil && fi.Mode().IsRegular() {
			return volume, file, true
		}
	}
	return "", "", false
}

// needVolumePath is splitVolumePath for what can be nothing else.
func needVolumePath(s string) (volume, file string, err error) {
	volume, file, ok := splitVolumePath(s)
	if !ok {
		return "", "", api.Errorf(api.KindInvalid, "%q is no file of a volume: want VOLUME:PATH", s)
	}
	return volume, file, nil
}

type volumeCpFlags struct {
	archive, follow, quiet bool
	uid, gid               int64
}

func newVolumeCpCommand(g *globals) *cobra.Command {
	f := &volumeCpFlags{}
	cmd := &cobra.Command{
		Use:   "cp [OPTIONS] VOLUME:SRC_PATH DEST_PATH|-\n  rungv volume cp [OPTIONS] SRC_PATH|- VOLUME:DEST_PATH",
		Short: "Copy files between a volume and the host",
		Long: `Copy a file or directory out of a volume or into it, by the rules of 'docker cp':
into DEST_PATH if that is a directory, else as it; a source that ends in /. means
a directory's contents. '-' reads or writes a tar archive.

In a volume, files that come from the host belong to root; on the host, to you.
--archive keeps owners. Archives keep owners, devices and attributes in any case.
Nobody may have the volume, but for a volume that is only read.`,
		Example: "  rungv volume cp data:/etc/app.conf .\n  rungv volume cp ./site data:/var/www\n  rungv volume cp data:/ - | tar -tv\n  curl -s https://example.com/x.tar | rungv volume cp - data:/opt",
		Args:    exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVolumeCp(cmd, g, f, args[0], args[1])
		},
		ValidArgsFunction: completeVolumes(g, 0),
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.archive, "archive", "a", false, "Archive mode (copy all uid/gid information)")
	fl.BoolVarP(&f.follow, "follow-link", "L", false, "Always follow symbol link in SRC_PATH")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "Suppress what could not be kept")
	fl.Int64Var(&f.uid, "uid", -1, "Owner of what is copied into a volume")
	fl.Int64Var(&f.gid, "gid", -1, "Group of what is copied into a volume")
	return cmd
}

func (f *volumeCpFlags) options() (volumes.CopyOptions, error) {
	o := volumes.CopyOptions{Archive: f.archive, Follow: f.follow}
	if f.uid < 0 && f.gid < 0 {
		return o, nil
	}
	if f.archive {
		return o, api.Errorf(api.KindInvalid, "--archive keeps owners, --uid and --gid replace them: leave one out")
	}
	const most = 1<<32 - 2
	if f.uid > most || f.gid > most {
		return o, api.Errorf(api.KindInvalid, "--uid and --gid go up to %d", int64(most))
	}
	o.Own, o.UID, o.GID = true, uint32(max(f.uid, 0)), uint32(max(f.gid, 0))
	return o, nil
}

func runVolumeCp(cmd *cobra.Command, g *globals, f *volumeCpFlags, from, to string) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	r, err := g.runner(false)
	if err != nil {
		return err
	}
	root, err := volumesRoot(g)
	if err != nil {
		return err
	}
	warn := g.warn
	if f.quiet {
		warn = nil
	}
	s := volumes.New(root, volumes.Options{Holder: r.Holder, Warn: warn})
	source, sourcePath, out := splitVolumePath(from)
	dest, destPath, in := splitVolumePath(to)
	switch {
	case out && in:
		return api.Errorf(api.KindUnsupported, "copying between volumes is not supported: 'rungv volume cp A:/x - | rungv volume cp - B:/' does it")
	case out:
		v, err := s.Resolve(source)
		if err != nil {
			return err
		}
		if to != stdStream {
			return s.CopyOut(v, sourcePath, to, o)
		}
		w := cmd.OutOrStdout()
		if isTerminal(w) {
			return api.Errorf(api.KindInvalid, "cowardly refusing to write an archive to a terminal: redirect it")
		}
		return s.ExportTar(w, v, sourcePath, o)
	case in:
		v, err := s.Resolve(dest)
		if err != nil {
			return err
		}
		if from != stdStream {
			return s.CopyIn(from, v, destPath, o)
		}
		return s.ImportTar(cmd.InOrStdin(), v, destPath, o)
	}
	return api.Errorf(api.KindInvalid, "must specify at least one volume as source or destination: VOLUME:PATH")
}

func newVolumeCatCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "cat VOLUME:PATH [VOLUME:PATH...]",
		Short:   "Print files of a volume",
		Long:    "Write files of a volume to standard output, byte for byte. Symbolic links are followed inside the volume.",
		Example: "  rungv volume cat data:/etc/os-release",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := volumeStore(g)
			if err != nil {
				return err
			}
			var problems []error
			for _, arg := range args {
				ref, file, err := needVolumePath(arg)
				if err != nil {
					problems = append(problems, err)
					continue
				}
				v, err := s.Resolve(ref)
				if err == nil {
					err = s.Cat(cmd.OutOrStdout(), v, file)
				}
				problems = append(problems, err)
			}
			return errors.Join(problems...)
		},
		ValidArgsFunction: completeVolumes(g, 0),
	}
}

func newVolumePutCommand(g *globals) *cobra.Command {
	var mode string
	o := volumes.PutOptions{}
	cmd := &cobra.Command{
		Use:   "put [OPTIONS] VOLUME:PATH [FILE|-]",
		Short: "Write a file into a volume",
		Long: `Make a file in a volume of what standard input, or FILE, holds. A file that is
there is replaced once the new one is whole.`,
		Example: "  echo hello | rungv volume put data:/etc/motd\n  rungv volume put --parents --mode 0755 data:/opt/bin/tool ./tool",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, file, err := needVolumePath(args[0])
			if err != nil {
				return err
			}
			if o.Mode, err = parseMode(mode); err != nil {
				return err
			}
			s, _, err := volumeStore(g)
			if err != nil {
				return err
			}
			v, err := s.Resolve(ref)
			if err != nil {
				return err
			}
			in := cmd.InOrStdin()
			if len(args) == 2 && args[1] != stdStream {
				f, err := os.Open(args[1])
				if err != nil {
					return api.Errorf(api.KindInvalid, "write to volume %s: %w", v, err)
				}
				defer f.Close()
				in = f
			}
			return s.Put(in, v, file, o)
		},
		ValidArgsFunction: completeVolumes(g, 0),
	}
	fl := cmd.Flags()
	fl.StringVar(&mode, "mode", "0644", "Mode of the file")
	fl.Uint32Var(&o.UID, "uid", 0, "Owner of the file")
	fl.Uint32Var(&o.GID, "gid", 0, "Group of the file")
	fl.BoolVarP(&o.Parents, "parents", "p", false, "Make the directories above it")
	return cmd
}

// parseMode reads permission bits.
func parseMode(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 8, 12)
	if err != nil {
		return 0, api.Errorf(api.KindInvalid, "invalid --mode %q: want octal digits such as 0644", s)
	}
	return uint16(n), nil
}

func newVolumeTreeCommand(g *globals) *cobra.Command {
	var level int
	var dirs, long bool
	cmd := &cobra.Command{
		Use:   "tree [OPTIONS] VOLUME[:PATH]",
		Short: "List what is in a volume",
		Long: `List the files of a volume below PATH, its root if none is given, as tree(1) does.
Characters that a terminal would act on are escaped.`,
		Example: "  rungv volume tree data\n  rungv volume tree -L 2 --long data:/var/lib",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, from, ok := splitVolumePath(args[0])
			if !ok {
				ref, from = args[0], "/"
			}
			s, _, err := volumeStore(g)
			if err != nil {
				return err
			}
			v, err := s.Resolve(ref)
			if err != nil {
				return err
			}
			t := &treePrinter{w: cmd.OutOrStdout(), long: long}
			if err := s.Tree(v, path.Clean("/"+from), level, dirs, t.print); err != nil {
				return err
			}
			return t.total(dirs)
		},
		ValidArgsFunction: completeVolumes(g, 1),
	}
	fl := cmd.Flags()
	fl.IntVarP(&level, "level", "L", 0, "Descend only so many directories deep")
	fl.BoolVarP(&dirs, "dirs", "d", false, "List directories only")
	fl.BoolVarP(&long, "long", "l", false, "Print mode, owner, size and time too")
	return cmd
}

// treePrinter prints a walk.
type treePrinter struct {
	w           io.Writer
	long        bool
	open        []bool // for each level, whether entries follow
	files, dirs int
}

func (t *treePrinter) print(e *volumes.TreeEntry) error {
	var b strings.Builder
	if t.long {
		a := e.Attr
		fmt.Fprintf(&b, "%s %5d %5d %8s %s  ", modeString(a.Mode), a.UID, a.GID, humanSize(a.Size), a.Mtime.Std().Local().Format("2006-01-02 15:04"))
	}
	if e.Depth > 0 {
		t.open = append(t.open[:e.Depth-1], !e.Last)
		for _, more := range t.open[:e.Depth-1] {
			b.WriteString(map[bool]string{true: "│   ", false: "    "}[more])
		}
		b.WriteString(map[bool]string{true: "└── ", false: "├── "}[e.Last])
		if e.IsDir() {
			t.dirs++
		} else {
			t.files++
		}
	}
	b.WriteString(visible(e.Name))
	if e.Target != "" {
		b.WriteString(" -> " + visible(e.Target))
	}
	_, err := fmt.Fprintln(t.w, b.String())
	return err
}

func (t *treePrinter) total(dirsOnly bool) error {
	word := func(n int, one, many string) string {
		if n == 1 {
			return "1 " + one
		}
		return fmt.Sprintf("%d %s", n, many)
	}
	text := word(t.dirs, "directory", "directories")
	if !dirsOnly {
		text += ", " + word(t.files, "file", "files")
	}
	_, err := fmt.Fprintf(t.w, "\n%s\n", text)
	return err
}

// modeString is ls' form of a mode.
func modeString(mode uint16) string {
	kind := map[uint16]os.FileMode{
		ext4lite.ModeDir: os.ModeDir, ext4lite.ModeLink: os.ModeSymlink, ext4lite.ModeChar: os.ModeDevice | os.ModeCharDevice,
		ext4lite.ModeBlock: os.ModeDevice, ext4lite.ModeFifo: os.ModeNamedPipe, ext4lite.ModeSocket: os.ModeSocket,
	}[mode&ext4lite.ModeType]
	return (kind | os.FileMode(mode&0o777)).String()
}

// visible escapes what a terminal would act on: names are a guest's.
func visible(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
