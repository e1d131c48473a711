// SPDX-License-Identifier: Apache-2.0

// The gofer process: what it is from outside, and how it ends.

package bind

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// gofers are the gofer processes of the home's binary.
func (s *side) gofers(t *testing.T) []int {
	t.Helper()
	var pids []int
	for _, p := range s.home.Processes(t) {
		if first, command, _ := strings.Cut(p, " "); strings.HasPrefix(command, "gvx-gofer") {
			pid, err := strconv.Atoi(first)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// gofer is the only gofer that was not there before.
func (s *side) gofer(t *testing.T, before []int) int {
	t.Helper()
	pids := slices.DeleteFunc(s.gofers(t), func(pid int) bool { return slices.Contains(before, pid) })
	if len(pids) != 1 {
		t.Fatalf("%d gofers, want 1", len(pids))
	}
	return pids[0]
}

// TestNoGofer: a container without directories of the host has none.
func TestNoGofer(t *testing.T) {
	testbed.NeedRoot(t, "sees processes that are not dumpable")
	sides(t, func(t *testing.T, s *side) {
		cmd := s.command(context.Background(), "run", "--rm", "-i", "--network", "none", image, "sh", "-c", "echo ready; cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 6)
		if _, err := out.Read(buf); err != nil {
			t.Fatal(err)
		}
		if pids := s.gofers(t); len(pids) != 0 {
			t.Errorf("gofers %v", pids)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestGoferEnds: whichever of the three processes is killed, none is left, and the
// launcher says what happened.
func TestGoferEnds(t *testing.T) {
	testbed.NeedRoot(t, "sees processes that are not dumpable")
	sides(t, func(t *testing.T, s *side) {
		for _, victim := range []string{"gofer", "sandbox", "launcher", "nobody"} {
			t.Run(victim, func(t *testing.T) {
				left, dir, before := s.home.NothingLeft(t), s.dir(t), s.gofers(t)
				g := s.guest(t, "-v", dir+":/b")
				gofer := s.gofer(t, before)
				sandbox := 0
				for _, p := range s.home.Processes(t) {
					if pid, command, _ := strings.Cut(p, " "); strings.HasPrefix(command, "gvx-sandbox") && parent(pid) == g.cmd.Process.Pid {
						sandbox, _ = strconv.Atoi(pid)
					}
				}
				kill := func(pid int) {
					t.Helper()
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil || pid == 0 {
						t.Fatalf("kill %s %d: %v", victim, pid, err)
					}
				}
				g.want("open('/b/f', 'w').write('x')", "1")
				switch victim {
				case "gofer":
					kill(gofer)
					_ = g.cmd.Wait() // Its input ends later: the guest has no other reason to end.
					if code := g.wait(); code != 125 {
						t.Errorf("exit code %d", code)
					}
					if want := fmt.Sprintf("the gofer process %d, which serves the container's host directories, ended before its guest did: killed by signal 9", gofer); !strings.Contains(g.stderr.String(), want) {
						t.Errorf("the launcher says %q", g.stderr)
					}
				case "sandbox":
					kill(sandbox)
					if code := g.wait(); code != 137 {
						t.Errorf("exit code %d", code)
					}
					if said := g.stderr.String(); strings.Contains(said, "gofer") {
						t.Errorf("the launcher blames another: %q", said)
					}
				case "launcher":
					kill(g.cmd.Process.Pid)
					g.wait()
				default:
					g.end()
				}
				gone(t, gofer)
				s.rungv(t, "rm", "-f", g.name)
				os.RemoveAll(dir)
				left()
			})
		}
	})
}

// gone waits for the end of a process.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

// parent returns a process' parent.
func parent(pid string) int {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// TestUnmounted: a gofer whose trees were all unmounted has nothing to do.
func TestUnmounted(t *testing.T) {
	testbed.NeedRoot(t, "sees processes that are not dumpable")
	sides(t, func(t *testing.T, s *side) {
		dir, before := s.dir(t), s.gofers(t)
		cmd := s.command(context.Background(), "run", "--rm", "-i", "--privileged", "--network", "none", "-v", dir+":/b", image,
			"sh", "-c", "touch /b/f; umount /b; echo $?; cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2)
		if _, err := out.Read(buf); err != nil || string(buf) != "0\n" {
			t.Fatalf("%q, %v", buf, err)
		}
		for deadline := time.Now().Add(30 * time.Second); len(s.gofers(t)) > len(before); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the gofer is still there")
			}
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the guest that goes on without: %v", err)
		}
	})
}

// goferHolds are the kinds of descriptor that a gofer may hold, beside its trees.
var goferHolds = regexp.MustCompile(`^(/dev/null|pipe:\[\d+\]|socket:\[\d+\]|anon_inode:\[event(poll|fd)\]|/memfd:[\w-]+ \(deleted\)|/proc/\d+/fd|/)$`)

// TestGoferPosture reads what the live process is.
func TestGoferPosture(t *testing.T) {
	testbed.NeedRoot(t, "reads /proc of processes that are not dumpable")
	sides(t, func(t *testing.T, s *side) {
		dir, before := s.dir(t), s.gofers(t)
		g := s.guest(t, "-v", dir+":/b")
		g.want("open('/b/f', 'w').write('x')", "1")
		pid := s.gofer(t, before)
		proc := fmt.Sprintf("/proc/%d/", pid)
		// CHOWN, DAC_OVERRIDE, FOWNER, FSETID and SETFCAP; of a user's the middle three.
		caps := map[bool]string{true: "000000008000001b", false: "000000000000001a"}[s.uid == 0]
		want := map[string]string{"CapInh": "0000000000000000", "CapPrm": caps, "CapEff": caps, "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}
		if s.uid == 0 {
			want["CapBnd"] = caps
		}
		tasks, err := os.ReadDir(proc + "task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			for _, line := range strings.Split(read(t, proc+"task/"+task.Name()+"/status"), "\n") {
				name, value, _ := strings.Cut(line, ":")
				if w, ok := want[name]; ok && strings.TrimSpace(value) != w {
					t.Errorf("thread %s: %s is %s, want %s", task.Name(), name, strings.TrimSpace(value), w)
				}
			}
		}
		for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts"} {
			ours, err := os.Readlink("/proc/self/ns/" + ns)
			if err != nil {
				t.Fatal(err)
			}
			if its, err := os.Readlink(proc + "ns/" + ns); err != nil || its == ours {
				t.Errorf("namespace %s is %s, the host's: %v", ns, its, err)
			}
		}
		// Its root holds its own descriptors, and nothing else.
		root, err := os.ReadDir(proc + "root")
		if err != nil || len(root) != 1 || root[0].Name() != "fd" {
			t.Errorf("its root holds %v, %v", root, err)
		}
		if devices := read(t, proc+"net/dev"); strings.Count(devices, ":") != 1 || !strings.Contains(devices, "lo:") {
			t.Errorf("its network devices: %s", devices)
		}
		if environment := read(t, proc+"environ"); environment != "" {
			t.Errorf("its environment: %q", environment)
		}
		fds, err := os.ReadDir(proc + "fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			target, err := os.Readlink(proc + "fd/" + fd.Name())
			if err != nil || goferHolds.MatchString(target) || strings.HasPrefix(target, dir) {
				continue
			}
			// A mount of its own shows names from its root on.
			if name := filepath.Base(target); target != "/f" && name != "agent.py" {
				t.Errorf("descriptor %s is %s", fd.Name(), target)
			}
		}
		maps := read(t, proc+"maps")
		if strings.Contains(maps, "rwx") {
			t.Error("it has memory that is writable and executable")
		}
	})
}

// TestSandboxSockets: the sandbox' sockets to its gofer lie above its limit on open
// files, which no descriptor that it gets later can have.
func TestSandboxSockets(t *testing.T) {
	testbed.NeedRoot(t, "reads /proc of processes that are not dumpable")
	sides(t, func(t *testing.T, s *side) {
		g := s.guest(t, "-v", s.dir(t)+":/b")
		for _, p := range s.home.Processes(t) {
			pid, command, _ := strings.Cut(p, " ")
			if !strings.HasPrefix(command, "gvx-sandbox") || parent(pid) != g.cmd.Process.Pid {
				continue
			}
			fields := strings.Fields(regexp.MustCompile(`Max open files.*`).FindString(read(t, "/proc/"+pid+"/limits")))
			limit, err := strconv.Atoi(fields[4])
			if err != nil || fields[3] != fields[4] {
				t.Fatalf("limits %q: %v", fields, err)
			}
			fds, err := os.ReadDir("/proc/" + pid + "/fd")
			if err != nil {
				t.Fatal(err)
			}
			above := 0
			for _, fd := range fds {
				if n, _ := strconv.Atoi(fd.Name()); n >= limit {
					above++
				}
			}
			if above != 2 { // this mount, and the agent's
				t.Errorf("%d descriptors above the limit %d", above, limit)
			}
			return
		}
		t.Error("no sandbox process")
	})
}
