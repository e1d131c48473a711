// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/api"
)

// setupLog sends the Sentry's log, and whatever the Go runtime prints when it
// dies, to the donated log descriptor. Without one both are dropped: the
// standard streams of the process are /dev/null.
func setupLog(s *api.Sandbox) {
	level := log.Warning
	switch s.LogLevel {
	case "info":
		level = log.Info
	case "debug":
		level = log.Debug
	}
	log.SetLevel(level)
	if s.LogFD == api.NoFD {
		log.SetTarget(discardEmitter{})
		return
	}
	f := os.NewFile(uintptr(s.LogFD), "log")
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: f}})
	// A panic is written to descriptor 2 by the runtime itself.
	_ = unix.Dup3(int(s.LogFD), 2, 0)
}

// discardEmitter drops every message without formatting it.
type discardEmitter struct{}

// Emit implements log.Emitter.
func (discardEmitter) Emit(int, log.Level, time.Time, string, ...any) {}
