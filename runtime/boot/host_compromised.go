// SPDX-License-Identifier: Apache-2.0

//go:build compromised

package boot

import "z.gfire.dev/gvx/runtime/lockdown/compromised"

// makeFilter, attackHost and attackBroker are those of a Sentry that has been taken over:
// see package compromised.
var (
	makeFilter = compromised.Filter
	attackHost = compromised.Run
	// attackBroker is called before anything else reads the broker's channel.
	attackBroker = compromised.Egress
)
