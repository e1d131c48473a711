// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// asHolder is argv[0] of the test binary when it plays a sandbox, and asOpener
// when it plays a launcher.
const (
	asHolder = "gvx-test-holder"
	asOpener = "gvx-test-opener"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case asHolder:
		fmt.Println("ready")
		fmt.Scanln()
		os.Exit(0)
	case asOpener:
		// STORE SOURCE CLONE: opens, says so, and waits to be killed.
		s := New(os.Args[1], Options{})
		o, err := s.Open(&convert.VolumeMount{Source: os.Args[2], Target: "/v", Clone: os.Args[3]})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		fmt.Scanln()
		o.Close()
	}
	os.Exit(m.Run())
}

// play starts the test binary in a role with files, and waits for its word.
func (b *bed) play(role string, files []*os.File, args ...string) *exec.Cmd {
	b.Helper()
	self, err := os.Executable()
	b.ok(err)
	cmd := &exec.Cmd{Path: self, Args: append([]string{role}, args...), ExtraFiles: files, Stderr: os.Stderr}
	out, err := cmd.StdoutPipe()
	b.ok(err)
	in, err := cmd.StdinPipe()
	b.ok(err)
	b.Cleanup(func() { in.Close() })
	b.ok(cmd.Start())
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.Fatalf("%s said %q", role, line)
	}
	return cmd
}

// TestLocksGoWithTheFiles: what was donated stays locked when its donor has let
// go, and is free when the process that got it is killed.
func TestLocksGoWithTheFiles(t *testing.T) {
	b := newBed(t)
	b.make("golden")
	for _, clone := range []string{"", convert.CloneEphemeral, filepath.Join(b.dir, "ep.delta")} {
		o := b.open(convert.VolumeMount{Source: "golden", Target: "/v", Clone: clone})
		holder := b.play(asHolder, o.Files)
		o.Close()
		_, err := b.s.Open(&convert.VolumeMount{Source: "golden", Target: "/v"})
		b.fails(err, api.KindState)
		b.ok(holder.Process.Kill())
		// Nobody has waited for it: the volume is waited for a little.
		if clone == "" || clone == convert.CloneEphemeral {
			b.open(convert.VolumeMount{Source: "golden", Target: "/v"}).Close()
		} else {
			b.open(convert.VolumeMount{Source: "golden", Target: "/v", Clone: clone}).Close()
		}
	}
}

// TestOpenersKilled kills processes at moments of their opening: nothing is
// left but what was asked for, and that is whole.
func TestOpenersKilled(t *testing.T) {
	b := newBed(t)
	golden := b.make("golden")
	self, err := os.Executable()
	b.ok(err)
	for k := range 36 {
		source, clone := "golden", convert.CloneEphemeral
		switch k % 3 {
		case 1:
			clone = filepath.Join(b.dir, fmt.Sprintf("ep%d.delta", k))
		case 2:
			source, clone = filepath.Join(b.dir, fmt.Sprintf("new%d.ext4", k)), ""
		}
		cmd := &exec.Cmd{Path: self, Args: []string{asOpener, b.s.root, source, clone}}
		in, err := cmd.StdinPipe()
		b.ok(err)
		b.ok(cmd.Start())
		time.Sleep(time.Duration(k) * 400 * time.Microsecond)
		b.ok(cmd.Process.Kill())
		cmd.Wait()
		in.Close()
	}
	for _, dir := range []string{b.dir, b.s.root} {
		entries, err := os.ReadDir(dir)
		b.ok(err)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.IsDir() {
				continue
			}
			report, _, err := b.s.Check(b.ref(path), true)
			if err != nil || !report.Clean() {
				t.Errorf("%s: %v, %v", e.Name(), report, err)
			}
			if path != golden.Path {
				_, err = b.s.Remove(b.ref(path))
				b.ok(err)
			}
		}
	}
	b.open(convert.VolumeMount{Source: "golden", Target: "/v"}).Close()
	for dir, want := range map[string][]string{b.dir: {"store"}, b.s.root: {"golden.ext4"}} {
		entries, err := os.ReadDir(dir)
		b.ok(err)
		var got []string
		for _, e := range entries {
			if e.Name() != dirClones {
				got = append(got, e.Name())
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s holds %v, want %v", dir, got, want)
		}
	}
}
