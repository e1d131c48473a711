// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// SharedHome is one home for all tests of a package, made when the first asks
// for it: images are imported once.
//
//	var home testbed.SharedHome
//
//	func TestMain(m *testing.M) { os.Exit(home.Main(m)) }
type SharedHome struct {
	once sync.Once
	home *Home
	err  error
}

// Get returns the home.
func (s *SharedHome) Get(t testing.TB) *Home {
	t.Helper()
	s.once.Do(func() { s.home, s.err = NewHome() })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.home
}

// Main runs the package's tests, removes the home, and returns the exit code.
func (s *SharedHome) Main(m *testing.M) int { return s.Close(m.Run()) }

// Close removes the home when the tests have ended with an exit code, and returns
// that, or another if the home cannot be removed.
func (s *SharedHome) Close(code int) int {
	if s.home == nil {
		return code
	}
	if err := s.home.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, "remove the tests' home:", err)
		return 1
	}
	return code
}
