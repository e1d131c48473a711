// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package outputlog

import "time"

// lookInterval is how often a log is looked at where nobody says that it has
// changed.
const lookInterval = 250 * time.Millisecond

type watcher struct {
	ticker *time.Ticker
	c      chan struct{}
	done   chan struct{}
}

func watch(string) (*watcher, error) {
	w := &watcher{ticker: time.NewTicker(lookInterval), c: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		for {
			select {
			case <-w.ticker.C:
				select {
				case w.c <- struct{}{}:
				default:
				}
			case <-w.done:
				return
			}
		}
	}()
	return w, nil
}

func (w *watcher) changed() <-chan struct{} { return w.c }

func (w *watcher) close() {
	w.ticker.Stop()
	close(w.done)
}
