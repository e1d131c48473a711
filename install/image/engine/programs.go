// SPDX-License-Identifier: Apache-2.0

//go:build programs

// Package engine names the programs of a Docker engine, so that their versions
// and the hashes of all that they are built from are pinned in this folder's
// go.mod and go.sum. It is a module of its own and never compiled: nothing of
// it enters gvx. engine.sh builds the programs.
package engine

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
	_ "github.com/docker/buildx/cmd/buildx"
	_ "github.com/docker/cli/cmd/docker"
	_ "github.com/docker/compose/v5/cmd"
	_ "github.com/moby/moby/v2/cmd/docker-proxy"
	_ "github.com/moby/moby/v2/cmd/dockerd"
	_ "github.com/opencontainers/runc"
)
