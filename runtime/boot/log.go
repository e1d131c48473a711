// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"os"

	"gvisor.dev/gvisor/pkg/log"
)

// setupLog sends the Sentry's log where whatever the Go runtime prints when it
// dies goes as well: to descriptor 2, which the launcher has made its log.
func setupLog(level string) {
	switch level {
	case "info":
		log.SetLevel(log.Info)
	case "debug":
		log.SetLevel(log.Debug)
	default:
		log.SetLevel(log.Warning)
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: os.Stderr}})
}
