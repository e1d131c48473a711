// SPDX-License-Identifier: Apache-2.0

package hostcgroup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// asEnv names the part that a copy of the test program plays, as another user or
// in another mount namespace.
const asEnv = "GVX_TEST_AS"

func TestMain(m *testing.M) {
	switch os.Getenv(asEnv) {
	case "user":
		playUser()
	case "unified":
		playUnified()
	default:
		os.Exit(m.Run())
	}
	os.Exit(0)
}

// play runs this program again in a part and returns what it said.
func play(t *testing.T, part string, attr *syscall.SysProcAttr) string {
	t.Helper()
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{exe}
	cmd.Env = append(os.Environ(), asEnv+"="+part)
	cmd.SysProcAttr, cmd.Dir = attr, "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", part, err, out)
	}
	return strings.TrimSpace(string(out))
}

// fail ends a part that did not go well.
func fail(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	os.Exit(1)
}

func pointer[T any](v T) *T { return &v }

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// made makes a group that the test's end removes, or skips.
func made(t *testing.T, p Placement, r *specs.LinuxResources) *Container {
	t.Helper()
	c, err := CreateContainer(p, r)
	if errors.Is(err, ErrUnavailable) {
		t.Skipf("this host or user: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func content(t *testing.T, dir, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestContainerCgroup goes through the life of a group with a path of its own.
func TestContainerCgroup(t *testing.T) {
	if Unified() {
		t.Skip("checks files of version 1")
	}
	name := "gvx-test-" + strconv.Itoa(os.Getpid())
	p := Placement{Path: "/" + name + "/missing/leaf", ID: "c1"}
	planned := Planned(p)
	c := made(t, p, &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: pointer(int64(64 << 20)), Swap: pointer(int64(64 << 20))},
		CPU:    &specs.LinuxCPU{Shares: pointer(uint64(512)), Quota: pointer(int64(50000)), Period: pointer(uint64(100000)), Cpus: "0"},
		Pids:   &specs.LinuxPids{Limit: pointer(int64(77))},
	})
	defer func() {
		_ = c.Remove()
		for _, controller := range []string{"memory", "cpu", "cpuacct", "cpuset", "devices", "freezer", "blkio", "pids", "systemd", "unified"} {
			for _, dir := range []string{"/missing", ""} {
				_ = unix.Rmdir("/sys/fs/cgroup/" + controller + "/" + name + dir)
			}
		}
	}()
	if !maps.Equal(planned, c.Paths()) || len(planned) == 0 {
		t.Errorf("it was to be at %v, and is at %v", planned, c.Paths())
	}
	for file, want := range map[[2]string]string{
		{"memory", "memory.limit_in_bytes"}: strconv.Itoa(64 << 20),
		{"cpu", "cpu.shares"}:               "512",
		{"cpu", "cpu.cfs_quota_us"}:         "50000",
		{"cpuset", "cpuset.cpus"}:           "0",
		{"pids", "pids.max"}:                "77",
	} {
		if c.Path(file[0]) == "" {
			t.Logf("this host has no controller %s", file[0])
			continue
		}
		if !strings.HasSuffix(c.Path(file[0]), p.Path) {
			t.Errorf("%s is at %s, want %s", file[0], c.Path(file[0]), p.Path)
		}
		if got := content(t, c.Path(file[0]), file[1]); got != want {
			t.Errorf("%s is %q, want %q", file[1], got, want)
		}
	}
	cmd := sleeper(t)
	if err := c.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if got := content(t, "/proc/"+strconv.Itoa(cmd.Process.Pid), "cgroup"); strings.Count(got, p.Path+"\n")+strings.Count(got+"\n", p.Path+"\n") < len(c.Paths()) {
		t.Errorf("the process is in\n%s\nwant it in the group in all %d hierarchies", got, len(c.Paths()))
	}

	// Another process comes back to it.
	again, err := OpenContainer(p, c.Paths())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Update(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: pointer(int64(99))}}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Path("pids"), "pids.max"); got != "99" {
		t.Errorf("pids.max is %q after the update", got)
	}
	if got := content(t, c.Path("memory"), "memory.limit_in_bytes"); got != strconv.Itoa(64<<20) {
		t.Errorf("the memory limit is %q, which the update left out", got)
	}
	stats, err := again.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.PidsStats.Current != 1 || stats.PidsStats.Limit != 99 || stats.MemoryStats.Usage.Limit != 64<<20 {
		t.Errorf("got %+v, %+v", stats.PidsStats, stats.MemoryStats.Usage)
	}
	if pids, err := again.Processes(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("processes %v, %v", pids, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	paths := again.Paths()
	if err := again.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range paths {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	if err := again.Remove(); err != nil {
		t.Errorf("a second removal: %v", err)
	}
}

// TestRelativePlacement: below our own group, whatever the path says.
func TestRelativePlacement(t *testing.T) {
	if Unified() {
		t.Skip("checks paths of version 1")
	}
	leaf := "gvx-test-relative-" + strconv.Itoa(os.Getpid())
	h, err := findHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Placement{{Path: "../../" + leaf, ID: "c"}, {ID: leaf}} {
		c := made(t, p, nil)
		if want := filepath.Join(h.v1["memory"], leaf); c.Path("memory") != want {
			t.Errorf("%+v: %s, want %s", p, c.Path("memory"), want)
		}
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	}
}

// TestOOMIsHeard kills a process for want of memory.
func TestOOMIsHeard(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	c := made(t, Placement{Path: "/gvx-test-oom-" + strconv.Itoa(os.Getpid()), ID: "c"},
		&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: pointer(int64(32 << 20))}})
	if Unified() && c.Path("memory") != "" {
		if _, err := os.Stat(c.Path("memory") + "/memory.max"); err != nil {
			t.Skip("no memory controller here")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	killed, err := c.WatchOOM(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `read x; exec python3 -c 'x = bytearray(1 << 28)'`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, "go")
	if err := cmd.Wait(); err == nil {
		t.Fatal("it lived with 256 MiB in a group of 32")
	}
	if _, ok := <-killed; !ok {
		t.Error("no event")
	}
	if n, err := c.OOMKills(); err != nil || n == 0 {
		t.Errorf("%d kills, %v", n, err)
	}
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
	for range killed { // Ends with the group.
	}
	if ctx.Err() != nil {
		t.Error("the watch outlived the group")
	}
}

func TestPlacementErrors(t *testing.T) {
	for _, p := range []Placement{
		{Path: "/a", ID: ""},
		{Path: "/a", ID: "a/b"},
		{Path: "/a\n0::/", ID: "c"},
		{Path: "/" + strings.Repeat("a", maxPlacementBytes), ID: "c"},
		{Path: "/kubepods/pod1", ID: "c", Systemd: true},
		{Path: "kubepods.slice:cri/containerd:x", ID: "c", Systemd: true},
		{Path: "kubepods.slice:cri:", ID: "c", Systemd: true},
	} {
		if _, err := CreateContainer(p, nil); api.KindOf(err) != api.KindInvalid && api.KindOf(err) != api.KindLimit {
			t.Errorf("%.80q: %v", fmt.Sprint(p), err)
		}
	}
	if _, err := OpenContainer(Placement{ID: "c"}, nil); api.KindOf(err) != api.KindInvalid {
		t.Errorf("no paths: %v", err)
	}
	p := Placement{Path: "system.slice:gvx:c1", ID: "c1", Systemd: true}
	if config, err := p.config(); err != nil || config.Parent != "system.slice" || config.ScopePrefix != "gvx" || config.Name != "c1" {
		t.Errorf("got %+v, %v", config, err)
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		if _, err := CreateContainer(p, nil); !errors.Is(err, ErrNoSystemd) || errors.Is(err, ErrUnavailable) {
			t.Errorf("without systemd: %v", err)
		}
	}
}

func TestResources(t *testing.T) {
	for name, r := range map[string]*specs.LinuxResources{
		"page size":       {HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB/../x"}}},
		"moves processes": {Unified: map[string]string{"cgroup.procs": "1"}},
		"kills":           {Unified: map[string]string{"cgroup.kill": "1"}},
		"other directory": {Unified: map[string]string{"../memory.max": "1"}},
		"no controller":   {Unified: map[string]string{"memory": "1"}},
	} {
		if _, err := resources(r); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := resources(&specs.LinuxResources{
		CPU:     &specs.LinuxCPU{Shares: pointer(uint64(1024))},
		Unified: map[string]string{"memory.high": "1", "cgroup.max.depth": "3"},
		BlockIO: &specs.LinuxBlockIO{
			Weight:                  pointer(uint16(100)),
			ThrottleReadBpsDevice:   []specs.LinuxThrottleDevice{{Rate: 7}},
			ThrottleWriteIOPSDevice: []specs.LinuxThrottleDevice{{Rate: 8}},
		},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 9}},
		Network:        &specs.LinuxNetwork{ClassID: pointer(uint32(5))},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.CpuWeight == 0 || c.Unified["memory.high"] != "1" || c.BlkioWeight != 100 || c.BlkioThrottleReadBpsDevice[0].Rate != 7 ||
		c.BlkioThrottleWriteIOPSDevice[0].Rate != 8 || c.HugetlbLimit[0].Limit != 9 || c.NetClsClassid != 5 {
		t.Errorf("got %+v", c)
	}
	if Unified() {
		return
	}
	_, err = CreateContainer(Placement{Path: "/gvx-test-never", ID: "c"}, &specs.LinuxResources{Unified: map[string]string{"memory.high": "1"}})
	if api.KindOf(err) != api.KindUnsupported {
		t.Errorf("settings of version 2 in version 1: %v", err)
	}
}

func TestForSandbox(t *testing.T) {
	if ForSandbox(nil) != nil {
		t.Error("nil became something")
	}
	r := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: pointer(int64(5))}, Pids: &specs.LinuxPids{Limit: pointer(int64(100))}}
	got := ForSandbox(r)
	if *got.Pids.Limit < 400 || *r.Pids.Limit != 100 || !reflect.DeepEqual(got.Memory, r.Memory) {
		t.Errorf("got %d tasks of %d, %+v", *got.Pids.Limit, *r.Pids.Limit, got.Memory)
	}
	none, zero, one := int64(-1), int64(0), int64(1)
	if got := ForSandbox(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &none}}); *got.Pids.Limit != none {
		t.Errorf("no limit became %d", *got.Pids.Limit)
	}
	// As runc; and the sandbox has more than one thread.
	least := ForSandbox(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &one}})
	if got := ForSandbox(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &zero}}); *got.Pids.Limit != *least.Pids.Limit || *got.Pids.Limit < 100 {
		t.Errorf("0 became %d, 1 became %d", *got.Pids.Limit, *least.Pids.Limit)
	}
	huge := int64(1) << 62
	if got := ForSandbox(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &huge}}); *got.Pids.Limit > 0 {
		t.Errorf("a huge limit became %d", *got.Pids.Limit)
	}
}

func TestNoContainer(t *testing.T) {
	var c *Container
	if err := errors.Join(c.Add(1), c.Update(nil), c.Remove()); err != nil {
		t.Error(err)
	}
	if _, err := c.Stats(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("usage of none: %v", err)
	}
	if _, err := c.WatchOOM(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("events of none: %v", err)
	}
	if c.Path("memory") != "" || c.Paths() != nil {
		t.Error("none has paths")
	}
}

func TestAdjustOOMScore(t *testing.T) {
	cmd := sleeper(t)
	if err := AdjustOOMScore(cmd.Process.Pid, 500); err != nil {
		t.Fatal(err)
	}
	if got := content(t, fmt.Sprintf("/proc/%d", cmd.Process.Pid), "oom_score_adj"); got != "500" {
		t.Errorf("it is %s", got)
	}
	if err := AdjustOOMScore(cmd.Process.Pid, 1001); api.KindOf(err) != api.KindInvalid {
		t.Errorf("1001: %v", err)
	}
}

// TestUnprivileged: a user is told that there is none to be had, in a way that
// programs understand.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	out := play(t, "user", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	if out != "unavailable unavailable unavailable" {
		t.Errorf("got %q", out)
	}
}

func playUser() {
	say := func(err error) string {
		if errors.Is(err, ErrUnavailable) {
			return "unavailable"
		}
		return fmt.Sprintf("(%v)", err)
	}
	_, err1 := CreateContainer(Placement{ID: "gvx-test-user"}, nil)
	_, err2 := CreateContainer(Placement{Path: "/gvx-test-user", ID: "c"}, nil)
	fmt.Println(say(err1), say(err2), say(AdjustOOMScore(os.Getpid(), -999)))
}

// TestUnified goes through the life of a group of version 2, in a mount namespace
// where that is all there is.
func TestUnified(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	if out := play(t, "unified", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}); out != "" {
		t.Error(out)
	}
}

func playUnified() {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fail("make mounts private: %v", err)
	}
	if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
		fail("mount version 2: %v", err)
	}
	if !Unified() {
		fail("version 2 is not recognised")
	}
	p := Placement{Path: "/gvx-test-unified-" + strconv.Itoa(os.Getpid()) + "/leaf", ID: "c"}
	dir := "/sys/fs/cgroup" + p.Path
	defer unix.Rmdir(filepath.Dir(dir))
	c, err := CreateContainer(p, &specs.LinuxResources{Unified: map[string]string{"cgroup.max.depth": "3"}})
	if err != nil {
		fail("create: %v", err)
	}
	defer c.Remove()
	if got, err := os.ReadFile(dir + "/cgroup.max.depth"); err != nil || string(got) != "3\n" {
		fail("cgroup.max.depth is %q, %v", got, err)
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		fail("%v", err)
	}
	defer cmd.Process.Kill()
	if err := c.Add(cmd.Process.Pid); err != nil {
		fail("add: %v", err)
	}
	again, err := OpenContainer(p, c.Paths())
	if err != nil {
		fail("open: %v", err)
	}
	if pids, err := again.Processes(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		fail("processes %v, %v", pids, err)
	}
	if _, err := again.Stats(); err != nil {
		fail("usage: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := again.Remove(); err != nil {
		fail("remove: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		fail("the group is left: %v", err)
	}
	_, err = CreateContainer(p, &specs.LinuxResources{Unified: map[string]string{"nosuch.max": "1"}})
	if api.KindOf(err) != api.KindInvalid && err == nil {
		fail("a controller that does not exist: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		fail("a group that could not be set up is left: %v", err)
	}
}
