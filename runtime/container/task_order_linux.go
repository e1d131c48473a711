// SPDX-License-Identifier: Apache-2.0

// Orders to the process that answers for a container: see FORMAT.md.

package container

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

const (
	// taskSocket is where the process that answers for a container takes orders,
	// in the container's directory: see FORMAT.md.
	taskSocket = "task.sock"
	// maxTaskMessageBytes bounds an order and its answer.
	maxTaskMessageBytes = 64 << 10
	// taskPatience bounds an order: a start runs hooks of the bundle.
	taskPatience = 10 * time.Minute
)

// taskAnswer is its answer. Both fields are empty where all is well.
type taskAnswer struct {
	Kind    api.Kind `json:"kind,omitempty"`
	Message string   `json:"message,omitempty"`
}

// orderTask asks the process that answers for a container.
func (r *Runner) orderTask(ctx context.Context, rec *state.Record, what *taskOrder) error {
	fail := func(err error) error { return fmt.Errorf("%s container %s: %w", what.Do, rec.Name, err) }
	conn, err := dialIn(r.State.Dir(rec.ID), taskSocket)
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(taskPatience))
	if err := json.NewEncoder(conn).Encode(what); err != nil {
		return fail(err)
	}
	var answer taskAnswer
	if err := json.NewDecoder(io.LimitReader(conn, maxTaskMessageBytes)).Decode(&answer); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fail(err)
	}
	if answer.Message != "" {
		return api.Errorf(answer.Kind, "%s", answer.Message)
	}
	return nil
}
