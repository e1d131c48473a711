// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// wineFolder has Debian's Wine, whose commands ask for more than it needs.
const wineFolder = "/usr/lib/wine/"

// generatorSource is a library that Go's programs need and Wine 8 lacks: random bytes,
// from Wine's own generator.
const generatorSource = `#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n) { return SystemFunction036(p, (ULONG)n); }
`

// TestOnWindows runs the SDK's own tests as a Windows program, by Wine: New says that
// sandboxes need Linux, with a type, and kinds of errors are told apart. Tests that
// leave files are left out: Wine 8 does not delete them in Go's way.
func TestOnWindows(t *testing.T) {
	if !testbed.Nightly() {
		t.Skip("needs Wine and a compiler for Windows: make nightly")
	}
	dir := t.TempDir()
	program, source, prefix := filepath.Join(dir, "gvx.test.exe"), filepath.Join(dir, "generator.c"), filepath.Join(dir, "wine")
	if err := os.WriteFile(source, []byte(generatorSource), 0o600); err != nil {
		t.Fatal(err)
	}
	environment := append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0", "WINEPREFIX="+prefix, "WINEDEBUG=-all")
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	wine := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, testbed.NeedCommand(t, wineFolder+"wine64"), args...)
		cmd.Dir, cmd.Env = dir, environment
		return cmd
	}
	t.Cleanup(func() { // Its server, before its folder.
		cmd := exec.Command(wineFolder+"wineserver64", "--kill", "--wait")
		cmd.Env = environment
		_ = cmd.Run()
	})
	if r := testbed.Run(t, wine("wineboot", "--init"), nil); r.Code != 0 {
		t.Fatalf("make Wine's folder: %v", r)
	}
	for _, args := range [][]string{
		{"go", "test", "-c", "-o", program, "./pkg/gvx"},
		{testbed.NeedCommand(t, "x86_64-w64-mingw32-gcc"), "-shared", "-o", filepath.Join(prefix, "drive_c/windows/system32/bcryptprimitives.dll"), source, "-ladvapi32"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = testbed.Tree(), environment
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	result := testbed.Run(t, wine(program, "-test.v", "-test.run=^(TestKindsAreToldApart|TestSandboxesSayThatTheyNeedLinux|TestOpenVolumeSaysWhatIsMissing)$"), nil)
	for _, want := range []string{"--- PASS: TestKindsAreToldApart", "--- PASS: TestSandboxesSayThatTheyNeedLinux", "--- PASS: TestOpenVolumeSaysWhatIsMissing"} {
		if result.Code != 0 || !strings.Contains(result.Stdout, want) {
			t.Errorf("want %q: %v", want, result)
		}
	}
}
