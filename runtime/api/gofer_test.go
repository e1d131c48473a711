// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"testing"
)

func TestGoferHello(t *testing.T) {
	want := GoferHello{UID: 1000, GID: 1<<32 - 2}
	b := want.Marshal()
	var got GoferHello
	if err := got.Unmarshal(b); err != nil || got != want || len(b) != GoferHelloBytes {
		t.Errorf("%+v, %v of %d bytes", got, err, len(b))
	}
	for _, bad := range [][]byte{nil, b[:11], append(bytes.Clone(b), 0), make([]byte, GoferHelloBytes)} {
		if err := got.Unmarshal(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestValidateGofer(t *testing.T) {
	good := func() *Gofer {
		return &Gofer{Version: SpecVersion, Trees: []GoferTree{{RootFD: 4, SocketFD: 5}, {RootFD: 6, SocketFD: 7}}}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Gofer){
		"another version":         func(g *Gofer) { g.Version++ },
		"no trees":                func(g *Gofer) { g.Trees = nil },
		"too many":                func(g *Gofer) { g.Trees = make([]GoferTree, MaxTrees+1) },
		"no root":                 func(g *Gofer) { g.Trees[1].RootFD = NoFD },
		"a standard stream":       func(g *Gofer) { g.Trees[0].SocketFD = 2 },
		"the configuration":       func(g *Gofer) { g.Trees[0].RootFD = GoferConfigFD },
		"one for root and socket": func(g *Gofer) { g.Trees[0].SocketFD = 4 },
	} {
		g := good()
		spoil(g)
		if err := g.Validate(); KindOf(err) != KindInvalid && KindOf(err) != KindLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTreesOfContainers: every socket of a tree is among the descriptors of its
// container, the root's first.
func TestTreesOfContainers(t *testing.T) {
	c := Container{
		Rootfs: Rootfs{Host: &HostTree{FD: 1}},
		Mounts: []Mount{{Type: MountTmpfs}, {Type: MountBind, Host: &HostTree{FD: 2}}, {Type: MountBind, Host: &HostTree{FD: 3}}},
	}
	for i, fd := range c.TreeFDs() {
		if *fd != FD(i+1) {
			t.Errorf("tree %d has descriptor %d", i, *fd)
		}
	}
	found := 0
	if err := c.EachFD(func(fd *FD) error {
		if *fd > 0 {
			found++
		}
		return nil
	}); err != nil || found != 3 {
		t.Errorf("%d, %v", found, err)
	}
}
