// SPDX-License-Identifier: Apache-2.0

package lockdown

import "gvisor.dev/gvisor/pkg/abi/linux"

// auditArch is how seccomp names this architecture.
const auditArch = linux.AUDIT_ARCH_X86_64
