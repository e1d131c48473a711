// SPDX-License-Identifier: Apache-2.0

// The table of mounts as guests read it. gVisor calls the source of every mount
// "none", where Linux has the word that mount(2) was given: programs that look
// for "shm" or for a cgroup, and suites that compare the table with what was asked
// for, find neither. And it shows how the Sentry gets at the host's files.

package boot

import (
	"bytes"
	gocontext "context"
	"io"
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/proc"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// noSource is what gVisor calls all sources.
	noSource = "none"
	// maxMountTable bounds what is read of a table: gVisor's own limit on mounts
	// is 100,000, of a hundred bytes each.
	maxMountTable = 64 << 20
)

// usualSources are the sources that Linux' file systems usually have, where that
// is not their own name.
var usualSources = map[string]string{"cgroup2": "cgroup", gofer.Name: "host"}

// mountSources are the sources of what boot has mounted for a container, by
// target and type. It is complete before the guest runs.
type mountSources map[[2]string]string

// mountTable is one of the two tables, read from gVisor's.
type mountTable struct {
	theirs  *vfs.FileDescription
	sources mountSources
	// info says that it is mountinfo, whose lines have more fields.
	info bool
}

// Generate implements vfs.DynamicBytesSource.
func (m *mountTable) Generate(ctx context.Context, buf *bytes.Buffer) error {
	text, err := io.ReadAll(io.LimitReader(&tableReader{ctx: ctx, file: m.theirs}, maxMountTable))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if m.info {
			line = m.infoLine(line)
		} else {
			line = m.mountsLine(line)
		}
		buf.WriteString(line)
	}
	return nil
}

// mountsLine rewrites a line of /proc/PID/mounts: source target type options 0 0.
func (m *mountTable) mountsLine(line string) string {
	f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
	if len(f) != 6 || f[0] != noSource {
		return line
	}
	f[0] = m.source(f[1], f[2])
	f[3] = shownOptions(f[2], f[3])
	return strings.Join(f, " ") + "\n"
}

// infoLine rewrites a line of /proc/PID/mountinfo: id parent device root target
// options tags - type source options.
func (m *mountTable) infoLine(line string) string {
	head, tail, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
	h, t := strings.Split(head, " "), strings.Split(tail, " ")
	if !ok || len(h) < 6 || len(t) != 3 || t[1] != noSource {
		return line
	}
	t[1] = m.source(h[4], t[0])
	t[2] = shownOptions(t[0], t[2])
	return head + " - " + strings.Join(t, " ") + "\n"
}

func (m *mountTable) source(target, fsType string) string {
	if s, ok := m.sources[[2]string{target, fsType}]; ok {
		return s
	}
	if s, ok := usualSources[fsType]; ok {
		return s
	}
	return fsType
}

// shownOptions leaves out what is between the Sentry and its gofer, and what only
// gVisor takes.
func shownOptions(fsType, options string) string {
	var kept []string
	for o := range strings.SplitSeq(options, ",") {
		switch {
		case strings.HasPrefix(o, "dentry_cache_limit="):
		case fsType != gofer.Name, slices.Contains([]string{"rw", "ro", "nosuid", "nodev", "noexec", "noatime"}, o):
			kept = append(kept, o)
		}
	}
	return strings.Join(kept, ",")
}

// mangled is a path as the tables have it.
func mangled(p string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(p)
}

// noteSource remembers the source of a mount of the container's.
func (m *mounter) noteSource(target, fsType, source string) {
	if m.sources != nil && source != "" && source != noSource {
		m.sources[[2]string{mangled(target), fsType}] = mangled(source)
	}
}

// tableReader reads a file from its beginning, wherever its offset is.
type tableReader struct {
	ctx  context.Context
	file *vfs.FileDescription
	off  int64
}

// Read implements io.Reader.
func (r *tableReader) Read(p []byte) (int, error) {
	n, err := r.file.PRead(r.ctx, usermem.BytesIOSequence(p), r.off, vfs.ReadOptions{})
	r.off += n
	if n == 0 && err == nil {
		err = io.EOF
	}
	return int(n), err
}

// mountTableFD is an open table. Who waits for a change of it waits for one of
// gVisor's.
type mountTableFD struct {
	kernfs.DynamicBytesFD
	theirs *vfs.FileDescription
}

// Release implements vfs.FileDescriptionImpl.
func (fd *mountTableFD) Release(ctx context.Context) { fd.theirs.DecRef(ctx) }

// Epollable implements vfs.FileDescriptionImpl.
func (fd *mountTableFD) Epollable() bool { return fd.theirs.Epollable() }

// Readiness implements waiter.Waitable.
func (fd *mountTableFD) Readiness(mask waiter.EventMask) waiter.EventMask {
	return fd.theirs.Readiness(mask)
}

// EventRegister implements waiter.Waitable.
func (fd *mountTableFD) EventRegister(e *waiter.Entry) error { return fd.theirs.EventRegister(e) }

// EventUnregister implements waiter.Waitable.
func (fd *mountTableFD) EventUnregister(e *waiter.Entry) { fd.theirs.EventUnregister(e) }

// replaceOpened gives a task that has opened a file one of ours where we know
// better what is in it.
func (sb *sandbox) replaceOpened(t *kernel.Task, fd int32) {
	file, flags := t.FDTable().Get(fd)
	if file == nil {
		return
	}
	defer file.DecRef(t)
	var ours *vfs.FileDescription
	switch fs := file.Mount().Filesystem(); {
	case fs == sb.cgroupMount.Filesystem():
		ours = sb.cgroups.better(t, file)
	case fs.FilesystemType().Name() == proc.Name:
		ours = sb.betterTable(t, file)
	}
	if ours == nil {
		return
	}
	defer ours.DecRef(t)
	old, err := t.FDTable().NewFDAt(t, fd, ours, flags)
	if err == nil && old != nil {
		old.DecRef(t)
	}
}

// betterTable opens our table in place of gVisor's, nil for any other file.
func (sb *sandbox) betterTable(t *kernel.Task, file *vfs.FileDescription) *vfs.FileDescription {
	d, ok := file.Dentry().Impl().(*kernfs.Dentry)
	if !ok || !file.IsReadable() {
		return nil
	}
	name := d.FSLocalPath()
	name = name[strings.LastIndexByte(name, '/')+1:]
	if name != "mounts" && name != "mountinfo" {
		return nil
	}
	table := &mountTable{theirs: file, info: name == "mountinfo"}
	if c, err := sb.container(t.ContainerID()); err == nil {
		table.sources = c.sources
	}
	ours := &mountTableFD{theirs: file}
	if err := ours.InitWithImpl(ours, file.Mount(), d, table, new(vfs.FileLocks), file.StatusFlags(), t.Credentials()); err != nil {
		return nil
	}
	file.IncRef() // Release gives it back.
	return ours.VFSFileDescription()
}

// Checkpoints reach open tables through the guest's descriptors.

func init() {
	state.Register((*mountTable)(nil))
	state.Register((*mountTableFD)(nil))
}

// StateTypeName implements state.Type.
func (*mountTable) StateTypeName() string { return "gvx/boot.mountTable" }

// StateFields implements state.Type. Sources are of the sandbox that was saved:
// the usual ones do where they are missing.
func (*mountTable) StateFields() []string { return []string{"theirs", "info"} }

// StateSave implements state.SaverLoader.
func (m *mountTable) StateSave(s state.Sink) {
	s.Save(0, &m.theirs)
	s.Save(1, &m.info)
}

// StateLoad implements state.SaverLoader.
func (m *mountTable) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &m.theirs)
	s.Load(1, &m.info)
}

// StateTypeName implements state.Type.
func (*mountTableFD) StateTypeName() string { return "gvx/boot.mountTableFD" }

// StateFields implements state.Type.
func (*mountTableFD) StateFields() []string { return []string{"DynamicBytesFD", "theirs"} }

// StateSave implements state.SaverLoader.
func (fd *mountTableFD) StateSave(s state.Sink) {
	s.Save(0, &fd.DynamicBytesFD)
	s.Save(1, &fd.theirs)
}

// StateLoad implements state.SaverLoader.
func (fd *mountTableFD) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &fd.DynamicBytesFD)
	s.Load(1, &fd.theirs)
}
