// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"io"
	"os"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/outputlog"
)

// AttachOptions say what is joined to a detached container.
type AttachOptions struct {
	// Stdin, if not nil, is passed on, as far as the container takes input.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	DetachKeys     []byte
	// SignalProxy sends the signals that this process gets to the guest.
	SignalProxy bool
	// Ready, if not nil, is called once no output will be missed any more.
	Ready func()
}

// Logs calls each with what a container has written: see [outputlog.Read].
func (r *Runner) Logs(ctx context.Context, ref string, o outputlog.ReadOptions, each func(*outputlog.Entry) error) error {
	rec, err := r.State.Get(ref)
	if err != nil {
		return err
	}
	if rec.Log == nil {
		return api.Errorf(api.KindUnsupported, "configured logging driver does not support reading")
	}
	if o.Follow && rec.State != api.StateRunning {
		o.Follow = false
	}
	if o.Follow {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = r.State.WaitReleased(ctx, rec.ID)
		}()
		o.Ended = ended
	}
	return outputlog.Read(ctx, r.State.Dir(rec.ID), o, each)
}

// Wait returns how a container ended, once it has. One that was never started
// has ended with 0.
func (r *Runner) Wait(ctx context.Context, ref string) (api.ExitStatus, error) {
	rec, err := r.State.Get(ref)
	if err != nil {
		return api.ExitStatus{}, err
	}
	var exit api.ExitStatus
	known := false
	if rec.State == api.StateRunning || rec.State == api.StateCreating {
		if c, err := r.Dial(rec); err == nil {
			// Asked of the sandbox, since --rm leaves no record to read.
			exit, err = c.Wait(ctx, rec.ID)
			known = err == nil
			c.Close()
		}
		if err := r.State.WaitReleased(ctx, rec.ID); err != nil {
			return api.ExitStatus{}, err
		}
	}
	now, err := r.State.Get(rec.ID)
	switch {
	case err == nil && now.Exit != nil:
		return *now.Exit, nil
	case known:
		return exit, nil
	case err == nil:
		return api.ExitStatus{}, nil
	case api.KindOf(err) == api.KindNotFound && rec.AutoRemove:
		// It went with its supervisor, unheard: killed.
		return api.ExitStatus{Code: 128 + signalKill, Signal: signalKill, At: time.Now().UTC()}, nil
	}
	return api.ExitStatus{}, err
}
