// SPDX-License-Identifier: Apache-2.0

//go:build programs

// Package kubernetes names the programs of a cluster of one node, so that their
// versions and the hashes of all that they are built from are pinned in this
// folder's go.mod and go.sum. It is a module of its own and never compiled:
// nothing of it enters gvx. The replacements in go.mod are released versions of
// what Kubernetes' own go.mod looks for in its tree.
package kubernetes

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
