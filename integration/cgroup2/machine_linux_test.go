// SPDX-License-Identifier: Apache-2.0

// Package cgroup2 looks at containers on a host whose cgroups are of version 2 alone,
// with systemd as its process 1: in a virtual machine without hardware support, so
// that any host can have one. The same test binary runs in there, with runc beside
// rungv.
package cgroup2

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

const (
	// insideVariable is set in the machine.
	insideVariable = "GVX_IN_MACHINE"
	// diskBytes is the size of the second disk, with the programs.
	diskBytes = "512M"
	// machineTimeout bounds the machine's life: it interprets every instruction, on
	// a host that may be busy.
	machineTimeout = 20 * time.Minute
	// leastTests is how many tests there are inside at least.
	leastTests = 12
)

var home testbed.SharedHome

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv(insideVariable) == "" {
		code = home.Close(code)
	}
	os.Exit(code)
}

// TestVersion2 runs [TestInside] in the machine.
func TestVersion2(t *testing.T) {
	if os.Getenv(insideVariable) != "" {
		t.Skip("this is the machine")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("the machine is an amd64")
	}
	testbed.NeedRoot(t, "makes a disk with files of root's")
	testbed.NeedCommand(t, "qemu-system-x86_64")
	machine, runc, rungv := testbed.Need(t, "vm"), testbed.Need(t, "runc"), home.Get(t).Binary
	dir, err := os.MkdirTemp("/var/tmp", "gvx-machine-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	programs, disk := filepath.Join(dir, "programs"), filepath.Join(dir, "disk")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	run := fmt.Sprintf("#!/bin/sh\ncd /gvx && %s=1 HOME=/root ./inside -test.v -test.timeout 15m -test.run '^TestInside$'\necho \"inside: exit code $?\"\n", insideVariable)
	if err := os.WriteFile(filepath.Join(programs, "run"), []byte(run), 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "test", "-c", "-o", filepath.Join(programs, "inside"), "./integration/cgroup2")
	build.Dir = testbed.Tree()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, cmd := range []*exec.Cmd{
		build,
		exec.Command("cp", rungv, filepath.Join(programs, "rungv")),
		exec.Command("cp", runc, filepath.Join(programs, "runc")),
		exec.Command("mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", programs, disk, diskBytes),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, out)
		}
	}
	said := boot(t, machine, disk)
	t.Logf("the machine:\n%s", said)
	if !strings.Contains(said, "inside: exit code 0\n") {
		t.Error("the tests in the machine have not passed")
	}
	if n := len(regexp.MustCompile(`(?m)^    --- PASS: `).FindAllString(said, -1)); n < leastTests {
		t.Errorf("%d tests have passed in the machine, want at least %d", n, leastTests)
	}
}

// boot starts the machine, waits for its end and returns what it said from the moment
// on that the tests began.
func boot(t *testing.T, machine, disk string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machineTimeout)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
		"-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot", "-net", "none",
		"-kernel", filepath.Join(machine, "vmlinuz"), "-initrd", filepath.Join(machine, "initrd"), "-append", "console=ttyS0 root=/dev/vda rw quiet",
		"-drive", "file="+filepath.Join(machine, "disk")+",format=raw,if=virtio,snapshot=on",
		"-drive", "file="+disk+",format=raw,if=virtio,cache=unsafe")
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	text := strings.ReplaceAll(said.String(), "\r", "")
	if err != nil {
		t.Fatalf("the machine: %v, %v\n%s", err, ctx.Err(), text)
	}
	if _, after, ok := strings.Cut(text, "=== RUN "); ok {
		return after
	}
	return text
}

// number reads one.
func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
