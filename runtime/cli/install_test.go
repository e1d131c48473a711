// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/lockdown"
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
	for name, want := range map[string]lockdown.State{"dockerd configuration": lockdown.StateUsed, "containerd configuration": lockdown.StateUsed, "containerd shim": lockdown.StateUsed} {
		if l := nodeLayer(t, dir, name, flags[2:]...); l.State != want {
			t.Errorf("doctor: %+v", l)
		}
	}
	if err := os.Chmod(shim, 0o644); err != nil {
		t.Fatal(err)
	}
	if l := nodeLayer(t, dir, "containerd shim", flags[2:]...); l.State != lockdown.StateMissing || !l.Fatal {
		t.Errorf("a shim that cannot be executed, of a containerd that is to run it: %+v", l)
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

// TestInstallBringsItsPrograms: copies that engines run, made anew only when they
// differ, and gone with the configuration.
func TestInstallBringsItsPrograms(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("engines of Windows nodes do not run Linux' runtimes")
	}
	dir := t.TempDir()
	self, err := ownProgram()
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(filepath.Dir(self), shimProgram)
	if err := os.WriteFile(shim, []byte("a shim"), 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(shim)
	toml, programs := filepath.Join(dir, "config.toml"), filepath.Join(dir, "opt", "bin")
	do := func(verb string, more ...string) (out, errs string, code int) {
		return rungv(t, dir, append([]string{verb, "--containerd", "--containerd-config", toml, "--programs", programs}, more...)...)
	}
	if _, errs, code := rungv(t, dir, "install", "--containerd", "--programs", "here"); code != 1 || !strings.Contains(errs, "absolute") {
		t.Errorf("a relative folder: %d, %s", code, errs)
	}
	if _, errs, code := do("install", "--dry-run"); code != 0 || !strings.Contains(errs, "would be a copy") {
		t.Errorf("dry run: %d, %s", code, errs)
	}
	if _, err := os.Stat(programs); err == nil {
		t.Error("a dry run has made a folder")
	}
	if _, errs, code := do("install"); code != 0 {
		t.Fatalf("install: %d, %s", code, errs)
	}
	placed := filepath.Join(programs, shimProgram)
	before, err := os.Stat(placed)
	if err != nil || before.Mode().Perm() != programMode {
		t.Fatalf("the shim: %v, %v", before, err)
	}
	if got, _ := os.ReadFile(toml); !strings.Contains(string(got), "runtime_path = '"+placed+"'") {
		t.Errorf("the configuration: %s", got)
	}
	if _, errs, code := do("install"); code != 0 || strings.Contains(errs, "installed") || !strings.Contains(errs, "as it should be") {
		t.Errorf("install again: %d, %s", code, errs)
	}
	if after, err := os.Stat(placed); err != nil || !os.SameFile(before, after) {
		t.Errorf("a shim that was there already was replaced: %v", err)
	}
	if err := os.WriteFile(shim, []byte("a new shim"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := do("install"); code != 0 || !strings.Contains(errs, shimProgram+": installed") {
		t.Errorf("an upgrade: %d, %s", code, errs)
	}
	if got, _ := os.ReadFile(placed); string(got) != "a new shim" {
		t.Errorf("after an upgrade the shim is %q", got)
	}
	if _, errs, code := do("uninstall"); code != 0 {
		t.Errorf("uninstall: %d, %s", code, errs)
	}
	if left, err := os.ReadDir(programs); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// nodeLayer is what `doctor --node` reports under a name.
func nodeLayer(t *testing.T, dir, name string, flags ...string) lockdown.Layer {
	t.Helper()
	// The code is about the host of the test as well.
	out, errs, _ := rungv(t, dir, append([]string{"doctor", "--node", "--format", "json"}, flags...)...)
	for doc := json.NewDecoder(strings.NewReader(out)); ; {
		var l lockdown.Layer
		if err := doc.Decode(&l); err != nil {
			t.Fatalf("doctor has no layer %q: %v: %s%s", name, err, out, errs)
		}
		if l.Name == name {
			return l
		}
	}
}

// TestDoctorOfANodeBeforeInstall says what to do, and is fatal where an engine would
// start something else under our name.
func TestDoctorOfANodeBeforeInstall(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("engines of Windows nodes do not run Linux' runtimes")
	}
	dir := t.TempDir()
	daemon := filepath.Join(dir, "daemon.json")
	flags := []string{"--docker-config", daemon, "--containerd-config", filepath.Join(dir, "none.toml")}
	for text, fatal := range map[string]bool{"": false, "{}": false, `{"runtimes": {"gvx": {"path": "/usr/bin/other"}}}`: true, "{": true} {
		if err := os.Remove(daemon); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if text != "" {
			if err := os.WriteFile(daemon, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if l := nodeLayer(t, dir, "dockerd configuration", flags...); l.State != lockdown.StateMissing || l.Fatal != fatal || !strings.Contains(l.Meaning, "rungv install --docker") {
			t.Errorf("%q: %+v", text, l)
		}
	}
	if l := nodeLayer(t, dir, "containerd configuration", flags...); l.State != lockdown.StateMissing || l.Fatal || !strings.Contains(l.Meaning, "rungv install --containerd") {
		t.Errorf("%+v", l)
	}
	if _, errs, code := rungv(t, dir, "doctor", "--node", "--name", "a/b"); code == 0 || !strings.Contains(errs, "a/b") {
		t.Errorf("a name that no engine takes: %d, %s", code, errs)
	}
}
