// SPDX-License-Identifier: Apache-2.0

package cgroup2

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	// hierarchy is where the machine's cgroups are, programs what the second disk has.
	hierarchy = "/sys/fs/cgroup"
	programs  = "/gvx"
	// ordinary is the machine's user without rights.
	ordinary = 1000
	// patience bounds every wait.
	patience = 2 * time.Minute
)

// runtimes are compared where the two should not differ.
var runtimes = []string{"runc", "rungv"}

// TestInside is what the machine runs.
func TestInside(t *testing.T) {
	if os.Getenv(insideVariable) == "" {
		t.Skip("runs in the machine, by TestVersion2")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(hierarchy, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Fatalf("%s is not of version 2: %#x, %v", hierarchy, st.Type, err)
	}
	// Containers' processes outlive the commands that make them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"limits", limits}, {"unified", unified}, {"place", place}, {"update", update}, {"pause", pause}, {"memory", memory},
		{"exec in a group below", execBelow}, {"refusals", refusals}, {"killed creator", killedCreator},
		{"systemd", bySystemd}, {"run of an image", runImage}, {"ordinary user", ordinaryUser},
	} {
		t.Run(test.name, test.run)
	}
}

// container is one of a runtime's.
type container struct {
	t       *testing.T
	runtime string
	id      string
	dir     string
	global  []string
	spec    *specs.Spec
}

// bundle makes a bundle of busybox, in the cgroup /gvx-test/ID.
func bundle(t *testing.T, runtime, name string, args ...string) *container {
	t.Helper()
	c := &container{t: t, runtime: runtime, id: name + "-" + runtime, dir: t.TempDir()}
	// Not below /run, where no program may be run from.
	c.global = []string{"--root", filepath.Join("/var/lib/gvx-test", runtime)}
	rootfs := filepath.Join(c.dir, "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rootfs, "bin", "busybox"), busybox, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"sh", "sleep", "dd", "cat", "grep", "stat"} {
		if err := os.Symlink("busybox", filepath.Join(rootfs, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	if len(args) == 0 {
		args = []string{"/bin/sleep", "10000"}
	}
	c.spec = &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}},
		Linux: &specs.Linux{
			CgroupsPath: "/gvx-test/" + c.id, Resources: &specs.LinuxResources{},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
	return c
}

// command is a call of the runtime.
func (c *container) command(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(programs, c.runtime), append(slices.Clone(c.global), args...)...)
}

// try runs a call of the runtime.
func (c *container) try(args ...string) (string, error) {
	out, err := c.command(args...).CombinedOutput()
	return string(out), err
}

// must is try for what has to succeed.
func (c *container) must(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("%s %v: %v: %s", c.runtime, args, err, out)
	}
	return out
}

// create makes the container, which keeps its streams: they are a file's.
func (c *container) create() error {
	c.t.Helper()
	document, err := json.Marshal(c.spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, "config.json"), document, 0o644)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(c.dir, "out"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer out.Close()
	cmd := c.command("create", "--bundle", c.dir, "--pid-file", filepath.Join(c.dir, "pid"), c.id)
	cmd.Stdout, cmd.Stderr = out, out
	c.t.Cleanup(func() { _, _ = c.try("delete", "--force", c.id) })
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, c.read(filepath.Join(c.dir, "out")))
	}
	return nil
}

// start makes and starts the container.
func (c *container) start() {
	c.t.Helper()
	if err := c.create(); err != nil {
		c.t.Fatalf("%s create: %v", c.runtime, err)
	}
	c.must("start", c.id)
}

// remove ends it, and looks whether its cgroup is gone.
func (c *container) remove(group string) {
	c.t.Helper()
	_, _ = c.try("kill", c.id, "KILL")
	c.await("its end", func() bool { return c.status() == "stopped" })
	c.must("delete", c.id)
	if _, err := os.Stat(group); !os.IsNotExist(err) {
		c.t.Errorf("%s: after delete, %s: %v", c.runtime, group, err)
	}
}

func (c *container) status() string {
	c.t.Helper()
	var state specs.State
	if err := json.Unmarshal([]byte(c.must("state", c.id)), &state); err != nil {
		c.t.Fatal(err)
	}
	return string(state.Status)
}

// pid is the process that stands for the container.
func (c *container) pid() int {
	c.t.Helper()
	return number(c.t, c.read(filepath.Join(c.dir, "pid")))
}

func (c *container) read(path string) string {
	c.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// group is the directory of the container's cgroup.
func (c *container) group() string { return filepath.Join(hierarchy, c.spec.Linux.CgroupsPath) }

// settings are files of a cgroup.
func (c *container) settings(group string, names ...string) string {
	c.t.Helper()
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%s %s", name, c.read(filepath.Join(group, name)))
	}
	return text.String()
}

func (c *container) await(what string, holds func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: waited in vain for %s", c.runtime, what)
		}
	}
}

// same runs a test with each runtime and compares what it returns.
func same(t *testing.T, test func(runtime string) string) string {
	t.Helper()
	said := map[string]string{}
	for _, runtime := range runtimes {
		said[runtime] = test(runtime)
	}
	if said["rungv"] != said["runc"] {
		t.Errorf("rungv:\n%s\nrunc:\n%s", said["rungv"], said["runc"])
	}
	return said["rungv"]
}

func pointer[T any](v T) *T { return &v }

// limited are limits of each kind that rungv takes.
func limited(r *specs.LinuxResources) {
	r.Memory = &specs.LinuxMemory{Limit: pointer(int64(256 << 20)), Swap: pointer(int64(300 << 20)), Reservation: pointer(int64(64 << 20))}
	r.CPU = &specs.LinuxCPU{Quota: pointer(int64(50000)), Period: pointer(uint64(100000)), Shares: pointer(uint64(512)), Cpus: "0"}
	r.Pids = &specs.LinuxPids{Limit: pointer(int64(77))}
}

// limits: they are in the cgroup's files, and gone with it.
func limits(t *testing.T) {
	got := same(t, func(runtime string) string {
		c := bundle(t, runtime, "limits")
		limited(c.spec.Linux.Resources)
		c.start()
		defer c.remove(c.group())
		// The host counts threads, of which one process of a guest has several.
		if n := strings.TrimSpace(c.read(filepath.Join(c.group(), "pids.max"))); n != "max" && number(t, n) < 77 {
			t.Errorf("%s: pids.max is %s", runtime, n)
		}
		return c.settings(c.group(), "memory.max", "memory.swap.max", "memory.low", "cpu.max", "cpu.weight", "cpuset.cpus", "cgroup.controllers")
	})
	if !strings.HasPrefix(got, "memory.max 268435456\nmemory.swap.max 46137344\n") {
		t.Errorf("limits: %s", got)
	}
}

// unified: settings of version 2 by their own names.
func unified(t *testing.T) {
	got := same(t, func(runtime string) string {
		c := bundle(t, runtime, "unified")
		c.spec.Linux.Resources.Unified = map[string]string{"memory.high": "104857600", "memory.max": "209715200", "cpu.weight": "42", "pids.max": "99"}
		c.start()
		defer c.remove(c.group())
		return c.settings(c.group(), "memory.high", "memory.max", "cpu.weight")
	})
	if got != "memory.high 104857600\nmemory.max 209715200\ncpu.weight 42\n" {
		t.Errorf("settings: %s", got)
	}
}

// place: all processes of a container are in its cgroup.
func place(t *testing.T) {
	same(t, func(runtime string) string {
		c := bundle(t, runtime, "place")
		c.start()
		defer c.remove(c.group())
		inside := strings.Fields(c.read(filepath.Join(c.group(), "cgroup.procs")))
		family := []string{fmt.Sprint(c.pid())}
		for i := 0; i < len(family); i++ {
			lists, _ := filepath.Glob("/proc/" + family[i] + "/task/*/children")
			for _, list := range lists {
				children, _ := os.ReadFile(list)
				family = append(family, strings.Fields(string(children))...)
			}
		}
		for _, p := range family {
			if !slices.Contains(inside, p) {
				t.Errorf("%s: process %s of the container is not among %v", runtime, p, inside)
			}
		}
		var pids []int
		if err := json.Unmarshal([]byte(c.must("ps", "-f", "json", c.id)), &pids); err != nil || !slices.Contains(pids, c.pid()) {
			t.Errorf("%s: ps -f json: %v, %v", runtime, pids, err)
		}
		return strings.ReplaceAll(c.read(fmt.Sprintf("/proc/%d/cgroup", c.pid())), runtime, "RUNTIME")
	})
}

// update changes limits, those of processes inside too.
func update(t *testing.T) {
	got := same(t, func(runtime string) string {
		c := bundle(t, runtime, "update")
		limited(c.spec.Linux.Resources)
		c.start()
		defer c.remove(c.group())
		c.must("update", "--memory", "134217728", "--memory-swap", "134217728", "--memory-reservation", "33554432", "--cpu-quota", "25000", "--cpu-share", "256", "--pids-limit", "55", c.id)
		var stats struct {
			Data struct {
				Memory struct {
					Usage struct {
						Limit uint64 `json:"limit"`
					} `json:"usage"`
				} `json:"memory"`
				Pids struct {
					Limit uint64 `json:"limit"`
				} `json:"pids"`
			} `json:"data"`
		}
		if err := json.Unmarshal([]byte(c.must("events", "--stats", c.id)), &stats); err != nil {
			t.Error(err)
		}
		return c.settings(c.group(), "memory.max", "memory.swap.max", "memory.low", "cpu.max", "cpu.weight") +
			fmt.Sprint(stats.Data.Memory.Usage.Limit, stats.Data.Pids.Limit)
	})
	if !strings.HasSuffix(got, "134217728 55") || !strings.Contains(got, "cpu.max 25000 100000\n") {
		t.Errorf("after the update: %s", got)
	}
}

// pause: nothing of the container goes on until it is resumed.
func pause(t *testing.T) {
	same(t, func(runtime string) string {
		c := bundle(t, runtime, "pause", "/bin/sh", "-c", "while :; do echo >> /tmp/grows; sleep 0.01; done")
		c.start()
		defer c.remove(c.group())
		size := func() int64 {
			fi, err := os.Stat(filepath.Join(c.dir, "rootfs/tmp/grows"))
			if err != nil {
				return 0
			}
			return fi.Size()
		}
		grows := func() bool { return size() > 0 }
		c.await("the first line", grows)
		c.must("pause", c.id)
		paused, before := c.status(), size()
		time.Sleep(2 * time.Second)
		if after := size(); after != before {
			t.Errorf("%s: the paused container went on: %d, then %d", runtime, before, after)
		}
		c.must("resume", c.id)
		c.await("more after resume", func() bool { return size() > before })
		return paused + c.status()
	})
}

// memory: who takes more than the limit is killed.
func memory(t *testing.T) {
	got := same(t, func(runtime string) string {
		c := bundle(t, runtime, "memory", "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=400M")
		c.spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: pointer(int64(200 << 20)), Swap: pointer(int64(200 << 20))}
		c.start()
		var status unix.WaitStatus
		c.await("its end", func() bool {
			pid, err := unix.Wait4(c.pid(), &status, unix.WNOHANG, nil)
			return err == nil && pid == c.pid()
		})
		c.must("delete", c.id)
		if status.Signaled() {
			return fmt.Sprint(128 + int(status.Signal()))
		}
		return fmt.Sprint(status.ExitStatus())
	})
	if got != "137" {
		t.Errorf("exit code %s", got)
	}
}

// execBelow: a process in a cgroup that has been made below the container's.
func execBelow(t *testing.T) {
	same(t, func(runtime string) string {
		c := bundle(t, runtime, "below")
		c.start()
		defer c.remove(c.group())
		if err := os.Mkdir(filepath.Join(c.group(), "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		pidFile := filepath.Join(c.dir, "exec.pid")
		cmd := c.command("exec", "--detach", "--cgroup", "sub", "--pid-file", pidFile, c.id, "/bin/sleep", "10000")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s exec: %v", runtime, err)
		}
		pid := number(t, c.read(pidFile))
		place := c.read(fmt.Sprintf("/proc/%d/cgroup", pid))
		// Nobody else reaps it, and process 1 of its container waits for that.
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Error(err)
		}
		c.await("the end of the exec", func() bool {
			reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
			return err != nil || reaped == pid
		})
		return strings.ReplaceAll(place, runtime, "RUNTIME")
	})
}

// refusals: what cannot be had is refused, and leaves no cgroup.
func refusals(t *testing.T) {
	for name, spoil := range map[string]func(*specs.LinuxResources){
		"no such setting":   func(r *specs.LinuxResources) { r.Unified = map[string]string{"memory.no_such": "1"} },
		"a bad value":       func(r *specs.LinuxResources) { r.Unified = map[string]string{"cpu.weight": "many"} },
		"no such processor": func(r *specs.LinuxResources) { r.CPU = &specs.LinuxCPU{Cpus: "77"} },
	} {
		for _, runtime := range runtimes {
			c := bundle(t, runtime, "refused")
			spoil(c.spec.Linux.Resources)
			if err := c.create(); err == nil {
				t.Errorf("%s: %s was created", runtime, name)
			}
			if _, err := os.Stat(c.group()); !os.IsNotExist(err) {
				t.Errorf("%s: %s left %s: %v", runtime, name, c.group(), err)
			}
		}
	}
	// A cgroup that has processes is nobody else's, as runc says too.
	for _, runtime := range runtimes {
		first, second := bundle(t, runtime, "first"), bundle(t, runtime, "second")
		first.start()
		second.spec.Linux.CgroupsPath = first.spec.Linux.CgroupsPath
		if err := second.create(); err == nil {
			t.Errorf("%s: a cgroup with processes was taken", runtime)
		}
		if first.status() != "running" {
			t.Errorf("%s: the first container is %s", runtime, first.status())
		}
		first.remove(first.group())
	}
}

// killedCreator: what stands for a container is killed; delete leaves nothing.
func killedCreator(t *testing.T) {
	same(t, func(runtime string) string {
		c := bundle(t, runtime, "killed")
		c.start()
		if err := unix.Kill(c.pid(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		c.await("its end", func() bool { return c.status() == "stopped" })
		c.must("delete", "--force", c.id)
		if _, err := os.Stat(c.group()); !os.IsNotExist(err) {
			t.Errorf("%s left %s: %v", runtime, c.group(), err)
		}
		_, err := c.try("state", c.id)
		return fmt.Sprint(err != nil)
	})
}

// bySystemd: the cgroup is a scope of systemd's, with the limits as its properties.
func bySystemd(t *testing.T) {
	got := same(t, func(runtime string) string {
		c := bundle(t, runtime, "scope")
		c.global = append(c.global, "--systemd-cgroup")
		limited(c.spec.Linux.Resources)
		c.spec.Linux.CgroupsPath = "system.slice:gvxtest:" + c.id
		c.start()
		unit := "gvxtest-" + c.id + ".scope"
		show := func() string {
			out, err := exec.Command("systemctl", "show", "-p", "ActiveState,MemoryMax,MemorySwapMax,MemoryLow,CPUQuotaPerSecUSec,CPUWeight,AllowedCPUs,Slice", unit).CombinedOutput()
			if err != nil {
				t.Fatalf("systemctl: %v: %s", err, out)
			}
			return string(out)
		}
		group := filepath.Join(hierarchy, "system.slice", unit)
		said := show() + c.settings(group, "memory.max", "cpu.max", "cpu.weight", "cpuset.cpus") +
			strings.ReplaceAll(c.read(fmt.Sprintf("/proc/%d/cgroup", c.pid())), runtime, "RUNTIME")
		c.must("update", "--memory", "134217728", "--memory-swap", "134217728", "--cpu-quota", "25000", c.id)
		said += show()
		c.remove(group)
		c.await("systemd to forget "+unit, func() bool { return strings.Contains(show(), "ActiveState=inactive") })
		return said
	})
	if !strings.Contains(got, "MemoryMax=268435456\n") || !strings.Contains(got, "MemoryMax=134217728\n") {
		t.Errorf("the scope: %s", got)
	}
}

// image is the reference of a tree as an image.
func image(c *container) string { return "rootfs:" + filepath.Join(c.dir, "rootfs") }

// runImage: as root, limits of `rungv run` are backed by a cgroup, which goes with it.
func runImage(t *testing.T) {
	c := bundle(t, "rungv", "image")
	// The command has a scope of its own, which systemd leaves to it to divide.
	name := "gvx-run-" + fmt.Sprint(os.Getpid())
	cmd := c.command("run", "--rm", "--name", name, "--network", "none", "-m", "96m", "--cpus", "0.5", image(c), "sleep", "10000")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("run: %v: %s", cmd.ProcessState, said.String())
		}
	}()
	var pid int
	c.await("the sandbox", func() bool {
		out, err := c.command("inspect", "-f", "{{.State.Running}} {{.Sandbox.Pid}}", name).Output()
		n, _ := fmt.Sscanf(string(out), "true %d", &pid)
		return err == nil && n == 1 && pid > 0
	})
	_, path, _ := strings.Cut(strings.TrimSpace(c.read(fmt.Sprintf("/proc/%d/cgroup", pid))), "::")
	group := filepath.Join(hierarchy, path)
	got := c.settings(group, "memory.max", "cpu.max")
	t.Logf("%s: %s", group, got)
	if !strings.Contains(got, "cpu.max 50000 100000\n") || strings.Contains(got, "memory.max max\n") {
		t.Errorf("limits in %s: %s", group, got)
	}
	c.must("kill", name)
	c.await("the cgroup's end", func() bool { _, err := os.Stat(group); return os.IsNotExist(err) })
}

// ordinaryUser: without rights there is no cgroup, and limits hold all the same.
func ordinaryUser(t *testing.T) {
	c := bundle(t, "rungv", "user")
	// The tree of a test is root's alone.
	dir, err := os.MkdirTemp("/home/user", "tree-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("sh", "-c", fmt.Sprintf("cp -a %s/rootfs %s/rootfs && chown -R %d:%[3]d %[2]s", c.dir, dir, ordinary)).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v: %s", err, out)
	}
	run := func(args ...string) (string, int) {
		cmd := exec.Command("setpriv", append([]string{
			fmt.Sprintf("--reuid=%d", ordinary), fmt.Sprintf("--regid=%d", ordinary), "--clear-groups", "--inh-caps=-all", "env", "HOME=/home/user",
			filepath.Join(programs, "rungv"), "run", "--rm", "--network", "none", "-m", "128m", "--cpus", "0.5", "rootfs:" + dir + "/rootfs",
		}, args...)...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := run("grep", "MemTotal", "/proc/meminfo"); code != 0 || !strings.Contains(out, "131072 kB") {
		t.Errorf("exit code %d: %s", code, out)
	}
	// It holds what it has taken: without a cgroup the limit is looked after from time
	// to time, which a machine of this kind may be late with.
	if out, code := run("dd", "if=/dev/zero", "of=/dev/null", "bs=400M"); code != 137 {
		t.Errorf("above the limit, exit code %d: %s", code, out)
	}
}
