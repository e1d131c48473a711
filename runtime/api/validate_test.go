// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"
)

// TestValidateRefusesWhatNoKernelTakes: an image or a bundle can ask for paths
// and arguments that Linux would refuse and gVisor would not.
func TestValidateRefusesWhatNoKernelTakes(t *testing.T) {
	good := func() *Container {
		return &Container{
			ID:      "c",
			Rootfs:  Rootfs{Layers: []Layer{{FD: 5, Format: "erofs"}}},
			Process: Process{Args: []string{"true"}, Cwd: "/"},
		}
	}
	if err := good().Validate(); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	idle := good()
	idle.Idle, idle.InitFD, idle.Rootfs = true, 7, Rootfs{}
	if err := idle.Validate(); err != nil {
		t.Errorf("an idle one: %v", err)
	}
	for name, spoil := range map[string]func(*Container){
		"long working directory": func(c *Container) { c.Process.Cwd = strings.Repeat("/a", 5000) },
		"zero in it":             func(c *Container) { c.Process.Cwd = "/a\x00b" },
		"zero in an argument":    func(c *Container) { c.Process.Args = []string{"true", "\x00"} },
		"volume without files": func(c *Container) {
			c.Mounts = []Mount{{Type: MountVolume, Target: "/v", Volume: &Volume{Durability: DurabilityHost}}}
		},
		"volume of no durability": func(c *Container) {
			c.Mounts = []Mount{{Type: MountVolume, Target: "/v", Volume: &Volume{FDs: []FD{5}}}}
		},
		"volume without a volume": func(c *Container) { c.Mounts = []Mount{{Type: MountVolume, Target: "/v"}} },
		"bind without a tree":     func(c *Container) { c.Mounts = []Mount{{Type: MountBind, Target: "/b"}} },
		"bind without a socket":   func(c *Container) { c.Mounts = []Mount{{Type: MountBind, Target: "/b", Host: &HostTree{FD: NoFD}}} },
		"tmpfs of a tree":         func(c *Container) { c.Mounts = []Mount{{Type: MountTmpfs, Target: "/b", Host: &HostTree{FD: 5}}} },
		"populated bind": func(c *Container) {
			c.Mounts = []Mount{{Type: MountBind, Target: "/b", Host: &HostTree{FD: 5}, Populate: true}}
		},
		"layers and a directory":         func(c *Container) { c.Rootfs.Host = &HostTree{FD: 6} },
		"neither of them":                func(c *Container) { c.Rootfs.Layers = nil },
		"rootfs of one file":             func(c *Container) { c.Rootfs = Rootfs{Host: &HostTree{FD: 6, IsFile: true}} },
		"writable layer of nothing":      func(c *Container) { c.Rootfs.Upper = &Volume{} },
		"directory of no writable layer": func(c *Container) { c.Rootfs.UpperDirectory = "upper" },
		"directory outside of it": func(c *Container) {
			c.Rootfs.Upper = &Volume{FDs: []FD{9}, Durability: DurabilityProcess}
			c.Rootfs.UpperDirectory = "a/../../b"
		},
		"idle without a program": func(c *Container) { c.Idle, c.Rootfs = true, Rootfs{} },
		"idle with layers":       func(c *Container) { c.Idle, c.InitFD = true, 7 },
		"idle with a volume": func(c *Container) {
			c.Idle, c.InitFD = true, 7
			c.Rootfs = Rootfs{Upper: &Volume{FDs: []FD{9}, Durability: DurabilityProcess}}
		},
		"long directory": func(c *Container) { c.Directories = []string{strings.Repeat("/a", 5000)} },
	} {
		c := good()
		spoil(c)
		if err := c.Validate(); KindOf(err) != KindInvalid && KindOf(err) != KindLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
}
