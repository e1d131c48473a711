// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestInstallAndUninstall: files of engines get the runtime and are as before again,
// byte for byte, mode included.
func TestInstallAndUninstall(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("engines of Windows nodes do not run Linux' runtimes")
	}
	dir := t.TempDir()
	daemon, toml := filepath.Join(dir, "daemon.json"), filepath.Join(dir, "etc", "config.toml")
	const text = "{ \"debug\":true,\n\t\"hosts\" : [ ] }"
	if err := os.WriteFile(daemon, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.json")
	if err := os.Symlink(daemon, link); err != nil {
		t.Fatal(err)
	}
	// The shim has to lie beside the program, which is this test.
	self, err := ownProgram()
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(filepath.Dir(self), shimProgram)
	flags := []string{"--docker", "--kubernetes", "--name", "box", "--docker-config", link, "--containerd-config", toml}
	do := func(verb string, more ...string) (out, errs string, code int) {
		return rungv(t, dir, append(append([]string{verb}, flags...), more...)...)
	}
	if _, errs, code := do("install"); code != 1 || !strings.Contains(errs, "put it beside") {
		t.Errorf("without a shim: %d, %s", code, errs)
	}
	if err := os.WriteFile(shim, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(shim)
	if _, errs, code := do("install", "--dry-run"); code != 0 || !strings.Contains(errs, "would be") {
		t.Errorf("dry run: %d, %s", code, errs)
	}
	if _, err := os.Stat(toml); err == nil {
		t.Error("a dry run has made a file")
	}
	out, errs, code := do("install")
	if code != 0 || !strings.Contains(out, "kind: RuntimeClass") || !strings.Contains(out, "handler: box\n") {
		t.Errorf("install: %d, %s%s", code, out, errs)
	}
	for file, want := range map[string]string{daemon: `"path": "` + self + `"`, toml: "containerd.runtimes.box]"} {
		if got, _ := os.ReadFile(file); !strings.Contains(string(got), want) {
			t.Errorf("%s:\n%s", file, got)
		}
	}
	if st, err := os.Stat(daemon); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Error("the link is none any more")
	}
	if _, errs, code := do("install"); code != 0 || strings.Count(errs, "is as it should be") != 2 {
		t.Errorf("installed twice: %d, %s", code, errs)
	}
	if _, errs, code := do("uninstall"); code != 0 {
		t.Errorf("uninstall: %d, %s", code, errs)
	}
	if got, _ := os.ReadFile(daemon); string(got) != text {
		t.Errorf("the file is %q again", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*"+backupSuffix)); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}
