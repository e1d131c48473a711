// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// executable reports why creds may not execute the file at p, nil if they may.
func (m *mounter) executable(ctx context.Context, creds *auth.Credentials, p string) error {
	st, err := m.vfs.StatAt(ctx, creds, m.at(p), &vfs.StatOptions{Mask: linux.STATX_TYPE | linux.STATX_MODE})
	if err != nil {
		return err
	}
	if st.Mode&linux.S_IFMT != linux.S_IFREG {
		return linuxerr.EACCES
	}
	// Root may read anything, but executes only what somebody may execute.
	if st.Mode&0o111 == 0 {
		return linuxerr.EACCES
	}
	return m.vfs.AccessAt(ctx, creds, vfs.MayExec, m.at(p))
}
