// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// maxAccountFileBytes bounds what is read of a guest's passwd and group
	// files; larger ones are an error, not a silent cut.
	maxAccountFileBytes = 4 << 20
	// maxAccountLine bounds one line of them.
	maxAccountLine = 64 << 10
	// maxGroups is Linux' NGROUPS_MAX.
	maxGroups = 65536
	// maxID is the largest uid or gid that docker and runc take.
	maxID = 1<<31 - 1
)

// account is what a process runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// passwdEntry is one line of /etc/passwd (passwd(5)).
type passwdEntry struct {
	name     string
	uid, gid uint32
	home     string
}

// groupEntry is one line of /etc/group (group(5)).
type groupEntry struct {
	name    string
	gid     uint32
	members []string
}

// lookupAccount resolves docker's user form, name|uid[:group|gid], and
// additional groups against the account files. A number need not be listed. A
// user's supplementary groups are those that list it as a member, unless the
// form names a group.
func lookupAccount(form string, additional []string, passwd, group []byte) (*account, error) {
	userName, groupName, hasGroup := strings.Cut(form, ":")
	if userName == "" {
		userName = "0"
	}
	users := parsePasswd(passwd)
	groups := parseGroup(group)

	a := &account{home: "/"}
	user, ok := findUser(users, userName)
	switch {
	case ok:
		a.uid, a.gid = user.uid, user.gid
		if user.home != "" {
			a.home = user.home
		}
	default:
		uid, err := parseID(userName)
		if err != nil {
			return nil, api.Errorf(api.KindInvalid, "unable to find user %s: no matching entries in passwd file", userName)
		}
		a.uid = uid
	}
	if hasGroup && groupName != "" {
		gid, err := findGroup(groups, groupName)
		if err != nil {
			return nil, err
		}
		a.gid = gid
	} else if user.name != "" {
		for _, g := range groups {
			for _, member := range g.members {
				if member == user.name {
					a.groups = append(a.groups, g.gid)
					break
				}
			}
		}
	}
	for _, name := range additional {
		gid, err := findGroup(groups, name)
		if err != nil {
			return nil, err
		}
		a.groups = append(a.groups, gid)
	}
	if len(a.groups) > maxGroups {
		return nil, api.Errorf(api.KindLimit, "user %s: %d supplementary groups, at most %d", userName, len(a.groups), maxGroups)
	}
	return a, nil
}

// findUser prefers a name over a number, as docker does.
func findUser(users []passwdEntry, nameOrID string) (passwdEntry, bool) {
	for _, u := range users {
		if u.name == nameOrID {
			return u, true
		}
	}
	if id, err := parseID(nameOrID); err == nil {
		for _, u := range users {
			if u.uid == id {
				return u, true
			}
		}
	}
	return passwdEntry{}, false
}

func findGroup(groups []groupEntry, nameOrID string) (uint32, error) {
	for _, g := range groups {
		if g.name == nameOrID {
			return g.gid, nil
		}
	}
	id, err := parseID(nameOrID)
	if err != nil {
		return 0, api.Errorf(api.KindInvalid, "unable to find group %s: no matching entries in group file", nameOrID)
	}
	return id, nil
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > maxID {
		return 0, fmt.Errorf("%q is not an id", s)
	}
	return uint32(n), nil
}

// parsePasswd returns the well-formed lines of a passwd file; like every
// libc, it passes over the others.
func parsePasswd(data []byte) []passwdEntry {
	var entries []passwdEntry
	eachLine(data, func(f []string) {
		if len(f) < 6 {
			return
		}
		uid, err1 := parseID(f[2])
		gid, err2 := parseID(f[3])
		if err1 == nil && err2 == nil && f[0] != "" {
			entries = append(entries, passwdEntry{name: f[0], uid: uid, gid: gid, home: f[5]})
		}
	})
	return entries
}

// parseGroup returns the well-formed lines of a group file.
func parseGroup(data []byte) []groupEntry {
	var entries []groupEntry
	eachLine(data, func(f []string) {
		if len(f) < 3 {
			return
		}
		gid, err := parseID(f[2])
		if err != nil || f[0] == "" {
			return
		}
		g := groupEntry{name: f[0], gid: gid}
		if len(f) > 3 && f[3] != "" {
			g.members = strings.Split(f[3], ",")
		}
		entries = append(entries, g)
	})
	return entries
}

func eachLine(data []byte, fn func(fields []string)) {
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, maxAccountLine)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if line != "" && line[0] != '#' {
			fn(strings.Split(line, ":"))
		}
	}
}

// resolveAccount resolves the process' user in the container's root.
func (m *mounter) resolveAccount(p *api.Process) (*account, error) {
	if p.Account != nil {
		return m.numericAccount(p)
	}
	passwd, err := m.readGuestFile("/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := m.readGuestFile("/etc/group")
	if err != nil {
		return nil, err
	}
	return lookupAccount(p.User, p.AdditionalGroups, passwd, group)
}

// numericAccount is an account that the spec names in numbers. Its home directory
// is asked for only where the environment has none, and is "/" if nobody knows:
// runc does not fail for it either.
func (m *mounter) numericAccount(p *api.Process) (*account, error) {
	a := &account{uid: p.Account.UID, gid: p.Account.GID, home: "/"}
	a.groups = append(a.groups, p.Account.Groups...)
	if slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "HOME=") }) {
		return a, nil
	}
	passwd, err := m.readGuestFile("/etc/passwd")
	if err != nil {
		log.Warningf("home directory of uid %d: %v", a.uid, err)
		return a, nil
	}
	for _, u := range parsePasswd(passwd) {
		if u.uid == a.uid {
			a.home = u.home
			break
		}
	}
	return a, nil
}

// readGuestFile reads a regular guest file of bounded size. A file that does
// not exist or is not regular reads as empty.
func (m *mounter) readGuestFile(p string) ([]byte, error) {
	st, err := m.vfs.StatAt(m.ctx, m.creds, m.at(p), &vfs.StatOptions{Mask: linux.STATX_TYPE | linux.STATX_SIZE})
	if err != nil || st.Mode&linux.S_IFMT != linux.S_IFREG {
		return nil, nil
	}
	if st.Size > maxAccountFileBytes {
		return nil, api.Errorf(api.KindLimit, "read %s of the image: %d bytes, at most %d", p, st.Size, maxAccountFileBytes)
	}
	fd, err := m.vfs.OpenAt(m.ctx, m.creds, m.at(p), &vfs.OpenOptions{Flags: linux.O_RDONLY})
	if err != nil {
		return nil, fmt.Errorf("read %s of the image: %w", p, err)
	}
	defer fd.DecRef(m.ctx)
	data, err := io.ReadAll(io.LimitReader(&guestReader{m.ctx, fd}, maxAccountFileBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s of the image: %w", p, err)
	}
	return data, nil
}

// guestReader reads a guest file from its current offset.
type guestReader struct {
	ctx context.Context
	fd  *vfs.FileDescription
}

// Read implements io.Reader.
func (r *guestReader) Read(p []byte) (int, error) {
	n, err := r.fd.Read(r.ctx, usermem.BytesIOSequence(p), vfs.ReadOptions{})
	if n == 0 && err == nil && len(p) > 0 {
		return 0, io.EOF
	}
	if linuxerr.Equals(linuxerr.EINTR, err) {
		return int(n), nil
	}
	return int(n), err
}
