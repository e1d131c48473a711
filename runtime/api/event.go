// SPDX-License-Identifier: Apache-2.0

// What rungv tells a program that started it.

package api

// EventType says what an [Event] reports.
type EventType string

const (
	// EventHello is the first event of every verb.
	EventHello EventType = "hello"
	// EventCreated says that the container has an id and a record.
	EventCreated EventType = "created"
	// EventReady says that all is prepared and that the guest starts when the
	// caller says so: only with `rungv run --wait-start`.
	EventReady EventType = "ready"
	// EventStarted says that the guest's first process runs, or that of an exec.
	EventStarted EventType = "started"
	// EventWarning is something that went wrong without ending the verb.
	EventWarning EventType = "warning"
	// EventEnded says how the guest ended, or the process of an exec.
	EventEnded EventType = "ended"
	// EventFailed says why the verb failed: what a person would have read on
	// standard error.
	EventFailed EventType = "failed"
)

// CallerProtocol is the version of the channel that `rungv --caller-fd` speaks:
// a connected stream socket on which rungv writes one [Event] a line, as JSON,
// and reads lines of one word: see [CallerStart]. The end of what it can read says
// that the caller has ended, and ends the verb.
const CallerProtocol = 2

// CallerStart is the caller's answer to EventReady: let the guest run.
const CallerStart = "start"

// MaxEventBytes bounds a line of the channel; longer messages are cut.
const MaxEventBytes = 64 << 10

// Event is one line on the channel to the caller.
type Event struct {
	Type EventType `json:"event"`
	// Protocol is CallerProtocol and Version rungv's own, for EventHello.
	Protocol int    `json:"protocol,omitempty"`
	Version  string `json:"version,omitempty"`
	// Container is the id and Control the socket of the control channel, for
	// EventCreated. Its path may be too long for a socket address.
	Container string `json:"container,omitempty"`
	Control   string `json:"control,omitempty"`
	// Exit is how the guest ended, for EventEnded.
	Exit *ExitStatus `json:"exit,omitempty"`
	// Kind and Message tell what went wrong, for EventWarning and EventFailed.
	Kind    Kind   `json:"kind,omitempty"`
	Message string `json:"message,omitempty"`
	// Code is the verb's exit code, for EventFailed.
	Code int `json:"code,omitempty"`
}
