// SPDX-License-Identifier: Apache-2.0

// The process, from its first instruction to its last.

package gofer

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/gomaxprocs"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/footprint"
	"z.gfire.dev/gvx/runtime/lockdown"
)

const (
	// exitFailed is the exit code of a gofer that could not serve.
	exitFailed = 125
	// maxConfigBytes bounds the configuration: paths of all trees.
	maxConfigBytes = 32 << 20
	// maxProcs is how many threads serve at once, and so how many channels a
	// connection has: lisafs uses no more than four.
	maxProcs = 4
)

// Main runs the gofer. It does not return.
func Main() {
	// The first log line would open /etc/localtime.
	time.Local = time.UTC
	// An explicit number keeps the Go runtime's monitor from asking for the
	// affinity mask, which the allow-list does not contain.
	gomaxprocs.SetBase(min(maxProcs, max(2, runtime.NumCPU())))
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", api.GoferName, err)
		os.Exit(exitFailed)
	}
	os.Exit(0)
}

// serve serves all trees until the sandbox has closed their sockets.
func serve() error {
	cfg, err := readConfig(api.GoferConfigFD)
	if err != nil {
		return err
	}
	setupLog(cfg.LogLevel)
	trees, err := begin(cfg, lockdown.Kill)
	if err != nil {
		return err
	}
	footprint.Settle(nil)
	done := make(chan error)
	for _, t := range trees {
		go func() {
			err := t.serve()
			if err != nil {
				err = fmt.Errorf("tree %s: %w", t.name, err)
			}
			done <- err
		}()
	}
	for range trees {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

// begin brings the process to where requests can be answered.
func begin(cfg *api.Gofer, instead lockdown.Action) ([]*tree, error) {
	unix.Umask(0)
	if err := shed(cfg); err != nil {
		return nil, err
	}
	trees, err := openTrees(cfg)
	if err != nil {
		return nil, err
	}
	return trees, seal(cfg, trees, instead)
}

// readConfig reads and closes the configuration.
func readConfig(fd int) (*api.Gofer, error) {
	f := os.NewFile(uintptr(fd), "configuration")
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes))
	cfg := new(api.Gofer)
	if err == nil {
		err = json.Unmarshal(data, cfg)
	}
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w: gofers are started by rungv", err)
	}
	return cfg, nil
}

// setupLog has gVisor's packages log to standard error.
func setupLog(level string) {
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: os.Stderr}})
	switch level {
	case "debug":
		log.SetLevel(log.Debug)
	case "info":
		log.SetLevel(log.Info)
	default:
		log.SetLevel(log.Warning)
	}
}
