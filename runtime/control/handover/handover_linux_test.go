// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// ends are both ends of a handover in one process.
func ends(t *testing.T) (*Sender, *Receiver) {
	t.Helper()
	s, far, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	fd, err := unix.FcntlInt(far.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReceiver(fd)
	t.Cleanup(func() {
		s.Close()
		r.Close()
	})
	return s, r
}

// specWith is a spec with layers numbered from the first file.
func specWith(layers int) *api.Sandbox {
	s := &api.Sandbox{
		Version: api.SpecVersion, ID: "s", ControlFD: FirstNumber, ListenFD: api.NoFD, StreamsFD: api.NoFD,
		Network: api.Network{Mode: api.NetworkNone, BrokerFD: api.NoFD},
		Container: api.Container{
			ID: "s", InitFD: api.NoFD,
			Process: api.Process{Args: []string{"true"}, Cwd: "/", StdinFD: FirstNumber, StdoutFD: FirstNumber, StderrFD: FirstNumber},
		},
	}
	for i := range layers {
		s.Container.Rootfs.Layers = append(s.Container.Rootfs.Layers, api.Layer{Format: "erofs", FD: api.FD(FirstNumber + i)})
	}
	return s
}

func TestHandover(t *testing.T) {
	s, r := ends(t)
	want := api.HeadStart{Version: api.SpecVersion, Platform: "systrap", Cores: 3, SpecFirst: true, LogLevel: "debug"}
	if err := s.HeadStart(&want); err != nil {
		t.Fatal(err)
	}
	got, err := r.HeadStart()
	if err != nil || fmt.Sprint(*got) != fmt.Sprint(want) {
		t.Fatalf("head start %+v, %v", got, err)
	}
	// More than one message takes.
	const layers = api.MaxLayers
	dir := t.TempDir()
	var files []*os.File
	for i := range layers {
		f, err := os.Create(fmt.Sprintf("%s/%d", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	sent := make(chan error, 1)
	go func() { sent <- s.Spec(specWith(layers), files) }()
	spec, err := r.Spec()
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	for i, l := range spec.Container.Rootfs.Layers {
		var a, b unix.Stat_t
		if err := errors.Join(unix.Fstat(int(l.FD), &a), unix.Fstat(int(files[i].Fd()), &b)); err != nil || a.Ino != b.Ino {
			t.Fatalf("layer %d is not the file that was handed over as the %d. (%v)", i, i, err)
		}
		if flags, err := unix.FcntlInt(uintptr(l.FD), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("layer %d would outlive an exec (%v)", i, err)
		}
		unix.Close(int(l.FD))
	}
	if spec.ControlFD != spec.Container.Rootfs.Layers[0].FD {
		t.Error("one number became two descriptors")
	}
}

func TestEndWithoutSpec(t *testing.T) {
	s, r := ends(t)
	s.Close()
	if _, err := r.Spec(); err != io.EOF {
		t.Errorf("spec: %v, want the end", err)
	}
	if _, err := r.HeadStart(); !errors.Is(err, io.EOF) {
		t.Errorf("head start: %v, want the end", err)
	}
}

// TestHostileMessages: what is not the form is refused, and what came with it
// is closed.
func TestHostileMessages(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	badSpec, err := os.CreateTemp(t.TempDir(), "spec")
	if err != nil {
		t.Fatal(err)
	}
	defer badSpec.Close()
	outside := specWith(2)
	outside.Container.Rootfs.Layers[1].FD = 3
	for name, send := range map[string]func(*Sender) error{
		"empty file message":    func(s *Sender) error { return s.send([]byte{kindFiles}) },
		"unknown kind":          func(s *Sender) error { return s.send([]byte{'x'}, null) },
		"longer than its kind":  func(s *Sender) error { return s.send([]byte("fx"), null) },
		"spec without file":     func(s *Sender) error { return s.send([]byte{kindSpec}) },
		"two specs":             func(s *Sender) error { return s.send([]byte{kindSpec}, null, null) },
		"empty spec":            func(s *Sender) error { return s.send([]byte{kindSpec}, badSpec) },
		"number beyond files":   func(s *Sender) error { return s.Spec(specWith(2), []*os.File{null}) },
		"number below files":    func(s *Sender) error { return s.Spec(outside, []*os.File{null, null}) },
		"head start in between": func(s *Sender) error { return s.send([]byte(`h{}`)) },
	} {
		before := openFiles(t)
		s, r := ends(t)
		if err := send(s); err != nil {
			t.Fatalf("%s: send: %v", name, err)
		}
		spec, err := r.Spec()
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %+v, %v", name, spec, err)
		}
		s.Close()
		r.Close()
		if after := openFiles(t); after > before {
			t.Errorf("%s: %d descriptors more than before", name, after-before)
		}
	}
	for name, body := range map[string]string{
		"another kind": "s{}", "no JSON": "hx", "another version": `h{"version":99,"cores":1}`, "no cores": `h{"version":1}`,
	} {
		s, r := ends(t)
		if err := s.send([]byte(body)); err != nil {
			t.Fatal(err)
		}
		if h, err := r.HeadStart(); err == nil {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
