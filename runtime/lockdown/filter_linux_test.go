// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"

	"z.gfire.dev/gvx/runtime/lockdown/internal/source"
	"z.gfire.dev/gvx/runtime/lockdown/policy"
)

// A few of these tests end or restrict the process they run in: they do it in
// a child, which is this test binary with GVX_LOCKDOWN_CHILD set.
var children = map[string]func(){
	"filtered-open":   childFilteredOpen,
	"filtered-refuse": childFilteredRefuse,
	"filtered-work":   childFilteredWork,
	"shed":            childShed,
	"reserve":         childReserve,
	"empty-root":      childEmptyRoot,
	"notify-parent":   childNotifyParent,
	"notify-child":    childNotifyChild,
}

func TestMain(m *testing.M) {
	if f := children[os.Getenv("GVX_LOCKDOWN_CHILD")]; f != nil {
		f()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func childCommand(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"GVX_LOCKDOWN_CHILD=" + name, "GOMAXPROCS=2"}
	return cmd
}

// TestGenerated fails when the table was changed and `go generate` was not run.
func TestGenerated(t *testing.T) {
	for _, p := range source.Programs {
		for _, arch := range source.Arches {
			want, err := p.Generate(arch)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(p.FileName(arch))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is out of date: run `go generate ./runtime/lockdown`", p.FileName(arch))
			}
		}
	}
}

// call is a system call as the filter sees it.
type call struct {
	nr   int
	args [6]uint64
}

// verdict runs a program on a call and says whether it is allowed.
func verdict(t *testing.T, insns []bpf.Instruction, c call, arch uint32) bool {
	t.Helper()
	prog, err := bpf.Compile(insns, false)
	if err != nil {
		t.Fatal(err)
	}
	// seccomp_data: nr, arch, instruction pointer, six arguments.
	data := make([]byte, 64)
	binary.NativeEndian.PutUint32(data[0:], uint32(c.nr))
	binary.NativeEndian.PutUint32(data[4:], arch)
	for i, a := range c.args {
		binary.NativeEndian.PutUint64(data[16+8*i:], a)
	}
	r, err := bpf.Exec[bpf.NativeEndian](prog, data)
	if err != nil {
		t.Fatal(err)
	}
	switch r {
	case uint32(linux.SECCOMP_RET_ALLOW):
		return true
	case uint32(linux.SECCOMP_RET_KILL_PROCESS):
		return false
	}
	t.Fatalf("call %+v: action %#x, want allow or kill", c, r)
	return false
}

// Numbers of descriptors in the tests of filters.
const testListen, testBroker, testStreams, testTrees = 17, 23, 29, 4096

// filters are all programs with the table that each is made from.
func filters(t *testing.T) map[string]struct {
	insns []bpf.Instruction
	table []policy.Entry
} {
	t.Helper()
	arch := policy.Arch(runtime.GOARCH)
	all := map[string]struct {
		insns []bpf.Instruction
		table []policy.Entry
	}{}
	for name, of := range map[string]struct {
		table []policy.Entry
		make  func(FilterOptions) ([]bpf.Instruction, error)
		trees bool
		host  bool
	}{
		"sandbox":              {policy.Table(arch), Filter, false, false},
		"sandbox trees":        {policy.TreesTable(arch), Filter, true, false},
		"sandbox host network": {policy.HostNetworkTable(arch), Filter, true, true},
		"gofer":                {policy.GoferTable(arch), GoferFilter, false, false},
	} {
		insns, err := of.make(FilterOptions{
			ListenFD: testListen, BrokerFD: testBroker, StreamsFD: testStreams, Trees: of.trees, TreesFD: testTrees, HostNetwork: of.host,
		})
		if err != nil {
			t.Fatal(err)
		}
		f := all[name]
		f.insns, f.table = insns, of.table
		all[name] = f
	}
	return all
}

// TestFilterAgreesWithTable asks the finished programs and their tables about the
// same calls: for each entry, arguments at and around what it permits.
func TestFilterAgreesWithTable(t *testing.T) {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	vars := map[policy.Variable]uint64{
		policy.SelfPID: uint64(os.Getpid()), policy.ListenFD: testListen, policy.BrokerFD: testBroker, policy.StreamsFD: testStreams,
		policy.TreesFD: testTrees, policy.ThreadPriority: uint64(int64(20 - raw + 1)),
	}
	arch := policy.Arch(runtime.GOARCH)
	for name, f := range filters(t) {
		permitted := func(nr int, args [6]uint64) bool {
			for i := range f.table {
				if n, _ := policy.Number(arch, f.table[i].Syscall); n == nr && f.table[i].Match(args, vars) {
					return true
				}
			}
			return false
		}
		checked := 0
		for i := range f.table {
			nr, _ := policy.Number(arch, f.table[i].Syscall)
			for _, args := range around(&f.table[i], vars) {
				want := permitted(nr, args)
				if got := verdict(t, f.insns, call{nr, args}, auditArch); got != want {
					t.Errorf("%s: %s with %#x: filter says %t, table says %t", name, f.table[i].Syscall, args, got, want)
				}
				checked++
			}
		}
		t.Logf("%s: %d entries, %d calls, %d instructions", name, len(f.table), checked, len(f.insns))
	}
}

// around returns argument lists near an entry's conditions: one that it
// permits, and each condition broken alone in several ways.
func around(e *policy.Entry, vars map[policy.Variable]uint64) [][6]uint64 {
	good := func(c *policy.Cond) uint64 {
		switch {
		case c.Var != policy.NoVariable:
			return vars[c.Var]
		case c.Op == policy.OneOf:
			return c.Values[len(c.Values)-1]
		}
		return c.Value
	}
	var base [6]uint64
	for i := range e.Args {
		base[e.Args[i].Arg] = good(&e.Args[i])
	}
	out := [][6]uint64{base}
	for i := range e.Args {
		c := &e.Args[i]
		g := good(c)
		for _, v := range append([]uint64{g + 1, g - 1, g | 1<<32, g | 1<<63, g ^ 1<<31, ^uint64(0), g ^ 4, 1 << 31, 0}, c.Values...) {
			a := base
			a[c.Arg] = v
			out = append(out, a)
		}
	}
	return out
}

// TestFilterRefusesAllElse goes through every system call number that is in no
// entry, and through foreign architectures and the x32 numbers.
func TestFilterRefusesAllElse(t *testing.T) {
	arch := policy.Arch(runtime.GOARCH)
	for name, f := range filters(t) {
		known := map[int]bool{}
		for _, e := range f.table {
			n, _ := policy.Number(arch, e.Syscall)
			known[n] = true
		}
		for nr := 0; nr < 1024; nr++ {
			if !known[nr] && verdict(t, f.insns, call{nr: nr}, auditArch) {
				t.Errorf("%s: system call %d is allowed and in no entry", name, nr)
			}
			if verdict(t, f.insns, call{nr: nr | 0x40000000}, auditArch) {
				t.Errorf("%s: x32 system call %d is allowed", name, nr)
			}
			for _, foreign := range []uint32{linux.AUDIT_ARCH_X86_64, linux.AUDIT_ARCH_AARCH64, 0x40000003 /* i386 */} {
				if foreign != auditArch && verdict(t, f.insns, call{nr: nr}, foreign) {
					t.Errorf("%s: system call %d of architecture %#x is allowed", name, nr, foreign)
				}
			}
		}
	}
}

// TestFilterWithoutDescriptors: what was not donated cannot be used.
func TestFilterWithoutDescriptors(t *testing.T) {
	insns, err := Filter(FilterOptions{ListenFD: -1})
	if err != nil {
		t.Fatal(err)
	}
	arch := policy.Arch(runtime.GOARCH)
	accept, _ := policy.Number(arch, "accept4")
	for _, fd := range []uint64{0, 3, 1 << 31, 0xffffffff, 1<<63 - 1} {
		if verdict(t, insns, call{accept, [6]uint64{fd, 0, 0, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK}}, auditArch) {
			t.Errorf("accept4 on %#x is allowed though there is no listener", fd)
		}
	}
	receive, _ := policy.Number(arch, "recvmsg")
	for _, fd := range []uint64{0, 3, 1 << 31, 0xffffffff, 1<<63 - 1} {
		if verdict(t, insns, call{receive, [6]uint64{fd, 0, unix.MSG_CMSG_CLOEXEC}}, auditArch) {
			t.Errorf("recvmsg on %#x is allowed though there is no broker", fd)
		}
	}
}

// TestInstallKills starts a child that locks itself and then opens a file.
func TestInstallKills(t *testing.T) {
	out, err := childCommand(t, "filtered-open").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("child: %v, want death by SIGSYS; output %q", err, out)
	}
	if ws := exit.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGSYS {
		t.Fatalf("child: %v, want death by SIGSYS; output %q", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "locked" {
		t.Errorf("child said %q, want %q", got, "locked")
	}
}

func childFilteredOpen() {
	mustInstall(Kill)
	os.Stdout.WriteString("locked\n")
	// On another thread than the one that installed the filter.
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		unix.Open("/etc/passwd", unix.O_RDONLY, 0)
		close(done)
	}()
	<-done
	os.Stdout.WriteString("opened\n")
}

// TestInstallRefuse covers the mode that tests of attacks use.
func TestInstallRefuse(t *testing.T) {
	if out, err := childCommand(t, "filtered-refuse").CombinedOutput(); err != nil || string(out) != "operation not permitted" {
		t.Errorf("child: %q, %v", out, err)
	}
}

func childFilteredRefuse() {
	mustInstall(Refuse)
	_, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	os.Stdout.WriteString(err.Error())
}

// TestRuntimeWorksLocked lets the Go runtime work hard under the filter:
// threads, garbage collection, timers, pipes, preemption.
func TestRuntimeWorksLocked(t *testing.T) {
	if out, err := childCommand(t, "filtered-work").CombinedOutput(); err != nil || string(out) != "done" {
		t.Errorf("child: %q, %v", out, err)
	}
}
