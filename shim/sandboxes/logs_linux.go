// SPDX-License-Identifier: Apache-2.0

package sandboxes

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/log"

	"z.gfire.dev/gvx/shim/options"
)

// logs is where one sandbox's own log goes.
type logs struct {
	debug bool
	// path is a file, "" for the shim's log.
	path string
	w    io.WriteCloser
}

// logFile says where a sandbox's log goes.
func logFile(o options.Options, id string) *logs {
	l := &logs{debug: o.Debug, path: o.DebugLog}
	if strings.HasSuffix(l.path, "/") {
		l.path = filepath.Join(l.path, id+".log")
	}
	return l
}

// open opens it; nil is the default, which keeps the last words only.
func (l *logs) open() (io.Writer, error) {
	if !l.debug {
		return nil, nil
	}
	if l.path == "" {
		l.w = log.L.WithField("source", "sandbox").Writer()
		return l.w, nil
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return nil, fmt.Errorf("open the sandbox's log: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the sandbox's log: %w", err)
	}
	l.w = f
	return f, nil
}

func (l *logs) close() {
	if l.w != nil {
		l.w.Close()
	}
}
