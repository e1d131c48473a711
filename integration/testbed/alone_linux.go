// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The two processes between the one that "go test" started and the tests: a
// first one of new namespaces, which only reaps, and the tests below it.
const (
	aloneVariable = "GVX_TEST_ALONE"
	aloneInit     = "init"
	aloneTests    = "tests"
)

// MainAlone runs a package's tests in process, mount and network namespaces of
// their own: daemons with all that they start end with the tests, however those
// end, and their mounts and interfaces are gone. An ordinary user's tests run as
// they are; those that need the namespaces say so by NeedRoot.
//
//	func TestMain(m *testing.M) { os.Exit(testbed.MainAlone(m, nil)) }
//
// after, if not nil, runs after the tests and gives the exit code.
func MainAlone(m *testing.M, after func(code int) int) int {
	role := os.Getenv(aloneVariable)
	switch {
	case os.Geteuid() != 0 || role == aloneTests:
		code := m.Run()
		if after != nil {
			code = after(code)
		}
		return code
	case role == aloneInit:
		return initAlone()
	}
	return runAgain(aloneInit, syscall.CLONE_NEWPID|syscall.CLONE_NEWNS|syscall.CLONE_NEWNET|syscall.CLONE_NEWUTS)
}

// runAgain executes the test binary in a role, and returns its exit code.
func runAgain(role string, flags uintptr) int {
	cmd := againCommand(role, flags)
	// Signals go to the tests, whose output says what they were doing.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start the tests in namespaces of their own:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	_ = cmd.Wait()
	return exitCode(cmd.ProcessState.Sys().(syscall.WaitStatus))
}

func againCommand(role string, flags uintptr) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), aloneVariable+"="+role)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// initAlone is process 1 of the namespaces: it prepares them, starts the tests
// and reaps whatever is orphaned, until the tests end.
func initAlone() int {
	if err := prepareAlone(); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests' namespaces:", err)
		return 1
	}
	cmd := againCommand(aloneTests, 0)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start the tests:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			fmt.Fprintln(os.Stderr, "wait for the tests:", err)
			return 1
		case pid == cmd.Process.Pid:
			return exitCode(status)
		}
	}
}

// prepareAlone makes mounts private, shows the new processes in /proc and the
// new interfaces in /sys, and sets the loopback interface up. What is mounted
// below /sys, such as cgroups, stays.
func prepareAlone() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if output, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, output)
	}
	return nil
}

// exitCode is a shell's.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
