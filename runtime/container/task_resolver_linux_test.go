// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"strings"
	"testing"
)

func TestLoopbackResolvers(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "[]",
		"nameserver 127.0.0.11\noptions x":     "[127.0.0.11:53]",
		"nameserver 192.0.2.1\nnameserver ::1": "[[::1]:53]",
		"nameserver 1.1.1.1\nnameserver 1.1.1.1\nnameserver 1.1.1.1\nnameserver 127.0.0.1":     "[]",
		"nameserver\n#nameserver 127.0.0.1\nnameserver ::ffff:127.0.0.1\nnameserver fe80::1%x": "[]",
		strings.Repeat("x", maxResolvConfBytes) + "\nnameserver 127.0.0.1":                     "[]",
	} {
		if got := fmt.Sprint(parseLoopbackResolvers(strings.NewReader(text))); got != want {
			t.Errorf("%.80q: %s, want %s", text, got, want)
		}
	}
}
