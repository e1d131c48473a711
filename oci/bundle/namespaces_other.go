// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bundle

// CheckNamespaces has nothing to check where there are no namespaces.
func (b *Bundle) CheckNamespaces() error { return nil }
