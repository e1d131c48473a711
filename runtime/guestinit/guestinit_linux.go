// SPDX-License-Identifier: Apache-2.0

// Package guestinit is the process 1 of `rungv run --init`: it runs the
// container's command as its child, hands every signal on to it, reaps orphans,
// and ends as the command ends.
//
// It runs inside the guest, from the rungv binary itself, which the launcher
// donates as an executable: an image need not hold an init, and none has to be
// built. It knows nothing of the host.
//
// For the same reason it runs an OCI bundle's startContainer hooks, and then
// becomes the command itself: what a hook sees is what the command will see.
package guestinit

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/hooks"
)

// Exit codes of a command that could not be run, as a shell's.
const (
	exitUsage         = 125
	exitNotExecutable = 126
	exitNotFound      = 127
	signalBase        = 128
)

// maxSignals is how many signals may wait to be handed on; the kernel folds
// repeated standard signals as well.
const maxSignals = 64

// Main is the process: args is its argument vector,
// api.InitName [HOOKS] -- PATH ARGV0 [ARG…], with HOOKS of package hooks. It does
// not return.
func Main(args []string) { os.Exit(run(args)) }

// become runs the hooks and replaces the process by the command; it returns the
// exit code that stands for the failure of either.
func become(hookArgument, path string, argv []string) int {
	if err := hooks.RunArgument(hookArgument); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", api.InitName, err)
		return exitUsage
	}
	return failed(argv[0], syscall.Exec(path, argv, os.Environ()))
}

// failed reports a command that could not be run.
func failed(name string, err error) int {
	fmt.Fprintf(os.Stderr, "%s: exec %q: %v\n", api.InitName, name, err)
	if errors.Is(err, unix.ENOENT) {
		return exitNotFound
	}
	return exitNotExecutable
}

// run returns the exit code of the command in args.
func run(args []string) int {
	if len(args) > 4 && hooks.IsArgument(args[1]) && args[2] == "--" {
		return become(args[1], args[3], args[4:])
	}
	if len(args) < 4 || args[1] != "--" {
		fmt.Fprintf(os.Stderr, "%s: no command\n", api.InitName)
		return exitUsage
	}
	if os.Getpid() != 1 {
		// Not process 1 (of a shared pid namespace, say): ask for the orphans.
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	signals := make(chan os.Signal, maxSignals)
	signal.Notify(signals)
	child, err := start(args[2], args[3:])
	if err != nil {
		return failed(args[3], err)
	}
	go forward(signals, child)
	return reap(child)
}

// start runs the command in a process group of its own, which becomes the
// terminal's foreground group when there is a terminal, so that job control
// in the command works as if it were alone.
func start(path string, argv []string) (int, error) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
		attr.Foreground = true
		attr.Ctty = 0
	}
	return syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   attr,
	})
}

// forward hands signals on to the child. Those that are about this process
// itself are not: its own children, its own terminal access, and the ones the
// Go runtime uses to preempt its threads.
func forward(signals <-chan os.Signal, child int) {
	for s := range signals {
		switch s {
		case unix.SIGCHLD, unix.SIGTTIN, unix.SIGTTOU, unix.SIGURG:
			continue
		}
		if n, ok := s.(unix.Signal); ok {
			// The child may have ended meanwhile: nobody to tell.
			_ = unix.Kill(child, n)
		}
	}
}

// reap waits for every child, adopted ones included, until the command has
// ended, and returns its exit code.
func reap(child int) int {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			fmt.Fprintf(os.Stderr, "%s: wait: %v\n", api.InitName, err)
			return exitUsage
		case pid != child:
			continue
		case status.Signaled():
			return signalBase + int(status.Signal())
		case status.Exited():
			return status.ExitStatus()
		}
	}
}
