// SPDX-License-Identifier: Apache-2.0

package hostcgroup

import (
	"fmt"
	"testing"
)

func TestParseSeat(t *testing.T) {
	for name, c := range map[string]struct {
		own, mounts []string
		want        string
	}{
		"version 2": {
			[]string{"0::/user.slice/a:b"},
			[]string{"30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate"},
			"[/sys/fs/cgroup/user.slice/a:b]",
		},
		"both": {
			[]string{"4:memory:/m", "3:cpu,cpuacct:/c", "2:pids:/elsewhere", "1:name=systemd:/s", "0::/u"},
			[]string{
				"31 20 0:27 / /cg/unified rw - cgroup2 cgroup2 rw",
				"32 20 0:28 / /cg/systemd rw - cgroup cgroup rw,xattr,name=systemd",
				"33 20 0:29 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
				"34 20 0:30 /m /cg/memory rw - cgroup cgroup rw,memory",
				"35 20 0:31 /p /cg/pids rw - cgroup cgroup rw,pids",
				"36 20 0:32 / /tmp rw - tmpfs tmpfs rw,memory",
				"37",
			},
			"[/cg/unified/u /cg/systemd/s /cg/cpu,cpuacct/c /cg/memory]",
		},
		"none": {nil, nil, "[]"},
	} {
		if got := fmt.Sprint(parseSeat(c.own, c.mounts).dirs); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
