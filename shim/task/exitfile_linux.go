// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// exitFile is the name, in a bundle, of what is known of the first process' end.
const exitFile = "gvx-exit.json"

// maxExitFileBytes bounds what is read of it.
const maxExitFileBytes = 4 << 10

// Exit is how a container ended, as its bundle keeps it for a "delete" that runs
// when the shim is gone.
type Exit struct {
	PID    int       `json:"pid"`
	Status int       `json:"status"`
	At     time.Time `json:"at"`
}

// writeExit keeps an exit in the bundle. The file appears whole: it is
// what a crash of this very process leaves.
func writeExit(bundle string, e Exit) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	path := filepath.Join(bundle, exitFile)
	part := path + ".part"
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return fmt.Errorf("write exit status: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("write exit status: %w", err)
	}
	return nil
}

// ReadExit reads how the container of a bundle ended. The error is fs.ErrNotExist
// when that is not known.
func ReadExit(bundle string) (Exit, error) {
	f, err := os.Open(filepath.Join(bundle, exitFile))
	if err != nil {
		return Exit{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxExitFileBytes))
	if err != nil {
		return Exit{}, fmt.Errorf("read exit status: %w", err)
	}
	var e Exit
	if err := json.Unmarshal(data, &e); err != nil {
		return Exit{}, fmt.Errorf("read exit status: %w", err)
	}
	if e.Status < 0 || e.Status > 255 {
		return Exit{}, errors.New("read exit status: it is none")
	}
	return e, nil
}
