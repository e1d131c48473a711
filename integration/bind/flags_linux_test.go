// SPDX-License-Identifier: Apache-2.0

package bind

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMountPoints: what is missing of the way to a mount is made, and mounts nest.
func TestMountPoints(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		outer, inner := s.dir(t), s.dir(t)
		s.write(t, filepath.Join(outer, "o"), "outer")
		s.write(t, filepath.Join(inner, "i"), "inner")
		file := filepath.Join(s.dir(t), "file")
		s.write(t, file, "file")
		out := s.must(t, "-v", inner+":/new/deep/dir/sub", "-v", outer+":/new/deep/dir", "-v", file+":/etc/new/file", "-v", file+":/etc/hostname", image,
			"sh", "-c", "cat /new/deep/dir/o /new/deep/dir/sub/i /etc/new/file /etc/hostname; echo; stat -c %a /new /new/deep; ls /new/deep/dir")
		if want := "outerinnerfilefile\n755\n755\no\nsub"; out != want {
			t.Errorf("%q, want %q", out, want)
		}
		// The inner one's place is in the outer directory, as with docker.
		if st, err := os.Stat(filepath.Join(outer, "sub")); err != nil || !st.IsDir() {
			t.Errorf("mount point: %v, %v", st, err)
		}
	})
}

// TestSources: docker's words for what is not there, and -v's way to make it.
func TestSources(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		missing := filepath.Join(dir, "not", "there")
		result := s.run(t, "--mount", "type=bind,src="+missing+",dst=/b", image, "true")
		if want := `invalid mount config for type "bind": bind source path does not exist: ` + missing; result.Code != 125 || !strings.Contains(result.Stderr, want) {
			t.Errorf("%v, want %s", result, want)
		}
		if _, err := os.Stat(missing); !os.IsNotExist(err) {
			t.Errorf("--mount made its source: %v", err)
		}
		s.must(t, "-v", missing+":/b", image, "touch", "/b/f")
		if st, err := os.Stat(missing); err != nil || st.Mode() != os.ModeDir|0o755 {
			t.Errorf("-v's source: %v, %v", st, err)
		}
		if _, err := os.Stat(filepath.Join(missing, "f")); err != nil {
			t.Error(err)
		}
		fifo := filepath.Join(dir, "fifo")
		if err := unix.Mkfifo(fifo, 0o666); err != nil {
			t.Fatal(err)
		}
		for source, want := range map[string]string{fifo: "not for guests", "/dev/null": "not for guests", "a/b": "use absolute path"} {
			if result := s.run(t, "-v", source+":/b", image, "true"); result.Code != 125 || !strings.Contains(result.Stderr, want) {
				t.Errorf("%s: %v, want %s", source, result, want)
			}
		}
		if s.uid != 0 {
			result := s.run(t, "-v", "/root/gvx-not-mine:/b", image, "true")
			if result.Code != 125 || !strings.Contains(result.Stderr, "permission denied") {
				t.Errorf("a directory that the user cannot reach: %v", result)
			}
		}
		// A path of the caller's, a link followed, a file for a directory.
		s.write(t, filepath.Join(dir, "f"), "text")
		if err := os.Symlink(dir, filepath.Join(s.home.Dir, "link-"+s.name)); err != nil {
			t.Fatal(err)
		}
		if out := s.must(t, "-v", "./link-"+s.name+":/b", image, "cat", "/b/f"); out != "text" {
			t.Errorf("%q", out)
		}
		if result := s.run(t, "-v", filepath.Join(dir, "f")+":/etc", image, "true"); result.Code != 125 {
			t.Errorf("a file mounted on a directory: %v", result)
		}
	})
}

// TestSubmounts: what the host has mounted below comes along, unless it is not
// wanted.
func TestSubmounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts on the host")
	}
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		sub := filepath.Join(dir, "sub")
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		s.own(t, sub)
		s.write(t, filepath.Join(sub, "below"), "below")
		mount := func(at string) {
			t.Helper()
			if err := unix.Mount("gvx-test", at, "tmpfs", 0, "mode=0777,size=1m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			s.write(t, filepath.Join(at, "on"), "on")
		}
		mount(sub)
		const list = "ls /b/sub; touch /b/sub/new"
		if result := s.run(t, "-v", dir+":/b", image, "sh", "-c", list); result.Stdout != "on\n" || result.Code != 0 {
			t.Errorf("%v", result)
		}
		if result := s.run(t, "-v", dir+":/b:ro", image, "sh", "-c", list); result.Code == 0 || !strings.Contains(result.Stdout, "on\n") {
			t.Errorf("read-only: %v", result)
		}
		result := s.run(t, "--mount", "type=bind,src="+dir+",dst=/b,bind-nonrecursive", image, "sh", "-c", list)
		if s.uid == 0 && result.Stdout != "below\n" || s.uid != 0 && (result.Code != 125 || !strings.Contains(result.Stderr, "mounted below")) {
			t.Errorf("not recursive: %v", result)
		}
		// Later mounts come with slave, and do not without.
		for propagation, seen := range map[string]bool{"rprivate": false, "rslave": true} {
			later := filepath.Join(dir, propagation)
			if err := os.Mkdir(later, 0o777); err != nil {
				t.Fatal(err)
			}
			s.own(t, later)
			// A mount of its own, whose propagation the host has set.
			if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
				t.Fatal(err)
			}
			g := s.guest(t, "-v", dir+":/b:"+propagation)
			g.want("os.listdir('/b/"+propagation+"')", "[]")
			mount(later)
			g.want("os.listdir('/b/"+propagation+"')", map[bool]string{true: "['on']", false: "[]"}[seen])
			g.end()
		}
	})
}

// TestInspect: the record says what is mounted, in docker's form.
func TestInspect(t *testing.T) {
	sides(t, func(t *testing.T, s *side) {
		dir := s.dir(t)
		g := s.guest(t, "-v", dir+":/b:ro", "--mount", "type=bind,src="+dir+",dst=/c,bind-propagation=rslave")
		var docs []struct {
			Mounts []struct {
				Type, Source, Destination, Mode, Propagation string
				RW                                           bool
			}
			HostConfig struct{ Binds []string }
		}
		out := s.rungv(t, "inspect", g.name)
		if err := json.Unmarshal([]byte(out.Stdout), &docs); err != nil {
			t.Fatalf("%v: %v", err, out)
		}
		found := 0
		for _, m := range docs[0].Mounts {
			if m.Source == dir && m.Type == "bind" && (m.Destination == "/b" && !m.RW && m.Mode == "ro" && m.Propagation == "rprivate" || m.Destination == "/c" && m.RW && m.Propagation == "rslave") {
				found++
			}
		}
		if found != 2 {
			t.Errorf("mounts %+v", docs[0].Mounts)
		}
		if ps := s.rungv(t, "ps", "--no-trunc", "--format", "{{.Mounts}}"); !strings.Contains(ps.Stdout, dir) {
			t.Errorf("%v", ps)
		}
	})
}
