// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// userName is the ordinary user that tests started by root become.
const userName = "gvx-test"

// runTimeout bounds every command that a test starts and does not bound itself:
// a hang must name its test, not end the whole run.
const runTimeout = 2 * time.Minute

// Home is the world of one user of rungv: a home folder, a runtime folder, a
// data folder with the image store, and the binary. Started by root, the user is
// an ordinary one made for tests; else it is whoever runs them.
type Home struct {
	// Dir is the home folder, on a real file system.
	Dir string
	// Binary is the rungv that Command starts.
	Binary string
	// UID and GID are the user's.
	UID, GID int
	// Env is the whole environment of Command.
	Env []string

	mu       sync.Mutex
	imported map[string]bool // test bed images that are in the store
}

// NewHome makes a home below /var/tmp (TMPDIR if set): a tmpfs would hide what
// happens to sparse files and page cache. The caller removes it by Remove.
func NewHome() (*Home, error) {
	base := os.Getenv("TMPDIR")
	if base == "" {
		base = "/var/tmp"
	}
	dir, err := os.MkdirTemp(base, "gvx-test-")
	if err != nil {
		return nil, err
	}
	h := &Home{Dir: dir, Binary: filepath.Join(dir, "bin", "rungv"), UID: os.Geteuid(), GID: os.Getegid()}
	if err := h.fill(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return h, nil
}

func (h *Home) fill() error {
	if h.UID == 0 {
		var err error
		if h.UID, h.GID, err = ordinaryUser(); err != nil {
			return err
		}
	}
	if err := buildRungv(h.Binary); err != nil {
		return err
	}
	for _, name := range []string{"run", "data", "images", "tmp"} {
		if err := os.Mkdir(h.Path(name), 0o700); err != nil {
			return err
		}
		if err := os.Chown(h.Path(name), h.UID, h.GID); err != nil {
			return err
		}
	}
	if err := os.Chmod(h.Dir, 0o755); err != nil {
		return err
	}
	h.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm",
		"HOME=" + h.Dir, "XDG_RUNTIME_DIR=" + h.Path("run"), "XDG_DATA_HOME=" + h.Path("data"), "TMPDIR=" + h.Path("tmp"),
	}
	return os.Chown(h.Dir, h.UID, h.GID)
}

// Path returns a path below the home folder.
func (h *Home) Path(elements ...string) string {
	return filepath.Join(append([]string{h.Dir}, elements...)...)
}

// Remove deletes the home folder.
func (h *Home) Remove() error { return os.RemoveAll(h.Dir) }

// Chown gives a file that the test made to the home's user.
func (h *Home) Chown(t testing.TB, path string) {
	t.Helper()
	if err := os.Chown(path, h.UID, h.GID); err != nil {
		t.Fatal(err)
	}
}

// Command makes a command that runs rungv as the home's user, in its folder,
// with its environment and nothing else of the test's.
func (h *Home) Command(ctx context.Context, args ...string) *exec.Cmd {
	return h.CommandAs(ctx, h.Binary, args...)
}

// CommandAs is Command for any program.
func (h *Home) CommandAs(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = h.Dir
	cmd.Env = h.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 && h.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(h.UID), Gid: uint32(h.GID)}
	}
	// Should the context end it: a polite signal first, so that a failing
	// test still shows what rungv had to say.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	return cmd
}

// Result is how a command ended.
type Result struct {
	Code           int
	Stdout, Stderr string
	Took           time.Duration
}

// String shows all of it, for test messages.
func (r Result) String() string {
	return fmt.Sprintf("exit code %d after %v\nstdout: %s\nstderr: %s", r.Code, r.Took.Round(time.Millisecond), clip(r.Stdout), clip(r.Stderr))
}

// clip shortens output for messages.
func clip(s string) string {
	const most = 4096
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s\n… %d bytes …\n%s", s[:most/2], len(s)-most, s[len(s)-most/2:])
}

// Rungv runs rungv to its end with the given standard input and returns how it
// ended. A command that does not end in time fails the test.
func (h *Home) Rungv(t testing.TB, stdin io.Reader, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	return Run(t, h.Command(ctx, args...), stdin)
}

// MustRungv is Rungv for a command that has to succeed; it returns its output.
func (h *Home) MustRungv(t testing.TB, args ...string) string {
	t.Helper()
	result := h.Rungv(t, nil, args...)
	if result.Code != 0 {
		t.Fatalf("rungv %q: %v", args, result)
	}
	return result.Stdout
}

// Run runs a command to its end. Its context bounds it.
func Run(t testing.TB, cmd *exec.Cmd, stdin io.Reader) Result {
	t.Helper()
	return RunBy(t, cmd, stdin, cmd.Start)
}

// RunBy is Run for a command that something else than cmd.Start has to start:
// from a thread that is prepared in some way.
func RunBy(t testing.TB, cmd *exec.Cmd, stdin io.Reader, start func() error) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	begin := time.Now()
	err := start()
	if err == nil {
		err = cmd.Wait()
	}
	result := Result{Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(begin)}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		result.Code = exit.ExitCode()
	default:
		t.Fatalf("%q did not end by itself: %v\n%v", cmd.Args, err, result)
	}
	return result
}

// Image imports an image of the test bed into the home's store, once, and
// returns the name it has there.
func (h *Home) Image(t testing.TB, name string) string {
	t.Helper()
	layout := h.Layout(t, name)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.imported[name] {
		return name
	}
	result := h.Rungv(t, nil, "image", "import", "--progress", "none", "oci:"+layout+":latest", name)
	if result.Code != 0 {
		t.Fatalf("import image %s: %v", name, result)
	}
	if h.imported == nil {
		h.imported = make(map[string]bool)
	}
	h.imported[name] = true
	return name
}

// Layout makes an image of the test bed readable for the home's user, as an OCI
// layout, and returns its folder. Blobs are hard links where that is possible:
// nobody writes to them.
func (h *Home) Layout(t testing.TB, name string) string {
	t.Helper()
	from, to := filepath.Join(Need(t, name), "oci"), h.Path("images", name)
	if _, err := os.Stat(filepath.Join(to, "index.json")); err == nil {
		return to
	}
	if err := linkTree(from, to); err != nil {
		t.Fatalf("stage image %s: %v", name, err)
	}
	return to
}

// linkTree makes a copy of a tree whose files are hard links, or copies where
// the file systems differ.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if os.Link(path, target) == nil {
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// buildRungv puts the binary at path: $GVX_RUNGV if that is set, else built from
// this tree.
func buildRungv(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if given := os.Getenv("GVX_RUNGV"); given != "" {
		if err := copyFile(given, path); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o755); err != nil {
			return err
		}
		return flush(path)
	}
	build := exec.Command("go", "build", "-o", path, "./cmd/rungv")
	build.Dir = Tree()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build rungv: %w\n%s", err, output)
	}
	return flush(path)
}

// flush writes a new binary to disk. Until then its pages are dirty in the page
// cache, and /proc counts them as private dirty memory of whoever maps them:
// 4.6 MB that no installed binary costs.
func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// ordinaryUser returns the ids of the user that tests become, making it if it is
// not there. Root only.
func ordinaryUser() (uid, gid int, err error) {
	account, err := user.Lookup(userName)
	if err != nil {
		output, addErr := exec.Command("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", userName).CombinedOutput()
		if addErr != nil {
			return 0, 0, fmt.Errorf("make user %s: %w: %s", userName, addErr, output)
		}
		if account, err = user.Lookup(userName); err != nil {
			return 0, 0, err
		}
	}
	if uid, err = strconv.Atoi(account.Uid); err != nil {
		return 0, 0, err
	}
	gid, err = strconv.Atoi(account.Gid)
	return uid, gid, err
}
