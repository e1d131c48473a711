// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	gocontext "context"
	"fmt"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
)

// Save and restore. The Sentry saves the graph of all objects that its kernel
// reaches, and of each only what it cannot make again: of this package, the
// names that somebody holds, and locks, watches, pipes, mappings and positions.
// Volumes, inodes' metadata and copied pages are read from the image again,
// whose descriptor the restorer donates under the resource ID of the mount.

var _ vfs.FilesystemImplSaveRestoreExtension = (*filesystem)(nil)

// PrepareSave implements vfs.FilesystemImplSaveRestoreExtension.
func (fs *filesystem) PrepareSave(context.Context) error {
	if fs.w != nil {
		return fmt.Errorf("save volume %q: a checkpoint cannot hold a volume that is written: detach it first", fs.id.String())
	}
	fs.dentries.evictUnused()
	fs.inodes.mu.Lock()
	defer fs.inodes.mu.Unlock()
	for _, i := range fs.inodes.m {
		i.dropCopied()
	}
	fs.copies.release(fs.mf)
	return nil
}

// BeforeResume implements vfs.FilesystemImplSaveRestoreExtension.
func (fs *filesystem) BeforeResume(context.Context) {}

// CompleteRestore implements vfs.FilesystemImplSaveRestoreExtension.
func (fs *filesystem) CompleteRestore(ctx context.Context, _ vfs.CompleteRestoreOptions) error {
	fd, ok := vfs.RestoreFilesystemFDMapFromContext(ctx)[fs.id]
	if !ok {
		return fmt.Errorf("restore %s volume: no descriptor was donated for resource %q", fs.format, fs.id.String())
	}
	vol, err := openFormat(fs.format, fd, fs.size)
	if err != nil {
		return fmt.Errorf("restore %s volume %q: %w", fs.format, fs.id.String(), err)
	}
	if err := fs.reattach(ctx, vol); err != nil {
		vol.Close()
		return fmt.Errorf("restore %s volume %q: %w", fs.format, fs.id.String(), err)
	}
	return nil
}

// reattach gives a restored file system its volume back.
func (fs *filesystem) reattach(ctx context.Context, vol Volume) error {
	if got := vol.Traits().Identity; got != fs.identity {
		return fmt.Errorf("the image is another one (%s) than at the checkpoint (%s): give the one of the checkpoint", got, fs.identity)
	}
	if err := fs.attach(ctx, vol); err != nil {
		return err
	}
	if err := fs.restoreInode(fs.root.inode); err != nil {
		return err
	}
	fs.root.key = fs.lastKey.Add(1)
	for _, d := range fs.held {
		d.key = fs.lastKey.Add(1)
	}
	for _, d := range fs.held {
		if err := fs.restoreInode(d.inode); err != nil {
			return err
		}
		fs.dentries.restore(d)
	}
	fs.held = nil
	return nil
}

// restoreInode reads a restored inode again, when its first name is seen.
func (fs *filesystem) restoreInode(i *inode) error {
	if _, ok := fs.inodes.m[i.id]; !ok {
		was := i.fixed
		node, err := fs.vol.Node(i.id)
		if err == nil {
			err = i.load(node)
		}
		if err != nil {
			return fmt.Errorf("inode %d: %w", i.id, err)
		}
		if i.fixed.Mode != was.Mode || i.fixed.SizeBytes != was.SizeBytes {
			return fmt.Errorf("inode %d has mode %#o and %d bytes, at the checkpoint %#o and %d",
				i.id, uint32(i.fixed.Mode), i.fixed.SizeBytes, uint32(was.Mode), was.SizeBytes)
		}
		i.names = 0
		fs.inodes.m[i.id] = i
	}
	i.names++
	return nil
}

// savedField is a field that is saved and loaded as it is.
type savedField struct {
	name string
	ptr  any
}

// The functions below give package state what its generator would have
// written. A type lists its fields once, in saved.

func fieldNames(fields []savedField, more ...string) []string {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	return append(names, more...)
}

func saveFields(s state.Sink, fields []savedField) {
	for n, f := range fields {
		s.Save(n, f.ptr)
	}
}

func loadFields(s state.Source, fields []savedField) {
	for n, f := range fields {
		s.Load(n, f.ptr)
	}
}

const statePrefix = "z.gfire.dev/gvx/ext4lite/sentryfs."

func (t *fsType) saved() []savedField { return []savedField{{"format", &t.format}} }

func (*fsType) StateTypeName() string                           { return statePrefix + "fsType" }
func (*fsType) StateFields() []string                           { return fieldNames((&fsType{}).saved()) }
func (t *fsType) StateSave(s state.Sink)                        { saveFields(s, t.saved()) }
func (t *fsType) StateLoad(_ gocontext.Context, s state.Source) { loadFields(s, t.saved()) }

func (fs *filesystem) saved() []savedField {
	return []savedField{
		{"vfsfs", &fs.vfsfs},
		{"format", &fs.format},
		{"id", &fs.id},
		{"size", &fs.size},
		{"devMinor", &fs.devMinor},
		{"root", &fs.root},
		{"identity", &fs.identity},
		{"held", &fs.held},
	}
}

func (*filesystem) StateTypeName() string { return statePrefix + "filesystem" }
func (*filesystem) StateFields() []string { return fieldNames((&filesystem{}).saved()) }

func (fs *filesystem) StateSave(s state.Sink) {
	fs.identity, fs.held = fs.traits.Identity, fs.dentries.all()
	saveFields(s, fs.saved())
}

func (fs *filesystem) StateLoad(_ gocontext.Context, s state.Source) { loadFields(s, fs.saved()) }

func (d *dentry) saved() []savedField {
	return []savedField{
		{"vfsd", &d.vfsd},
		{"refs", &d.refs},
		{"fs", &d.fs},
		{"parent", &d.parent},
		{"name", &d.name},
		{"inode", &d.inode},
	}
}

func (*dentry) StateTypeName() string                           { return statePrefix + "dentry" }
func (*dentry) StateFields() []string                           { return fieldNames((&dentry{}).saved()) }
func (d *dentry) StateSave(s state.Sink)                        { saveFields(s, d.saved()) }
func (d *dentry) StateLoad(_ gocontext.Context, s state.Source) { loadFields(s, d.saved()) }

func (i *inode) saved() []savedField {
	return []savedField{
		{"fs", &i.fs},
		{"id", &i.id},
		{"mode", &i.fixed.Mode},
		{"size", &i.fixed.SizeBytes},
		{"watches", &i.watches},
	}
}

func (*inode) StateTypeName() string { return statePrefix + "inode" }
func (*inode) StateFields() []string { return fieldNames((&inode{}).saved(), "open") }

func (i *inode) StateSave(s state.Sink) {
	fields := i.saved()
	saveFields(s, fields)
	s.SaveValue(len(fields), i.open.Load())
}

func (i *inode) StateLoad(_ gocontext.Context, s state.Source) {
	fields := i.saved()
	loadFields(s, fields)
	open := new(*openState)
	s.Load(len(fields), open)
	s.AfterLoad(func() { i.open.Store(*open) })
}

func (o *openState) saved() []savedField {
	return []savedField{
		{"locks", &o.locks},
		{"pipe", &o.pipe},
		{"mappings", &o.mappings},
	}
}

func (*openState) StateTypeName() string                           { return statePrefix + "openState" }
func (*openState) StateFields() []string                           { return fieldNames((&openState{}).saved()) }
func (o *openState) StateSave(s state.Sink)                        { saveFields(s, o.saved()) }
func (o *openState) StateLoad(_ gocontext.Context, s state.Source) { loadFields(s, o.saved()) }

func (fd *fileFD) saved() []savedField {
	return []savedField{
		{"vfsfd", &fd.vfsfd},
		{"FileDescriptionDefaultImpl", &fd.FileDescriptionDefaultImpl},
		{"LockFD", &fd.LockFD},
	}
}

func (fd *regularFD) saved() []savedField {
	return append(fd.fileFD.saved(), savedField{"off", &fd.off})
}

func (*regularFD) StateTypeName() string                            { return statePrefix + "regularFD" }
func (*regularFD) StateFields() []string                            { return fieldNames((&regularFD{}).saved()) }
func (fd *regularFD) StateSave(s state.Sink)                        { saveFields(s, fd.saved()) }
func (fd *regularFD) StateLoad(_ gocontext.Context, s state.Source) { loadFields(s, fd.saved()) }

func (fd *directoryFD) saved() []savedField {
	return append(fd.fileFD.saved(),
		savedField{"DirectoryFileDescriptionDefaultImpl", &fd.DirectoryFileDescriptionDefaultImpl},
		savedField{"off", &fd.off})
}

func (*directoryFD) StateTypeName() string                            { return statePrefix + "directoryFD" }
func (*directoryFD) StateFields() []string                            { return fieldNames((&directoryFD{}).saved()) }
func (fd *directoryFD) StateSave(s state.Sink)                        { saveFields(s, fd.saved()) }
func (fd *directoryFD) StateLoad(_ gocontext.Context, s state.Source) { loadFields(s, fd.saved()) }

// The registry of package state is filled at init, before any checkpoint.
func init() {
	for _, t := range []state.Type{
		(*fsType)(nil), (*filesystem)(nil), (*dentry)(nil), (*inode)(nil),
		(*openState)(nil), (*regularFD)(nil), (*directoryFD)(nil),
	} {
		state.Register(t)
	}
}
