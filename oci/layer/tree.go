// SPDX-License-Identifier: Apache-2.0

package layer

// Names, parents, whiteouts and attributes: what makes a tree of entries.

import (
	"archive/tar"
	"path"
	"strings"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/runtime/api"
)

const (
	// whiteoutPrefix begins the name of a whiteout in OCI layers.
	whiteoutPrefix = ".wh."
	// metaPrefix begins names of AUFS, where whiteouts come from.
	metaPrefix = whiteoutPrefix + whiteoutPrefix
	// opaqueName hides all that lower layers have in its directory.
	opaqueName = metaPrefix + ".opq"

	// xattrRecord begins the PAX records of extended attributes.
	xattrRecord = "SCHILY.xattr."
	// overlayXattrs instruct overlayfs. An image may say "opaque", as a
	// whiteout does; redirects and the like are not for images to give.
	overlayXattrs = "trusted.overlay."
	opaqueXattr   = overlayXattrs + "opaque"

	// maxDirs bounds the cache of directories; tar streams are ordered.
	maxDirs = 4096
)

// xattrSpaces are the name spaces of Linux. Others come from other systems
// (Apple's, Solaris') and could not be set.
var xattrSpaces = []string{"user.", "trusted.", "security.", "system."}

// isWhiteout tells overlayfs' whiteouts.
func isWhiteout(e erofs.Entry) bool {
	return e.Mode&erofs.ModeType == erofs.ModeChar && e.Major == 0 && e.Minor == 0
}

// isOpaque tells overlayfs' opaque directories.
func isOpaque(e erofs.Entry) bool { return e.Xattrs[opaqueXattr] == "y" }

// setOpaque makes e one.
func setOpaque(e *erofs.Entry) {
	if e.Xattrs == nil {
		e.Xattrs = map[string]string{}
	}
	e.Xattrs[opaqueXattr] = "y"
}

// clean makes a name relative to the root, "" being the root, and refuses what
// climbs above it or is too long.
func (c *conversion) clean(name string) (string, error) {
	if strings.ContainsRune(name, 0) {
		return "", api.Errorf(api.KindImage, "name contains a NUL byte")
	}
	if len(name) > maxPathBytes {
		return "", errLimit("path bytes", maxPathBytes, "name is longer than %d bytes", maxPathBytes)
	}
	// Leading slashes do not climb: docker joins names to the root.
	p := path.Clean(strings.TrimLeft(name, "/"))
	if p == ".." || strings.HasPrefix(p, "../") {
		return "", api.Errorf(api.KindImage, "path traversal: name climbs above the root")
	}
	if p == "." || p == "/" {
		return "", nil
	}
	for rest, n := p, 1; ; n++ {
		part, more, deeper := strings.Cut(rest, "/")
		if len(part) > maxNameBytes {
			return "", errLimit("name bytes", maxNameBytes, "a component of the name is longer than %d bytes", maxNameBytes)
		}
		if n > c.limits.Depth {
			return "", errLimit("Depth", int64(c.limits.Depth), "name has more than %d components", c.limits.Depth)
		}
		if !deeper {
			return p, nil
		}
		rest = more
	}
}

// split gives a clean path's directory and last component.
func split(p string) (dir, base string) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "", p
	}
	return p[:i], p[i+1:]
}

// join is the reverse of split.
func join(dir, base string) string {
	if dir == "" {
		return base
	}
	if base == "" {
		return dir
	}
	return dir + "/" + base
}

// reserved tells whether a directory's path has a whiteout's name in it.
func reserved(dir string) bool {
	return strings.HasPrefix(dir, whiteoutPrefix) || strings.Contains(dir, "/"+whiteoutPrefix)
}

// parent resolves the directory of an entry and makes what of it is missing.
func (c *conversion) parent(dir string) (string, error) {
	if to, ok := c.dirs[dir]; ok {
		return to, nil
	}
	// Mostly its own parent is known, and one step is left.
	up, last := split(dir)
	if to, ok := c.dirs[up]; ok {
		up = to
	}
	to, err := c.resolve(join(up, last), true)
	if err != nil {
		return "", err
	}
	if len(c.dirs) >= maxDirs {
		clear(c.dirs)
	}
	c.dirs[dir] = to
	return to, nil
}

// resolve follows the symlinks in the path of a directory as a process whose
// root is the tree would. With create it makes directories that are missing.
// The result has no symlinks in it.
func (c *conversion) resolve(dir string, create bool) (string, error) {
	at, rest, hops := "", dir, 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			at, _ = split(at)
			continue
		}
		next := join(at, part)
		if len(next) > maxPathBytes {
			return "", errLimit("path bytes", maxPathBytes, "the path to it is longer than %d bytes", maxPathBytes)
		}
		// The sink walks to each directory from the root.
		if c.steps += 1 + int64(strings.Count(next, "/")); c.steps > maxSteps {
			return "", errLimit("path steps", maxSteps, "the paths of the layer are too deep or go through too many symlinks")
		}
		e, ok := c.sink.Lookup(next)
		missing := !ok || isWhiteout(e)
		if !ok && c.lower != nil {
			if below, found := c.lower(next); found {
				c.stats.LowerUsed = true
				e, ok = below, true
			}
		}
		switch kind := e.Mode & erofs.ModeType; {
		case ok && kind == erofs.ModeSymlink:
			if hops++; hops > maxSymlinks {
				return "", errLimit("symlinks", maxSymlinks, "the path to it goes through more than %d symlinks", maxSymlinks)
			}
			if strings.HasPrefix(e.Linkname, "/") {
				at = ""
			}
			rest = e.Linkname + "/" + rest
			continue
		case ok && kind != erofs.ModeDir && !isWhiteout(e):
			return "", api.Errorf(api.KindImage, "its parent %.200q is not a directory", next)
		case missing && create:
			if err := c.implicit(next, e); err != nil {
				return "", err
			}
		}
		at = next
	}
	return at, nil
}

// implicit makes a directory that has no entry so far. What is known of it is
// what lower layers have there, or a whiteout in this one, or nothing.
func (c *conversion) implicit(p string, known erofs.Entry) error {
	e := erofs.Entry{Mode: erofs.ModeDir | 0o755}
	switch {
	case isWhiteout(known):
		setOpaque(&e)
	case known.Mode&erofs.ModeType == erofs.ModeDir:
		e = known
		delete(e.Xattrs, opaqueXattr)
	}
	c.stats.ImplicitDirs++
	if c.stats.ImplicitDirs > c.limits.Entries {
		return errLimit("Entries", int64(c.limits.Entries), "layer needs more than %d directories that it does not have", c.limits.Entries)
	}
	return c.sink.Add(p, e, nil)
}

// whiteout translates an entry called .wh.SOMETHING in dir.
func (c *conversion) whiteout(dir, base string) error {
	if base == opaqueName {
		c.stats.Opaque++
		return c.opaque(dir)
	}
	name := strings.TrimPrefix(base, whiteoutPrefix)
	if name == "" || name == "." || name == ".." {
		return api.Errorf(api.KindImage, "whiteout of %q", name)
	}
	c.stats.Whiteouts++
	p := join(dir, name)
	switch e, ok := c.sink.Lookup(p); {
	case !ok:
		return c.sink.Add(p, erofs.Entry{Mode: erofs.ModeChar}, nil)
	case e.Mode&erofs.ModeType == erofs.ModeDir:
		// A whiteout is for lower layers, whatever the order in the stream.
		return c.opaque(p)
	}
	return nil
}

// opaque marks a directory that exists.
func (c *conversion) opaque(dir string) error {
	e, ok := c.sink.Lookup(dir)
	if !ok {
		return api.Errorf(api.KindInternal, "opaque directory %.200q vanished", dir)
	}
	setOpaque(&e)
	return c.sink.Add(dir, e, nil)
}

// xattrs gives the extended attributes of an entry.
func (c *conversion) xattrs(hdr *tar.Header) (map[string]string, error) {
	var xattrs map[string]string
	total := 0
	for key, value := range hdr.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrRecord)
		if !ok {
			continue
		}
		if !storable(name) || strings.HasPrefix(name, overlayXattrs) && (name != opaqueXattr || value != "y") {
			c.stats.DroppedXattrs++
			continue
		}
		if len(name) > maxNameBytes {
			return nil, errLimit("name bytes", maxNameBytes, "extended attribute's name is longer than %d bytes", maxNameBytes)
		}
		if total += len(name) + len(value); total > c.limits.XattrBytes {
			return nil, errLimit("XattrBytes", int64(c.limits.XattrBytes), "extended attributes are larger than %d bytes", c.limits.XattrBytes)
		}
		if xattrs == nil {
			xattrs = map[string]string{}
		}
		xattrs[name] = value
	}
	return xattrs, nil
}

// storable tells names that Linux has a name space for.
func storable(name string) bool {
	for _, space := range xattrSpaces {
		if strings.HasPrefix(name, space) && len(name) > len(space) {
			return !strings.ContainsRune(name, 0)
		}
	}
	return false
}
