// SPDX-License-Identifier: Apache-2.0

// A full disk, and a store of somebody else. Both need a child: one with a
// small file system of its own, one with another uid. That takes root.

package images

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

// smallDiskBytes holds the store and the first layer, but not the second.
const smallDiskBytes = 3 << 20

func init() {
	roles["pull-on-small-disk"] = func(a []string) error {
		s, err := Open(a[0], Options{})
		if err != nil {
			return err
		}
		_, err = s.Pull(context.Background(), a[1], PullOptions{})
		fmt.Printf("%s: %v\n", api.KindOf(err), err)
		for _, d := range []string{dirTmp, dirLayers, dirLocks, dirBlobs, dirImages, dirRefs} {
			entries, err := os.ReadDir(s.dir(d))
			if err != nil || len(entries) > 0 {
				return fmt.Errorf("%s holds %v, %v", d, entries, err)
			}
		}
		return nil
	}
	roles["pull-as-other"] = func(a []string) error {
		s, err := Open(a[0], Options{})
		if err == nil {
			_, err = s.Pull(context.Background(), a[1], PullOptions{Policy: PullAlways})
		}
		fmt.Printf("%s: %v\n", api.KindOf(err), err)
		return nil
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, for a mount or another uid")
	}
}

func TestFullDisk(t *testing.T) {
	needRoot(t)
	reg := newRegistry(t)
	big := make([]byte, 2*smallDiskBytes)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(big)
	ref := reg.push(t, "test/big:1", imageOf(t, "big",
		tarOf(t, member{name: "a", content: "small"}), tarOf(t, member{name: "b", content: string(big)})))
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("mount -t tmpfs -o size=%d tmpfs %s && exec %s %s %s", smallDiskBytes, dir, exe, filepath.Join(dir, "images"), ref)
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), envRole+"=pull-on-small-disk")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(string(out), "mount:") {
		t.Skipf("cannot mount: %s", out)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"no-space: ", "needs at least", "bytes are free", dir} {
		if !strings.Contains(string(out), want) {
			t.Errorf("message lacks %q: %s", want, out)
		}
	}
}

func TestStoreOfAnotherUser(t *testing.T) {
	needRoot(t)
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	parent := t.TempDir()
	root := filepath.Join(parent, "images")
	s := open(t, root)
	pull(t, s, ref)
	exe := filepath.Join(parent, "test")
	copyFile(t, exe)
	// Everybody may read it, only root may write.
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := parent; dir != "/"; dir = filepath.Dir(dir) {
		if fi, err := os.Stat(dir); err == nil && fi.Mode()&0o001 == 0 {
			if err := os.Chmod(dir, fi.Mode()|0o011); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, target := range []string{root, filepath.Join(parent, "new")} {
		cmd := exec.Command(exe, target, ref)
		cmd.Env = append(os.Environ(), envRole+"=pull-as-other", "HOME="+parent)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !strings.HasPrefix(string(out), "permission: ") || !strings.Contains(string(out), "--root") {
			t.Errorf("message for %s: %s", target, out)
		}
	}
	check(t, s)
}

// copyFile copies this binary to where another user may run it.
func copyFile(t *testing.T, to string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, raw, 0o755); err != nil {
		t.Fatal(err)
	}
}
