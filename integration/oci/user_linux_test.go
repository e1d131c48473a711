// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestOrdinaryUser: who has no privilege runs the bundle that `rungv spec
// --rootless` makes, and owns in it what he owns outside.
func TestOrdinaryUser(t *testing.T) {
	suite := testbed.Need(t, "runtime-tools")
	h := home.Get(t)
	dir := h.Path("bundle")
	for _, d := range []string{dir, filepath.Join(dir, "rootfs")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		h.Chown(t, d)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// A small Debian-free tree: busybox, which the suite brings along.
	tarball, err := os.Open(filepath.Join(suite, "rootfs-amd64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer tarball.Close()
	if r := testbed.Run(t, h.CommandAs(t.Context(), "tar", "-xzf", "-", "--no-same-owner", "-C", filepath.Join(dir, "rootfs")), tarball); r.Code != 0 {
		t.Fatalf("unpack: %v", r)
	}
	h.MustRungv(t, "spec", "--rootless", "--bundle", dir)
	config := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	spec.Root.Readonly, spec.Process.Terminal = false, false
	spec.Process.Args = []string{"sh", "-c", "id -u; echo mine > /file && stat -c %u /file; hostname; ip -o link | wc -l"}
	if data, err = json.Marshal(&spec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o644); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const id = "users"
	cmd := h.Command(t.Context(), "create", "--bundle", dir, id)
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Run()
	w.Close()
	if err != nil {
		text, _ := io.ReadAll(r)
		t.Fatalf("create: %v: %s", err, text)
	}
	h.MustRungv(t, "start", id)
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	// What create notes goes there too.
	if want := "0\n0\nrungv\n1\n"; !strings.HasSuffix(string(text), want) {
		t.Errorf("%q, want %q", text, want)
	}
	st, err := os.Stat(filepath.Join(dir, "rootfs", "file"))
	if err != nil {
		t.Fatal(err)
	}
	if owner, ok := st.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != h.UID {
		t.Errorf("the file belongs to %+v, want uid %d", owner, h.UID)
	}
	h.MustRungv(t, "delete", id)
	if left := h.Processes(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
