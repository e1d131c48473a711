// SPDX-License-Identifier: Apache-2.0

// Kernel parameters that a spec sets in the guest.

package boot

import (
	"path"
	"sort"
	"strings"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"

	"z.gfire.dev/gvx/runtime/api"
)

// settledSysctls are parameters that the guest's kernel does not have, and acts
// as if they had these values: engines set them for every container.
var settledSysctls = map[string]string{
	// Anybody may bind any port, and send echo requests.
	"net.ipv4.ip_unprivileged_port_start": "0",
	"net.ipv4.ping_group_range":           "0 2147483647",
}

// writeSysctls sets kernel parameters of the guest, in a fixed order.
func (m *mounter) writeSysctls(sysctls map[string]string) error {
	names := make([]string, 0, len(sysctls))
	for n := range sysctls {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		value := strings.Join(strings.Fields(sysctls[n]), " ")
		if settled, ok := settledSysctls[n]; ok && settled == value {
			continue
		}
		err := writeGuestFile(m.ctx, m, sysctlFile(n), []byte(sysctls[n]))
		if err == nil || m.readsAs(sysctlFile(n), value) {
			continue
		}
		switch {
		case linuxerr.Equals(linuxerr.ENOENT, err), linuxerr.Equals(linuxerr.ENOTDIR, err):
			return api.Errorf(api.KindUnsupported, "sysctl %s: the sandbox kernel has no such parameter", n)
		case linuxerr.Equals(linuxerr.EIO, err), linuxerr.Equals(linuxerr.EACCES, err), linuxerr.Equals(linuxerr.EPERM, err):
			// What gVisor answers for a parameter that it only shows.
			return api.Errorf(api.KindUnsupported, "sysctl %s: the sandbox kernel shows this parameter but cannot change it", n)
		}
		return api.Errorf(api.KindInvalid, "sysctl %s=%s: %w", n, sysctls[n], err)
	}
	return nil
}

// readsAs says whether a parameter that cannot be changed has the value already.
func (m *mounter) readsAs(file, value string) bool {
	data, err := m.readGuestFile(file)
	return err == nil && len(data) > 0 && strings.Join(strings.Fields(string(data)), " ") == value
}

// sysctlFile is a parameter's file. A slash in its name stands for a dot in that
// of a file, as in sysctl(8).
func sysctlFile(name string) string {
	file := strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
	return path.Join("/proc/sys", path.Clean("/"+file))
}
