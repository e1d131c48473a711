// SPDX-License-Identifier: Apache-2.0

// Package hosts runs rungv where it is not at home: inside an ordinary
// unprivileged container, under a parent that traces its children with seccomp,
// inside another gVisor. Each has to work, or to be refused at once with a
// message that says why; a hang is the worst answer.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest, and the root of the containers that are hosts.
const image = "demo"

// hostUID is the user inside those containers.
const hostUID = 1000

// newHome makes a home with the image staged, and removes it with the test.
func newHome(t *testing.T) *testbed.Home {
	t.Helper()
	h, err := testbed.NewHome()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Remove(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// guestScript is what guests run: it proves that processes, files and memory
// work, and prints a line.
const guestScript = `i=0; while [ $i -lt 20 ]; do /bin/true; i=$((i + 1)); done; echo data > /file; python3 -c 'import mmap, threading; m = mmap.mmap(-1, 1 << 20); t = threading.Thread(target=m.write, args=(b"x",)); t.start(); t.join(); print(open("/file").read().strip(), m[0])'`

// guestOutput is what guestScript prints.
const guestOutput = "data 120\n"

// TestPod runs rungv in a container as a Kubernetes pod with the "restricted"
// profile is: docker's default seccomp profile, uid 1000, no capabilities,
// no_new_privs, read-only root, masked and read-only paths of /proc and /sys.
func TestPod(t *testing.T) {
	h := newHome(t)
	bundle := testbed.NewBundle(t, "runc", image)
	bundle.Spec.Process.Capabilities = &specs.LinuxCapabilities{}
	bundle.Spec.Process.NoNewPrivileges = true
	bundle.Spec.Root.Readonly = true
	bundle.Spec.Linux.Seccomp = testbed.DockerProfile(t)
	if len(bundle.Spec.Linux.MaskedPaths) == 0 || len(bundle.Spec.Linux.ReadonlyPaths) == 0 {
		t.Fatal("the default spec masks nothing: this is not the pod that was meant")
	}
	result := runNested(t, h, bundle)
	if result.Code != 0 || result.Stdout != guestOutput {
		t.Errorf("in an unprivileged container: %v", result)
	}
}

// TestInsideGVisor: not supported yet, and said so at once.
func TestInsideGVisor(t *testing.T) {
	h := newHome(t)
	bundle := testbed.NewBundle(t, "runsc", image)
	bundle.Args = append(bundle.Args, "--network", "none", "--ignore-cgroups")
	result := runNested(t, h, bundle)
	if result.Code != 125 || !strings.Contains(result.Stderr, "gVisor") {
		t.Errorf("inside runsc, want a refusal that names gVisor: %v", result)
	}
	if strings.Contains(result.Stderr, "goroutine ") {
		t.Errorf("the refusal is a crash: %v", result)
	}
}

// runNested imports the image and runs the guest script by a rungv inside the
// bundle's container.
func runNested(t *testing.T, h *testbed.Home, bundle *testbed.Bundle) testbed.Result {
	t.Helper()
	layout := h.Layout(t, image)
	state := h.Path("nested")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(state, hostUID, hostUID); err != nil {
		t.Fatal(err)
	}
	process := bundle.Spec.Process
	process.User = specs.User{UID: hostUID, GID: hostUID}
	process.Cwd = "/"
	process.Env = []string{"PATH=/usr/bin:/bin", "HOME=/state", "XDG_RUNTIME_DIR=/state/run", "XDG_DATA_HOME=/state/data", "TMPDIR=/state"}
	process.Args = []string{"/bin/sh", "-c", fmt.Sprintf(
		`mkdir -p /state/run && exec /opt/rungv run --rm --network none oci:/image:latest sh -c '%s'`,
		strings.ReplaceAll(guestScript, "'", `'\''`))}
	bind := func(source, target string, options ...string) specs.Mount {
		return specs.Mount{Type: "bind", Source: source, Destination: target, Options: append([]string{"bind", "nosuid"}, options...)}
	}
	// The container's root may be read-only: its mount points are in the
	// overlay, made beforehand.
	for _, name := range []string{"opt/rungv", "image", "state"} {
		path := filepath.Join(bundle.Dir, "rootfs", name)
		if name == "opt/rungv" {
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bundle.Spec.Mounts = append(bundle.Spec.Mounts,
		bind(h.Binary, "/opt/rungv", "ro"), bind(layout, "/image", "ro"), bind(state, "/state", "rw"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	return testbed.Run(t, bundle.Command(ctx, t), nil)
}

// TestNotifyParent runs rungv under a parent that holds a seccomp-notify
// listener, as supervisors of system calls do: the kernel allows one listener
// per thread, and the platform wants one too.
func TestNotifyParent(t *testing.T) {
	h := newHome(t)
	name := h.Image(t, image)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := h.Command(ctx, "run", "--rm", "--network", "none", name, "sh", "-c", guestScript)
	listening, release := make(chan error, 1), make(chan struct{})
	defer close(release)
	result := testbed.RunBy(t, cmd, nil, func() error {
		go func() {
			// The filter is this thread's alone, and so its children's: the
			// thread is never given back.
			runtime.LockOSThread()
			listener, err := installListener()
			if err == nil {
				defer unix.Close(listener)
				err = cmd.Start()
			}
			listening <- err
			<-release
		}()
		err := <-listening
		if errors.Is(err, errNoListener) {
			testbed.Missing(t, "seccomp-notify on this host: %v", err)
		}
		return err
	})
	if result.Code != 0 || result.Stdout != guestOutput {
		t.Errorf("under a seccomp-notify parent: %v", result)
	}
}

// errNoListener says that this host has no listeners to offer.
var errNoListener = errors.New("no seccomp listener")

// installListener puts a filter with a listener on the calling thread. It
// notifies of acct(2), which nobody calls here.
func installListener() (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("%w: set no_new_privs: %w", errNoListener, err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_ACCT, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, fmt.Errorf("%w: install filter: %w", errNoListener, errno)
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}
