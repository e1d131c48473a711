// SPDX-License-Identifier: Apache-2.0

// Progress of copies of volumes.

package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/volumes"
)

// plainStep is in which parts of a copy a line is printed: tenths.
const plainStep = 10

func addProgressFlag(cmd *cobra.Command, mode *string) {
	cmd.Flags().StringVar(mode, "progress", progressAuto, `Set type of progress output ("auto", "plain", "none", "json")`)
	_ = cmd.RegisterFlagCompletionFunc("progress", cobra.FixedCompletions([]string{progressAuto, progressPlain, progressNone, progressJSON}, cobra.ShellCompDirectiveNoFileComp))
}

// withProgress runs a copy and shows on standard error how far it is.
func withProgress(cmd *cobra.Command, mode, name string, do func(volumes.Progress) error) error {
	w := cmd.ErrOrStderr()
	kind, err := newProgress(mode, w)
	if err != nil {
		return err
	}
	switch kind := kind.(type) {
	case *bars:
		var bar *layerBar
		err := do(func(done, total int64) {
			e := images.Event{Status: images.StatusConverting, Current: done, Total: total}
			if bar == nil {
				bar = kind.add(name, e)
			}
			bar.update(e)
		})
		if bar != nil && err == nil {
			bar.update(images.Event{Status: images.StatusDone})
		} else if bar != nil {
			bar.bar.Abort(false)
		}
		kind.Close()
		return err
	case *lineProgress:
		last := int64(-1)
		return do(func(done, total int64) {
			if part := done * plainStep / max(total, 1); part != last {
				last = part
				fmt.Fprintf(w, "%s: %s of %s\n", name, humanSize(done), humanSize(total))
			}
		})
	case *jsonProgress:
		enc := json.NewEncoder(w)
		return do(func(done, total int64) {
			_ = enc.Encode(jsonEvent{Status: "Copying", ID: name, Detail: &jsonDetail{Current: done, Total: total}})
		})
	}
	return do(nil)
}
