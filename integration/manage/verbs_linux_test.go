// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPause: nothing runs while it lasts; a stop ends it.
func TestPause(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, `trap 'exit 8' TERM; i=0; while :; do echo $((i=i+1)); sleep 0.02; done`)
		eventually(t, "it counts", func() bool { return b.must(t, "logs", name) != "" })
		b.must(t, "pause", name)
		first := b.must(t, "logs", "--tail", "1", name)
		time.Sleep(300 * time.Millisecond)
		if second := b.must(t, "logs", "--tail", "1", name); first != second {
			t.Errorf("it went on from %s to %s", first, second)
		}
		if got := b.must(t, "ps", "--filter", "status=paused", "--format", "{{.Names}} {{.Status}}"); !strings.Contains(got, name) || !strings.HasSuffix(got, "(Paused)") {
			t.Errorf("ps: %q", got)
		}
		b.fails(t, 1, "already paused", "pause", name)
		b.fails(t, 1, "is paused", "exec", name, "true")
		b.must(t, "unpause", name)
		b.fails(t, 1, "not paused", "unpause", name)
		eventually(t, "it goes on", func() bool { return b.must(t, "logs", "--tail", "1", name) != first })
		b.must(t, "pause", name)
		b.must(t, "stop", name)
		if got := b.status(t, name); got != "exited 8" {
			t.Errorf("stopped while paused: %s", got)
		}
		killed := b.box(t, "sleep 1000")
		b.must(t, "pause", killed)
		b.must(t, "rm", "-f", killed)
	})
}

// TestUpdate: a new memory limit holds at once, a processor limit too.
func TestUpdate(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000", "--pids-limit", "50")
		const eat = "x = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(2); print('ate')"
		if r := b.run(t, nil, "exec", name, "python3", "-c", eat); r.Stdout != "ate\n" {
			t.Errorf("without a limit: %v", r)
		}
		b.must(t, "update", "-m", "64m", "--cpus", "0.25", "--pids-limit", "5", name)
		if r := b.run(t, nil, "exec", name, "python3", "-c", eat); r.Code != 137 {
			t.Errorf("with a limit of 64 MiB: %v", r)
		}
		got := b.must(t, "inspect", "-f", "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}", name)
		if got != "67108864 250000000 5" {
			t.Errorf("inspect: %s", got)
		}
		if got := b.must(t, "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", name); !strings.HasPrefix(got, name) || !strings.HasSuffix(got, "/ 64MiB") {
			t.Errorf("stats: %s", got)
		}
		r := b.run(t, nil, "exec", name, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 5 & done")
		if !strings.Contains(r.Stderr, "fork") {
			t.Errorf("with a limit of 5 processes: %v", r)
		}
		b.must(t, "update", "-m", "0", name)
		b.fails(t, 1, "minimum memory limit", "update", "-m", "1k", name)
		b.fails(t, 125, "one or more flags", "update", name)
		free := b.box(t, "sleep 1000")
		b.fails(t, 1, "cannot be added", "update", "--pids-limit", "5", free)
	})
}

// TestRenameTopInspect: small verbs, on a running container.
func TestRenameTopInspect(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 999")
		b.must(t, "rename", name, name+"-new")
		defer b.run(t, nil, "rm", "-f", name+"-new")
		b.fails(t, 1, "No such container", "exec", name, "true")
		name += "-new"
		top := strings.Split(b.must(t, "top", name), "\n")
		if got := strings.Fields(top[0]); strings.Join(got, " ") != "UID PID PPID C STIME TTY TIME CMD" {
			t.Errorf("columns: %q", got)
		}
		if got := strings.Join(strings.Fields(b.must(t, "top", name, "-eo", "pid,cmd")), " "); !strings.HasPrefix(got, "PID CMD") || !strings.Contains(got, "1 sh -c sleep 999") {
			t.Errorf("columns chosen: %q", got)
		}
		if got := strings.Join(strings.Fields(b.must(t, "top", name, "aux")), " "); !strings.HasPrefix(got, "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND root 1 ") || !strings.Contains(got, " S ") {
			t.Errorf("top aux: %q", got)
		}
		b.fails(t, 1, "unknown column", "top", name, "-o", "wchan")
		if got := b.must(t, "inspect", "-f", "{{.Name}} {{.State.Running}} {{.Config.Image}} {{.HostConfig.LogConfig.Type}}", name); got != "/"+name+" true "+image+" json-file" {
			t.Errorf("inspect: %s", got)
		}
		if got := b.must(t, "__complete", "exec", ""); !strings.Contains(got, name) {
			t.Errorf("the shell does not complete the name: %q", got)
		}
	})
}

// TestCopy: files, trees, streams and links, both ways, by docker's rules.
func TestCopy(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "mkdir -p /data/sub; echo inside > /data/file; ln -s /etc/passwd /data/link; ln -s /data /datalink; sleep 1000")
		eventually(t, "the files are there", func() bool { return b.run(t, nil, "exec", name, "test", "-L", "/datalink").Code == 0 })
		dir := b.home.Path("tmp", fmt.Sprintf("copy-%d", names.Add(1)))
		for _, d := range []string{dir, filepath.Join(dir, "src"), filepath.Join(dir, "here")} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
			if !b.root {
				b.home.Chown(t, d)
			}
		}
		defer os.RemoveAll(dir)
		path := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
		content := func(name string) string {
			data, _ := os.ReadFile(name)
			return string(data)
		}
		if err := os.WriteFile(path("src", "f"), []byte("outside"), 0o640); err != nil {
			t.Fatal(err)
		}
		if !b.root {
			b.home.Chown(t, path("src", "f"))
		}
		b.must(t, "cp", name+":/data", path("new"))
		b.must(t, "cp", name+":/data", path("here"))
		b.must(t, "cp", name+":data/file", path("one"))
		b.must(t, "cp", name+":/datalink/.", path("contents"))
		for file, want := range map[string]string{"new/file": "inside\n", "here/data/file": "inside\n", "one": "inside\n", "contents/file": "inside\n"} {
			if got := content(path(file)); got != want {
				t.Errorf("%s: %q", file, got)
			}
		}
		// A link that the container made leads nowhere on this side.
		if to, err := os.Readlink(path("new/link")); err != nil || to != "/etc/passwd" {
			t.Errorf("a link came out as %q, %v", to, err)
		}
		b.must(t, "cp", path("src"), name+":/in")
		b.must(t, "cp", path("src")+"/.", name+":/data/sub")
		b.must(t, "cp", path("src", "f"), name+":/etc/hosts") // a mount point
		got := b.must(t, "exec", name, "sh", "-c", "cat /in/f /data/sub/f /etc/hosts; stat -c '%u %a' /in/f")
		if got != "outsideoutsideoutside0 640" {
			t.Errorf("inside: %q", got)
		}
		stream := b.run(t, nil, "cp", name+":/data", "-")
		if r := b.run(t, strings.NewReader(stream.Stdout), "cp", "-", name+":/opt"); r.Code != 0 {
			t.Error(r)
		}
		if got := b.must(t, "exec", name, "cat", "/opt/data/file"); got != "inside" {
			t.Errorf("through a stream: %q", got)
		}
		list := exec.Command("tar", "t")
		list.Stdin = strings.NewReader(stream.Stdout)
		if out, err := list.Output(); err != nil || !bytes.Contains(out, []byte("data/sub/")) {
			t.Errorf("tar reads %q, %v", out, err)
		}
		b.fails(t, 1, "Could not find the file", "cp", name+":/none", path("x"))
		b.fails(t, 1, "no such directory", "cp", name+":/data/file", path("none/x"))
		b.fails(t, 1, "no such directory", "cp", path("src", "f"), name+":/none/x")
		b.fails(t, 1, "Could not find the directory", "cp", "-", name+":/none")
		b.fails(t, 1, "between containers", "cp", "a:/x", "b:/y")
		b.fails(t, 1, "at least one container", "cp", "/x", "/y")
		b.fails(t, 1, "No such container", "cp", "nothing:/x", path("x"))
	})
}
