// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/ttrpcutil"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// forwardTimeout bounds one attempt to tell containerd of an event.
	forwardTimeout = 5 * time.Second
	// eventLifetime is how long an event is offered to a containerd that does
	// not answer: longer than an upgrade takes. After a longer absence
	// containerd asks each shim for its tasks' states anyway.
	eventLifetime = 10 * time.Minute
	// firstRetry and lastRetry are the pauses between attempts.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// maxEvents bounds what waits for containerd. Only containerd's own calls
	// and the exits of what it started make events, so that this many come to
	// wait only if something is wrong.
	maxEvents = 16384
)

// forwarder takes one event to containerd.
type forwarder interface {
	Forward(ctx context.Context, e *types.Envelope) error
	Close() error
}

// eventQueue tells containerd of events in the order in which they were put.
// Unlike containerd's own publisher it keeps that order when containerd is away
// for a while.
type eventQueue struct {
	namespace string
	to        forwarder
	lifetime  time.Duration

	mu      sync.Mutex
	waiting []*types.Envelope
	closed  bool
	wake    chan struct{} // has room for one
	stop    chan struct{}
	done    chan struct{}
}

func newEventQueue(namespace string, to forwarder) *eventQueue {
	q := &eventQueue{
		namespace: namespace, to: to, lifetime: eventLifetime,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go q.run()
	return q
}

// put queues an event and returns at once.
func (q *eventQueue) put(event any) {
	body, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		log.L.WithError(err).Errorf("encode event %T", event)
		return
	}
	e := &types.Envelope{Timestamp: timestamppb.Now(), Namespace: q.namespace, Topic: runtime.GetTopic(event), Event: body}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting) >= maxEvents {
		log.L.Errorf("event %s is lost: %d wait, closed: %v", e.Topic, len(q.waiting), q.closed)
		return
	}
	q.waiting = append(q.waiting, e)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close tells containerd of what waits, each once, and ends the queue.
func (q *eventQueue) close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.mu.Unlock()
	close(q.stop)
	<-q.done
	return q.to.Close()
}

func (q *eventQueue) run() {
	defer close(q.done)
	for {
		e := q.next()
		if e == nil {
			return
		}
		q.deliver(e)
	}
}

// next waits for an event; nil says that the queue is closed and empty.
func (q *eventQueue) next() *types.Envelope {
	for {
		q.mu.Lock()
		if len(q.waiting) > 0 {
			e := q.waiting[0]
			q.waiting = q.waiting[1:]
			q.mu.Unlock()
			return e
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return nil
		}
		select {
		case <-q.wake:
		case <-q.stop:
		}
	}
}

// deliver offers an event until containerd takes it, or it is too old. Once the
// queue is closed it is offered once more.
func (q *eventQueue) deliver(e *types.Envelope) {
	deadline := time.Now().Add(q.lifetime)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		ctx, cancel := context.WithTimeout(context.Background(), forwardTimeout)
		err := q.to.Forward(ctx, e)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-q.stop:
			log.L.WithError(err).Warnf("event %s: containerd does not take it, and the shim ends", e.Topic)
			return
		default:
		}
		if time.Now().After(deadline) {
			log.L.WithError(err).Errorf("event %s: containerd has not taken it for %v", e.Topic, q.lifetime)
			return
		}
		select {
		case <-time.After(pause):
		case <-q.stop:
		}
	}
}

// remote forwards events to containerd's ttrpc socket.
type remote struct {
	client *ttrpcutil.Client
}

// dialEvents returns a forwarder to containerd at a ttrpc address. It connects
// when there is something to tell.
func dialEvents(address string) (forwarder, error) {
	if address == "" {
		return nil, errors.New("containerd gave no address to send events to")
	}
	c, err := ttrpcutil.NewClient(address)
	if err != nil {
		return nil, fmt.Errorf("events to %s: %w", address, err)
	}
	return &remote{client: c}, nil
}

func (r *remote) Forward(ctx context.Context, e *types.Envelope) error {
	err := r.forward(ctx, e)
	if errors.Is(err, ttrpc.ErrClosed) {
		// containerd was started again: another connection will do.
		if err = r.client.Reconnect(); err == nil {
			err = r.forward(ctx, e)
		}
	}
	return err
}

func (r *remote) forward(ctx context.Context, e *types.Envelope) error {
	service, err := r.client.EventsService()
	if err != nil {
		return err
	}
	_, err = service.Forward(ctx, &eventsapi.ForwardRequest{Envelope: e})
	return err
}

func (r *remote) Close() error { return r.client.Close() }
