// SPDX-License-Identifier: Apache-2.0

// Package usernet is the host half of a sandbox's user-mode network: the
// broker, which opens connections for a sandbox that may open none itself, and
// the published ports, through which the host's clients reach a guest.
//
// It owns what needs the host's network: sockets, the resolver's servers, the
// egress policy. It never moves a stream's bytes: a TCP connection is handed to
// the sandbox as a descriptor, and from then on the sandbox reads and writes it
// alone. It trusts nothing that a sandbox says; package netwire is how the two
// speak.
//
// # Life of a broker
//
// [New] makes the socket pair, whose far end the caller donates to the sandbox
// process. [Broker.Publish] binds ports: before the sandbox starts, so that a
// port in use is found first. [Broker.Start] serves until [Broker.Close], or
// until the sandbox hangs up; connections that were handed over outlive both.
//
// # What a guest reaches
//
// The policy is asked about every connection, in the broker, where a broken
// sandbox cannot change it. Without rules everything is allowed but the
// addresses of [protected]: the host's own loopback, link-local networks and
// with them the metadata services of clouds, and what is no address of a single
// peer. A rule opens one of those only by naming it: a wide rule does not.
//
// The guest's gateway stands for the host's loopback, which has no address of
// its own in the guest, and counts as 127.0.0.1. The guest's name server is
// answered here with the host's resolver; a policy that denies by default
// denies it too, since names carry data out, unless a rule names 10.0.2.3.
//
// # Locks
//
// Each type's mutex guards its maps and is a leaf. The mutex that keeps
// messages to the sandbox in order may be held while the sandbox does not read.
package usernet
