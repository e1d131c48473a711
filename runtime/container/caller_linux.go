// SPDX-License-Identifier: Apache-2.0

// A run on behalf of another program, which may end before it does.

package container

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

// errCallerGone ends a run that nobody waits for any more.
var errCallerGone = api.Errorf(api.KindState, "the program that asked for the container has ended")

// watchCaller tells the caller the container's id. Until the guest runs, a
// caller that ends takes the preparations with it by cancel; from then on
// [run.supervise] looks after that.
func (u *run) watchCaller(ctx context.Context, cancel context.CancelFunc) {
	if u.o.Created != nil {
		u.o.Created(u.handle.ID(), filepath.Join(u.handle.Dir(), controlSocket))
	}
	if u.o.Gone == nil {
		return
	}
	go func() {
		select {
		case <-u.o.Gone:
			cancel()
		case <-ctx.Done():
		}
	}()
}

// awaitStart holds a prepared run back until its caller wants the guest to run.
func (u *run) awaitStart(ctx context.Context) error {
	if u.o.Start == nil {
		return nil
	}
	u.o.Ready()
	select {
	case <-u.o.Start:
		u.began = monotonicNanos()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the word to start: %w", ctx.Err())
	}
}

// killedExit is the status of a guest that was killed from outside.
func killedExit() api.ExitStatus {
	return api.ExitStatus{Code: exitSignalBase + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), At: time.Now().UTC()}
}

// imageError tells an image that does not exist from other things that do not:
// programs that start rungv want to know.
func imageError(err error) error {
	if api.KindOf(err) == api.KindNotFound {
		return api.Errorf(api.KindImage, "%w", err)
	}
	return err
}
