// SPDX-License-Identifier: Apache-2.0

//go:build programs

// Package agentsandbox pins the controller of kubernetes-sigs/agent-sandbox, and all
// that it is built from, for the tests. It is a module of its own and never compiled:
// nothing of it enters gvx.
package agentsandbox

import _ "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller"
