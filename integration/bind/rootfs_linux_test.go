// SPDX-License-Identifier: Apache-2.0

package bind

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// system are the parts of the image that a bundle borrows.
var system = []string{"bin", "lib", "lib64", "usr", "sbin"}

// bundle makes a bundle with an almost empty root: what programs need is mounted
// there, at places that the runtime has to make.
func (s *side) bundle(t *testing.T, annotations map[string]string, args ...string) string {
	t.Helper()
	dir := s.dir(t)
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	s.own(t, rootfs)
	spec := s.rungv(t, "spec", "--bundle", dir)
	if spec.Code != 0 {
		t.Fatalf("%v", spec)
	}
	path := filepath.Join(dir, "config.json")
	var doc map[string]any
	if err := json.Unmarshal([]byte(read(t, path)), &doc); err != nil {
		t.Fatal(err)
	}
	process := doc["process"].(map[string]any)
	process["args"], process["terminal"] = args, false
	doc["root"].(map[string]any)["readonly"] = false
	doc["annotations"] = annotations
	image := filepath.Join(testbed.Need(t, image), "rootfs")
	for _, part := range system {
		source := filepath.Join(image, part)
		if to, err := os.Readlink(source); err == nil {
			if err := os.Symlink(to, filepath.Join(rootfs, part)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		doc["mounts"] = append(doc["mounts"].([]any), map[string]any{"destination": "/" + part, "type": "bind", "source": source, "options": []string{"rbind", "ro"}})
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, path, string(text))
	return dir
}

// TestRootfs: a bundle's root is its directory, both ways; with an annotation it
// stays as it is.
func TestRootfs(t *testing.T) {
	testbed.NeedRoot(t, "the test bed's root file systems are root's")
	sides(t, func(t *testing.T, s *side) {
		if s.uid != 0 {
			return // it cannot read them
		}
		script := `mkdir /made && echo guest > /made/f && rm /given && cat /later; while ! test -e /go; do sleep 0.05; done; cat /go; ls /`
		for _, mode := range []string{"", "exclusive", "private"} {
			t.Run("mode="+mode, func(t *testing.T) {
				annotations := map[string]string{}
				if mode != "" {
					annotations["dev.gvx.rootfs"] = mode
				}
				program := script
				if mode != "" {
					// Nobody else changes the directory meanwhile.
					program = strings.ReplaceAll(script, "while ! test -e /go; do sleep 0.05; done; cat /go;", "")
				}
				dir := s.bundle(t, annotations, "sh", "-ec", program)
				rootfs := filepath.Join(dir, "rootfs")
				s.write(t, filepath.Join(rootfs, "given"), "given")
				s.write(t, filepath.Join(rootfs, "later"), "later\n")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				// The container's streams are those of create.
				var out bytes.Buffer
				create := s.command(ctx, "create", "--bundle", dir, "rootfs-"+mode)
				stdout, err := os.CreateTemp(t.TempDir(), "out")
				if err != nil {
					t.Fatal(err)
				}
				defer stdout.Close()
				create.Stdout, create.Stderr = stdout, stdout
				if err := create.Run(); err != nil {
					t.Fatalf("create: %v: %s", err, read(t, stdout.Name()))
				}
				defer s.rungv(t, "delete", "-f", "rootfs-"+mode)
				if r := s.rungv(t, "start", "rootfs-"+mode); r.Code != 0 {
					t.Fatalf("%v", r)
				}
				if mode == "" {
					awaitFile(t, filepath.Join(rootfs, "made", "f"))
					s.write(t, filepath.Join(rootfs, "go"), "host\n")
				}
				for deadline := time.Now().Add(time.Minute); !strings.Contains(s.rungv(t, "state", "rootfs-"+mode).Stdout, `"stopped"`); time.Sleep(20 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("the container goes on")
					}
				}
				out.WriteString(read(t, stdout.Name()))
				if want := map[bool]string{true: "later\nhost\n", false: "later\nbin\n"}[mode == ""]; !strings.HasPrefix(out.String(), want) || !strings.Contains(out.String(), "\nmade\n") {
					t.Errorf("the guest says %q", out.String())
				}
				made, given := read(t, filepath.Join(rootfs, "made", "f")), read(t, filepath.Join(rootfs, "given"))
				if through := made == "guest\n" && given != "given"; through != (mode != "private") {
					t.Errorf("on the host: made %q, given %q", made, given)
				}
				entries, err := os.ReadDir(filepath.Join(rootfs, "usr"))
				if mode != "private" && (err != nil || len(entries) != 0) {
					t.Errorf("the mount point: %v, %v", entries, err)
				}
			})
		}
	})
}

// TestBundleLosesGofer: a container of a bundle whose gofer is killed has ended.
func TestBundleLosesGofer(t *testing.T) {
	testbed.NeedRoot(t, "the test bed's root file systems are root's")
	sides(t, func(t *testing.T, s *side) {
		if s.uid != 0 {
			return
		}
		const id = "loses-gofer"
		dir, before := s.bundle(t, nil, "sleep", "1000"), s.gofers(t)
		create := s.command(t.Context(), "create", "--bundle", dir, id)
		if err := create.Run(); err != nil {
			t.Fatal(err)
		}
		defer s.rungv(t, "delete", "-f", id)
		if r := s.rungv(t, "start", id); r.Code != 0 {
			t.Fatalf("%v", r)
		}
		gofer := s.gofer(t, before)
		if err := syscall.Kill(gofer, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); !strings.Contains(s.rungv(t, "state", id).Stdout, `"stopped"`); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the container goes on without its files")
			}
		}
	})
}

// awaitFile waits for a file that the guest makes.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if st, err := os.Stat(path); err == nil && st.Size() > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not made", path)
		}
	}
}
