// SPDX-License-Identifier: Apache-2.0

// Package control is the control channel of a sandbox: ttrpc over a stream
// socket, with the sandbox process as the server and the launcher, or whoever
// can open the sandbox's control socket, as the client.
//
// It owns the translation between the wire (package controlv1) and the words
// of runtime/api, and the errors' way across it. It never opens a socket by
// itself, never decides what a call does, and never trusts an answer: the
// process at the other end hosts hostile code, so a [Client] bounds and cleans
// whatever it hands on.
//
// An error crosses as a ttrpc status whose message is "kind: text"; see
// [ToStatus] and [FromStatus].
package control

import "time"

// Limits of what a client accepts from a sandbox.
const (
	// maxMessageBytes bounds an error's text: some lines for a person.
	maxMessageBytes = 4 << 10
	// maxProcesses bounds a process list; ttrpc's 4 MiB message bound alone
	// would let a guest fill a terminal with 100,000 lines.
	maxProcesses = 65536
	// maxCommandBytes bounds one command line of a process list.
	maxCommandBytes = 4 << 10
	// maxPhases and maxLayers bound the boot report.
	maxPhases = 64
	maxLayers = 64
	// maxNameBytes bounds a phase's or a layer's name.
	maxNameBytes = 128
)

// Target says which of a container's processes a signal goes to.
type Target int

const (
	// TargetInit is the container's first process.
	TargetInit Target = iota
	// TargetForeground is the foreground process group of its terminal.
	TargetForeground
	// TargetAll is every process of the container.
	TargetAll
)

// Phase is a point on the way to the guest's first instruction.
type Phase struct {
	Name string        `json:"name"`
	At   time.Duration `json:"at"`
}

// Started is what a sandbox reports once its first process runs.
type Started struct {
	// PID is the first process' id as the guest sees it.
	PID int
	// Phases are the boot's phases in order.
	Phases []Phase
	// Lockdown names the isolation layers that hold in the process.
	Lockdown []string
}

// Stats is what a sandbox uses. Sizes are bytes.
type Stats struct {
	MemoryBytes      uint64        `json:"memoryBytes"`
	MemoryLimitBytes uint64        `json:"memoryLimitBytes"`
	MemoryPeakBytes  uint64        `json:"memoryPeakBytes"`
	CPUUser          time.Duration `json:"cpuUserNanos"`
	CPUSystem        time.Duration `json:"cpuSystemNanos"`
	CPUThrottled     time.Duration `json:"cpuThrottledNanos"`
	Pids             uint64        `json:"pids"`
	PidsLimit        uint64        `json:"pidsLimit"`
	OOMKills         uint64        `json:"oomKills"`
	SentryHeapBytes  uint64        `json:"sentryHeapBytes"`
	NetworkReceived  uint64        `json:"networkReceivedBytes"`
	NetworkSent      uint64        `json:"networkSentBytes"`
}

// Process is one process of a guest.
type Process struct {
	PID           int
	PPID          int
	UID           uint32
	Command       string
	ResidentBytes uint64
	// ResidentPermille is the share of the guest's memory, in thousandths.
	ResidentPermille uint32
	VirtualBytes     uint64
	// State is a letter, as in proc(5); "?" if unknown.
	State     string
	StartedAt time.Time
	CPU       time.Duration
	TTY       string
	// Args is the command line, empty where the process has hidden it.
	Args []string
}
