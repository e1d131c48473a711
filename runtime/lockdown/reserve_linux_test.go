// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// TestReserveAbove: numbers that were reserved are never given to anything else.
func TestReserveAbove(t *testing.T) {
	if out, err := childCommand(t, "reserve").CombinedOutput(); err != nil || string(out) != "reserved" {
		t.Errorf("child: %q, %v", out, err)
	}
}

// childReserve lowers the limit of its process, for good.
func childReserve() {
	if err := reserve(); err != nil {
		fmt.Print(err)
		return
	}
	fmt.Print("reserved")
}

func reserve() error {
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 512, Max: 512}); err != nil {
		return err
	}
	r, w := api.FD(pair[0]), api.FD(pair[1])
	first, err := ReserveAbove([]*api.FD{&r, &w})
	if err != nil {
		return err
	}
	if first != 510 || r != 510 || w != 511 {
		return fmt.Errorf("first %d, moved to %d and %d", first, r, w)
	}
	// They work, and their old numbers are free.
	if _, err := unix.Write(int(w), []byte("x")); err != nil {
		return err
	}
	if err := unix.Fstat(pair[0], &unix.Stat_t{}); !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("the old number: %v", err)
	}
	// Nothing gets there: not when they are closed, not by asking for it, not by
	// filling all the rest.
	unix.Close(int(w))
	if err := unix.Dup3(pair[0], int(w), unix.O_CLOEXEC); err == nil {
		return errors.New("a closed descriptor was duplicated")
	}
	for _, to := range []int{int(r), int(w)} {
		if err := unix.Dup3(0, to, unix.O_CLOEXEC); !errors.Is(err, unix.EBADF) {
			return fmt.Errorf("duplicate onto %d: %v", to, err)
		}
		if _, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, to); !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("duplicate from %d on: %v", to, err)
		}
	}
	for {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil || fd >= first {
			return fmt.Errorf("opened as %d: %v", fd, err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 512, Max: 512}); os.Geteuid() != 0 && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("raise the limit again: %v", err)
	}
	_, err = ReserveAbove(make([]*api.FD, 400))
	if api.KindOf(err) != api.KindLimit {
		return fmt.Errorf("more than there is room for: %v", err)
	}
	return nil
}

// TestPlanGofer: what a gofer keeps depends on who starts it.
func TestPlanGofer(t *testing.T) {
	o, alone := PlanGofer()
	if !o.OwnLandlock || o.Landlock != 0 || o.UID != 0 {
		t.Errorf("%+v", o)
	}
	held, err := capabilities()
	if err != nil {
		t.Fatal(err)
	}
	root := os.Geteuid() == 0 && held.effective(unix.CAP_CHOWN)
	if alone == root {
		t.Errorf("alone %t", alone)
	}
	for _, c := range o.Capabilities {
		if root && !held.permits(c) {
			t.Errorf("capability %d is to be kept and not held", c)
		}
	}
	if w := o.Without(); len(w.Namespaces) != 0 || w.EmptyRoot || !w.OwnLandlock || w.Landlock != 0 || root && len(w.Capabilities) == 0 || !root && len(w.Capabilities) != 0 {
		t.Errorf("without namespaces: %+v", w)
	}
}
