// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNumbers compares both columns of the number table with x/sys' sources,
// so that arm64's is checked where there is no arm64.
func TestNumbers(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Skipf("go list: %v", err)
	}
	for _, arch := range []Arch{AMD64, ARM64} {
		file := filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+string(arch)+".go")
		want := constants(t, file)
		for name := range numbers {
			got, _ := Number(arch, name)
			if w, ok := want["SYS_"+strings.ToUpper(name)]; !ok || w != got {
				t.Errorf("%s on %s: %d, x/sys says %d (%t)", name, arch, got, w, ok)
			}
		}
	}
}

func constants(t *testing.T, file string) map[string]int {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				if i, err := strconv.Atoi(lit.Value); err == nil {
					out[v.Names[0].Name] = i
				}
			}
		}
		return true
	})
	return out
}

// TestTable checks what the table promises of itself.
func TestTable(t *testing.T) {
	// The filter's whole point, as names: none may appear, in any form.
	forbidden := []string{
		"open", "openat", "openat2", "creat", "open_by_handle_at", "socket", "connect", "bind", "listen", "sendto",
		"sendmsg", "sendmmsg", "execve", "execveat", "fork", "vfork", "clone3", "mount", "umount2", "pivot_root",
		"chroot", "setns", "unshare", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "keyctl", "add_key",
		"process_vm_readv", "process_vm_writev", "pidfd_open", "pidfd_getfd", "mprotect", "kill", "tkill", "prlimit64",
		"setuid", "setgid", "capset", "seccomp", "memfd_create", "kcmp", "init_module", "reboot",
	}
	// What serves a gofer is on numbers that nothing else can have; a gofer has
	// no sockets but those to its sandbox, and opens names that it never follows.
	// The host's network is by explicit configuration alone.
	exceptions := map[string][]string{
		"sandbox trees": {"sendmsg"}, "gofer": {"sendmsg", "openat"},
		"sandbox host network": {"socket", "bind", "connect", "listen", "sendto", "sendmsg"},
	}
	for _, arch := range []Arch{AMD64, ARM64} {
		used := map[string]bool{}
		for name, table := range map[string][]Entry{"sandbox": Table(arch), "sandbox trees": TreesTable(arch), "sandbox host network": HostNetworkTable(arch), "gofer": GoferTable(arch)} {
			seen := map[string]bool{}
			for _, e := range table {
				used[e.Syscall] = true
				if e.Reason == "" {
					t.Errorf("%s: %s: no reason", name, &e)
				}
				if s := e.String(); seen[s] {
					t.Errorf("%s: %s: listed twice", name, s)
				} else {
					seen[s] = true
				}
				if slices.Contains(forbidden, e.Syscall) && !slices.Contains(exceptions[name], e.Syscall) {
					t.Errorf("%s: %s: must never be listed", name, &e)
				}
				if e.Syscall == "mmap" {
					checkNoExec(t, &e)
				}
			}
		}
		for name := range numbers {
			if !used[name] && !(name == "getcpu" && arch == AMD64) {
				t.Errorf("%s has a number but no entry on %s", name, arch)
			}
		}
	}
}

// TestSendsToGoferOnly: on a descriptor that the kernel may have given to a
// connection of the broker's nothing can be sent with an address.
func TestSendsToGoferOnly(t *testing.T) {
	vars := map[Variable]uint64{TreesFD: 1000, BrokerFD: 5, StreamsFD: 6, ListenFD: 7}
	for _, e := range TreesTable(AMD64) {
		if e.Syscall != "sendmsg" {
			continue
		}
		for fd := range uint64(1000) {
			if e.Match([6]uint64{fd, 0, unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL}, vars) {
				t.Fatalf("%s permits descriptor %d", &e, fd)
			}
		}
	}
}

func checkNoExec(t *testing.T, e *Entry) {
	t.Helper()
	a := [6]uint64{2: 7}
	for _, c := range e.Args {
		if c.Arg != 2 {
			a[c.Arg] = c.Value
		}
	}
	if e.Match(a, nil) {
		t.Errorf("%s: permits an executable mapping", e)
	}
}

// TestCompileRefuses covers tables that must not compile.
func TestCompileRefuses(t *testing.T) {
	for _, e := range []Entry{{Syscall: "openat2", Reason: "none is good enough"}, {Syscall: "read"}} {
		if _, err := Compile(AMD64, []Entry{e}); err == nil {
			t.Errorf("%s: compiled", &e)
		}
	}
}
