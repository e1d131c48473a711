// SPDX-License-Identifier: Apache-2.0

// A length that readers take without a lock.

package device

import "sync/atomic"

type sizeBox struct{ v atomic.Int64 }

func (b *sizeBox) get() int64  { return b.v.Load() }
func (b *sizeBox) set(n int64) { b.v.Store(n) }
