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
// until the sandbox hangs up; both end the guest's connections. [Broker.Control]
// answers whoever may change the policy meanwhile.
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
// its own in the guest, and counts as 127.0.0.1, or ::1. The guest's name server
// is answered here with the host's resolver; a policy that denies by default
// denies it too, since names carry data out, unless a rule names 10.0.2.3.
//
// A rule may name a domain. Then only allowed names are resolved, and an address
// is reached by the names that this name server has given for it, while they
// hold. That is as good as the host's resolver, and no better than addresses
// are: hosts of one address share what is allowed to any of them.
//
// A change of policy reaches connections that exist. The broker keeps a
// descriptor of each and shuts down what is allowed no more, so that it does not
// matter what the sandbox does with its own.
//
// # Locks
//
// Each type's mutex guards its maps. Broker.changing comes first, then flows.mu,
// under which the policy asks learned.mu; the others are leaves. The mutex that
// keeps messages to the sandbox in order may be held while the sandbox does not
// read: none of the others is held with it.
package usernet
