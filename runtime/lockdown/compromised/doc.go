// SPDX-License-Identifier: Apache-2.0

// Package compromised is a Sentry that has been taken over, for tests: built
// with the tag of the same name, and only then, the sandbox process tries to
// harm its host after it has locked itself and before its guest runs, and
// writes down how each attempt ended. Without the tag the package is empty.
//
// The tests of integration/posture choose what it does by a file beside the
// binary, <binary>.mode, because a sandbox process gets no arguments and no
// environment:
//
//	{"action": "kill|refuse|ignore", "attack": "open", "without": -1, "neighbour": 123}
//
// action replaces what the allow-list does with a call it does not contain:
// the real one, EPERM (so that all attacks fit into one process), or nothing
// at all, which shows what the other layers hold back by themselves. attack
// names one attack, "" none, "all" all of them. without leaves one entry out
// of the table: an entry that a workload can do without is one too many.
// neighbour is a process to attack.
// egress, if its kind is not empty, attacks the broker of the network: see
// [Egress].
//
// Results go to <binary>.result, one JSON object a line.
package compromised
