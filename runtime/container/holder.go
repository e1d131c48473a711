// SPDX-License-Identifier: Apache-2.0

// Who has a volume: asked when it is found locked.

package container

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

// maxHolders bounds how many holders a message names.
const maxHolders = 3

// Holder says who has a volume's file open, for a message; "" if nobody can be
// named.
func (r *Runner) Holder(path string) string {
	var names []string
	records, _ := r.State.List()
	for _, rec := range records {
		if rec.State != api.StateStopped && usesFile(rec, path) {
			names = append(names, fmt.Sprintf("container %s (%s, process %d)", rec.Name, rec.ShortID(), rec.Sandbox.PID))
		}
	}
	if len(names) == 0 {
		names = fileHolders(path)
	}
	if len(names) > maxHolders {
		names = append(names[:maxHolders], fmt.Sprintf("%d more", len(names)-maxHolders))
	}
	return strings.Join(names, ", ")
}

// VolumeUsers lists the containers, running or not, that were given a volume or
// a clone of it.
func (r *Runner) VolumeUsers(path string) []*state.Record {
	records, _ := r.State.List()
	return slices.DeleteFunc(records, func(rec *state.Record) bool { return !usesFile(rec, path) })
}

// usesFile reports whether a file is one of a container's volumes.
func usesFile(rec *state.Record, path string) bool {
	file, err := os.Stat(path)
	for _, m := range rec.Mounts {
		for _, p := range m.Files {
			if p == path {
				return true
			}
			if p == "" || err != nil {
				continue
			}
			if other, e := os.Stat(p); e == nil && os.SameFile(file, other) {
				return true
			}
		}
	}
	return false
}
