// SPDX-License-Identifier: Apache-2.0

//go:build !compromised

package boot

import "z.gfire.dev/gvx/runtime/lockdown"

// makeFilter returns the allow-list; a build for tests has another.
var makeFilter = lockdown.Filter

// attackHost does nothing; a build for tests attacks its host here.
func attackHost() {}

// attackBroker does nothing; a build for tests attacks its broker here.
func attackBroker(int) {}
