// SPDX-License-Identifier: Apache-2.0

// The guest's overlay file system. gVisor's overlay knows three of Linux's mount
// options and refuses all others, takes absolute paths only, and takes no upper
// layer but on its own tmpfs and gofer. The type here reads the options as Linux
// does, finds the layers, and leaves the rest to gVisor's.

package boot

import (
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/ext4lite/sentryfs"
)

// maxLowers is Linux's bound on the lower layers of one overlay.
const maxLowers = 500

// overlayUppers are the file systems that an upper layer can be on: they keep
// whiteouts and the overlay's own attributes.
var overlayUppers = map[string]bool{
	sentryfs.Ext4Name: true,
	tmpfs.Name:        true,
	"9p":              true, // gVisor's name for its gofer
}

// overlayIgnored are options of Linux's overlay that choose how it does what
// gVisor's does in its own way, with the values they take. A nil list takes any.
var overlayIgnored = map[string][]string{
	"index":        {"on", "off"},
	"metacopy":     {"on", "off"},
	"nfs_export":   {"on", "off"},
	"redirect_dir": {"on", "off", "follow", "nofollow"},
	"uuid":         {"on", "off", "null", "auto"},
	"verity":       {"on", "off", "require"},
	"xino":         {"on", "off", "auto"},

	"default_permissions": {""},
	"override_creds":      {""},
	"nooverride_creds":    {""},
	"volatile":            {""},
}

// overlayType is what guests mount as "overlay".
type overlayType struct{ overlay.FilesystemType }

// overlayOptions are an overlay's mount options.
type overlayOptions struct {
	upper, work string
	lowers      []string
	userXattr   bool
}

// parseOverlayOptions reads options as Linux does: separated by commas, with
// backslashes before those that are part of a path.
func parseOverlayOptions(data string) (*overlayOptions, error) {
	o := &overlayOptions{}
	for _, opt := range splitEscaped(data, ',') {
		key, value, _ := strings.Cut(opt, "=")
		switch key {
		case "":
		case "upperdir":
			o.upper = unescape(value)
		case "workdir":
			o.work = unescape(value)
		case "lowerdir":
			o.lowers = nil
			if value != "" {
				o.lowers = splitEscaped(value, ':')
			}
			for i := range o.lowers {
				o.lowers[i] = unescape(o.lowers[i])
			}
		case "lowerdir+":
			// One more, as it is: this form knows no separator.
			o.lowers = append(o.lowers, unescape(value))
		case "userxattr":
			if value != "" {
				return nil, linuxerr.EINVAL
			}
			o.userXattr = true
		default:
			if !ignoredOverlayOption(key, value) {
				return nil, linuxerr.EINVAL
			}
		}
	}
	return o, o.check()
}

// check applies Linux's rules on what goes together.
func (o *overlayOptions) check() error {
	switch {
	case len(o.lowers) == 0, len(o.lowers) > maxLowers:
		return linuxerr.EINVAL
	case o.upper == "" && len(o.lowers) < 2:
		return linuxerr.EINVAL
	case o.upper != "" && o.work == "":
		return linuxerr.EINVAL
	}
	for _, l := range o.lowers {
		if l == "" {
			// "a::b" marks b as a layer of data only, which needs metacopy.
			return linuxerr.EINVAL
		}
	}
	return nil
}

func ignoredOverlayOption(key, value string) bool {
	values, ok := overlayIgnored[key]
	if !ok {
		return false
	}
	for _, v := range values {
		if v == value {
			return true
		}
	}
	return false
}

// splitEscaped splits s at each sep that has no backslash before it. The
// backslashes stay.
func splitEscaped(s string, sep byte) []string {
	var parts []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// unescape takes the backslashes away.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var sb strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		sb.WriteByte(s[i])
	}
	return sb.String()
}

// GetFilesystem implements vfs.FilesystemType.
func (t *overlayType) GetFilesystem(ctx context.Context, v *vfs.VirtualFilesystem, creds *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	if opts.InternalData != nil {
		return t.FilesystemType.GetFilesystem(ctx, v, creds, source, opts)
	}
	o, err := parseOverlayOptions(opts.Data)
	if err != nil {
		ctx.Infof("mount overlay: options %q: %v", opts.Data, err)
		return nil, nil, err
	}
	l := overlayLayers{ctx: ctx, vfs: v, creds: creds, root: vfs.RootFromContext(ctx)}
	defer l.release()
	if !l.root.Ok() {
		return nil, nil, linuxerr.EINVAL
	}
	if l.cwd = l.root; kernel.TaskFromContext(ctx) != nil {
		l.cwd = kernel.TaskFromContext(ctx).FSContext().WorkingDirectory()
		defer l.cwd.DecRef(ctx)
	}
	if err := l.find(o); err != nil {
		return nil, nil, err
	}
	data := ""
	if o.userXattr {
		data = "userxattr"
	}
	return t.FilesystemType.GetFilesystem(ctx, v, creds, source, vfs.GetFilesystemOptions{
		InternalMount: true, Data: data,
		InternalData: overlay.FilesystemOptions{UpperRoot: l.upper, LowerRoots: l.lowers},
	})
}

// overlayLayers finds the layers of one overlay. Each gets a mount of its own
// that nothing else is mounted on, as an overlay must not lead into itself.
type overlayLayers struct {
	ctx       context.Context
	vfs       *vfs.VirtualFilesystem
	creds     *auth.Credentials
	root, cwd vfs.VirtualDentry

	upper  vfs.VirtualDentry
	lowers []vfs.VirtualDentry
}

// release gives back what the overlay has taken its own references of.
func (l *overlayLayers) release() {
	if l.root.Ok() {
		l.root.DecRef(l.ctx)
	}
	if l.upper.Ok() {
		l.upper.DecRef(l.ctx)
	}
	for _, vd := range l.lowers {
		vd.DecRef(l.ctx)
	}
}

func (l *overlayLayers) find(o *overlayOptions) error {
	if o.upper != "" {
		if err := l.findUpper(o); err != nil {
			return err
		}
	}
	for _, path := range o.lowers {
		vd, err := l.directory(path)
		if err != nil {
			return err
		}
		l.lowers = append(l.lowers, l.private(vd, true))
	}
	if o.upper != "" {
		sentryfs.MarkUpper(l.upper.Mount(), &sentryfs.Lowers{VFS: l.vfs, Creds: l.creds, Roots: l.lowers})
	}
	return nil
}

// findUpper finds the upper layer, and checks the work directory as Linux does:
// on the same mount, and neither of the two within the other. Docker changes the
// owner of the directory that Linux makes in it.
func (l *overlayLayers) findUpper(o *overlayOptions) error {
	upper, err := l.directory(o.upper)
	if err != nil {
		return err
	}
	format := upper.Mount().Filesystem().FilesystemType().Name()
	if !overlayUppers[format] {
		l.ctx.Infof("mount overlay: %q is on %s, which cannot hold an upper layer", o.upper, format)
		upper.DecRef(l.ctx)
		return linuxerr.EINVAL
	}
	l.upper = l.private(upper, upper.Mount().ReadOnly())
	// The gofer cannot set trusted attributes on the host.
	o.userXattr = o.userXattr || format == "9p"

	work, err := l.directory(o.work)
	if err != nil {
		return err
	}
	defer work.DecRef(l.ctx)
	fs := work.Mount().Filesystem()
	if fs != l.upper.Mount().Filesystem() ||
		fs.Impl().IsDescendant(l.upper, work) || fs.Impl().IsDescendant(work, l.upper) {
		return linuxerr.EINVAL
	}
	err = l.vfs.MkdirAt(l.ctx, l.creds, &vfs.PathOperation{Root: l.root, Start: work, Path: fspath.Parse("work")},
		&vfs.MkdirOptions{Mode: linux.ModeUserAll})
	if err != nil && !linuxerr.Equals(linuxerr.EEXIST, err) {
		l.ctx.Infof("mount overlay: make %s/work: %v", o.work, err)
	}
	return nil
}

// directory finds a directory that may be searched, from where the guest's
// process is.
func (l *overlayLayers) directory(path string) (vfs.VirtualDentry, error) {
	p := fspath.Parse(path)
	start := l.cwd
	if p.Absolute {
		start = l.root
	}
	vd, err := l.vfs.GetDentryAt(l.ctx, l.creds, &vfs.PathOperation{
		Root: l.root, Start: start, Path: p, FollowFinalSymlink: true,
	}, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		l.ctx.Infof("mount overlay: find %q: %v", path, err)
	}
	return vd, err
}

// private makes a mount of what vd is in, rooted at vd, whose reference it takes
// over.
func (l *overlayLayers) private(vd vfs.VirtualDentry, readOnly bool) vfs.VirtualDentry {
	opts := vd.Mount().Options()
	opts.ReadOnly = readOnly
	mnt := l.vfs.NewDisconnectedMount(vd.Mount().Filesystem(), vd.Dentry(), &opts)
	d := vd.Dentry()
	d.IncRef()
	vd.DecRef(l.ctx)
	return vfs.MakeVirtualDentry(mnt, d)
}
