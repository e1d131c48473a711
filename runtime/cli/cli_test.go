// SPDX-License-Identifier: Apache-2.0

// These tests run the command line as a user does: the test binary plays
// rungv, with a root of its own. No sandbox starts here; integration/run has
// those.

package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/state"
)

// asProgram is argv[0] of the test binary when it plays rungv.
const asProgram = "rungv-under-test"

func TestMain(m *testing.M) {
	if os.Args[0] == asProgram {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// rungv runs the command line and returns what a user gets.
func rungv(t *testing.T, root string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := &exec.Cmd{Path: self, Args: append([]string{asProgram, "--root", root}, args...), Stdout: &out, Stderr: &errs}
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func linuxOnly(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("containers are kept on Linux only")
	}
}

func TestBadCommandLines(t *testing.T) {
	linuxOnly(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	noName, spaced := write("noname", "A=1\n=x\n"), write("spaced", "# c\n\nA B=1\n")
	cid := write("cid", "taken")
	for _, c := range []struct {
		args string
		code int
		say  string
	}{
		{"nosuch", 125, "unknown command: rungv nosuch"},
		{"--nosuch ps", 125, "unknown flag: --nosuch"},
		{"--log-format xml ps", 1, `invalid --log-format "xml"`},
		{"--log /nonexistent/dir/log ps", 1, "--log: open /nonexistent/dir/log"},
		{"run", 125, "'rungv run' requires at least 1 argument"},
		{"run --nosuch img", 125, "unknown flag: --nosuch"},
		{"run -X img", 125, "unknown shorthand flag: 'X'"},
		{"run -m lots img", 125, `invalid size "lots"`},
		{"run -m -5m img", 125, `invalid size "-5m"`},
		{"run --cpus many img", 125, `failed to parse "many"`},
		{"run --stop-timeout soon img", 125, `"soon" is no number`},
		{"run --pids-limit x img", 125, "pids-limit"},
		{"run --pull sometimes img", 125, `invalid pull option: "sometimes"`},
		{"run --platform a/b/c/d img", 125, "a/b/c/d"},
		{"run --network mine img", 125, `network "mine" not found`},
		{"run --net host img", 125, `network "host"`},
		{"run -p x img", 125, `invalid published port "x"`},
		{"run -p unix:rel:1 img", 125, "the path must be absolute"},
		{"run --egress @/nonexistent img", 125, "egress rules: open /nonexistent"},
		{"run --egress maybe img", 125, `invalid egress rule "maybe"`},
		{"run --network none --add-host h:host-gateway img", 125, "there is no host gateway"},
		{"run --network none -p 80 img", 125, "--publish and --egress need a network"},
		{"run -w rel img", 125, "the working directory 'rel' is invalid"},
		{"run -h a/b img", 125, `invalid hostname "a/b"`},
		{"run --name a img", 125, "Invalid container name (a)"},
		{"run --name a/b img", 125, "Invalid container name (a/b)"},
		{"run --tmpfs rel img", 125, `invalid tmpfs "rel"`},
		{"run --ulimit nofile img", 125, `invalid ulimit argument: "nofile"`},
		{"run --add-host x img", 125, "bad format for add-host"},
		{"run --dns x img", 125, "invalid name server"},
		{"run --sysctl x img", 125, `invalid sysctl "x"`},
		{"run --security-opt label=user:x img", 125, "invalid --security-opt"},
		{"run --stop-signal NONE img", 125, "invalid signal: NONE"},
		{"run --detach-keys ctrl img", 125, "invalid detach keys"},
		{"run -e =x img", 125, `invalid environment variable: "=x"`},
		{"run --env-file /nonexistent img", 125, "env file: open /nonexistent"},
		{"run --env-file " + noName + " img", 125, "line 2: no variable name on line '=x'"},
		{"run --env-file " + spaced + " img", 125, "line 3: variable 'A B' contains whitespaces"},
		{"run -l =x img", 125, "invalid label format"},
		{"run --annotation =x img", 125, "invalid annotation format"},
		{"run --progress fancy img", 125, "fancy"},
		{"run --cidfile " + cid + " --pull never img", 125, "container ID file found"},
		{"run --pull never img", 125, "img"},
		{"run rootfs:/nonexistent true", 125, "/nonexistent"},
		{"run UPPER true", 125, "UPPER"},
		{"ps extra", 1, "No such container: extra"}, // runc's ps
		{"ps --format json extra", 1, "container does not exist: extra"},
		{"state extra", 1, "container does not exist: extra"},
		{"delete extra", 1, "container does not exist: extra"},
		{"delete --force extra", 0, ""},
		{"create --bundle DIR", 125, "requires at least 1 argument"},
		{"create --bundle /nonexistent extra", 1, "/nonexistent"},
		{"create --bundle / a b", 125, "exactly one argument"},
		{"create --preserve-fds 65 --bundle / a", 1, "--preserve-fds 65: want 0 to 64"},
		{"create --preserve-fds -1 --bundle / a", 1, "--preserve-fds -1: want 0 to 64"},
		{"checkpoint extra", 1, "no checkpoints"},
		{"restore extra", 1, "no checkpoints"},
		{"ps --filter x", 1, "(should be KEY=VALUE)"},
		{"ps --filter x=y", 1, "invalid filter 'x'"},
		{"ps --filter status=flying", 1, "invalid filter 'status=flying'"},
		{"ps --filter exited=x", 1, "invalid filter 'exited=x'"},
		{"ps --filter before=x", 1, "No such container: x"},
		{"ps --format {{.Nosuch", 1, "template parsing error"},
		{"inspect", 125, "requires at least 1 argument"},
		{"inspect nothing", 1, "No such object: nothing"},
		{"inspect --type container nothing", 1, "No such container: nothing"},
		{"inspect --type volume xx", 1, "get xx: no such volume"},
		{"inspect --type network x", 1, `invalid --type "network"`},
		{"kill", 125, "requires at least 1 argument"},
		{"kill nothing", 1, "cannot kill container: nothing: No such container: nothing"},
		{"kill -s NONE x", 1, "invalid signal: NONE"},
		{"stop nothing", 1, "No such container: nothing"},
		{"stop -t x nothing", 125, "invalid argument \"x\""},
		{"rm nothing", 1, "No such container: nothing"},
		{"rm -f nothing", 0, "No such container: nothing"},
		{"top", 125, "requires at least 1 argument"},
		{"top nothing", 1, "No such container: nothing"},
		{"stats --no-stream nothing", 1, "No such container: nothing"},
	} {
		out, errs, code := rungv(t, filepath.Join(dir, "root"), strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errs, c.say) {
			t.Errorf("rungv %s: exit code %d, want %d, with %q:\n%s%s", c.args, code, c.code, c.say, out, errs)
		}
		if n := strings.Count(errs, "rungv: "); code != 0 && n != 1 {
			t.Errorf("rungv %s: %d error lines:\n%s", c.args, n, errs)
		}
	}
	for _, left := range []string{"state/containers", "state/names"} {
		if entries, _ := os.ReadDir(filepath.Join(dir, "root", left)); len(entries) != 0 {
			t.Errorf("%d entries left in %s", len(entries), left)
		}
	}
	if b, err := os.ReadFile(cid); err != nil || string(b) != "taken" {
		t.Errorf("another container's id file: %q, %v", b, err)
	}
}

func TestUnwritableRoot(t *testing.T) {
	linuxOnly(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := rungv(t, file, "ps")
	if code != 1 || !strings.Contains(errs, "open container store") || !strings.Contains(errs, "--root") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if _, errs, code = rungv(t, file, "run", "img"); code != 125 {
		t.Errorf("run: exit code %d: %s", code, errs)
	}
}

func TestEveryVerbHasHelp(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" || cmd.HasParent() && cmd.Parent().Name() == "completion" {
			return // cobra's own
		}
		if cmd.Short == "" || cmd.Long == "" || cmd.Hidden != (cmd.Name() == supervisorVerb) {
			t.Errorf("%s: short %q, long %q, hidden %v", cmd.CommandPath(), cmd.Short, cmd.Long, cmd.Hidden)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" && !f.Hidden {
				t.Errorf("%s: --%s is not explained", cmd.CommandPath(), f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRootCommand(&globals{}))
}

func TestVersionAndHelp(t *testing.T) {
	root := t.TempDir()
	for args, say := range map[string]string{
		"version":                              "Go version:",
		"version --format {{.Server.Version}}": "unknown",
		"version -f json":                      `"Client":`,
		"--version":                            "rungv version",
		"run --help":                           "Usage:",
		"run -h":                               "Usage:",
		"":                                     "Usage:",
		"completion bash":                      "bash completion",
	} {
		out, errs, code := rungv(t, root, strings.Fields(args)...)
		if code != 0 || !strings.Contains(out, say) || errs != "" {
			t.Errorf("rungv %s: exit code %d, %q\n%s", args, code, out, errs)
		}
	}
}

// parse returns the run that flags describe.
func parse(t *testing.T, args ...string) (*container.RunOptions, error) {
	t.Helper()
	f := &runFlags{}
	cmd := &cobra.Command{Use: "run"}
	cmd.Flags().SetInterspersed(false)
	f.register(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return nil, err
	}
	return f.options(cmd.Flags().Args())
}

func TestRunFlags(t *testing.T) {
	t.Setenv("GVX_TEST_VALUE", "from outside")
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("\ufeffA=file\r\n  B=2\n#C=3\nGVX_TEST_VALUE\nGVX_TEST_MISSING\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parse(t, "-it", "--rm", "--name", "box", "-e", "A=flag", "-e", "GVX_TEST_MISSING", "--env-file", file,
		"-m", "512m", "--cpus", "1.5", "--pids-limit", "-1", "--ulimit", "core=0", "--entrypoint", "", "-h", "host",
		"-l", "k=v", "-l", "alone", "--tmpfs", "/t", "--stop-timeout", "0", "--sysctl", "net.core.somaxconn=5",
		"img", "cmd", "-x", "--name", "inner")
	if err != nil {
		t.Fatal(err)
	}
	if !o.Interactive || !o.TTY || !o.AutoRemove || o.Name != "box" || !o.SignalProxy || o.Image != "img" ||
		strings.Join(o.Args, " ") != "cmd -x --name inner" || !o.SetEntrypoint || o.Hostname != "host" {
		t.Errorf("options: %+v", o)
	}
	if got := strings.Join(o.Env, "|"); got != "A=file|B=2|GVX_TEST_VALUE=from outside|A=flag|GVX_TEST_MISSING" {
		t.Errorf("environment %q", got)
	}
	if o.MemoryBytes != 512<<20 || o.CPUMillis != 1500 || o.Pids != 0 || len(o.Ulimits) != 1 ||
		o.StopTimeout == nil || *o.StopTimeout != 0 || o.Sysctls["net.core.somaxconn"] != "5" || string(o.DetachKeys) != "\x10\x11" {
		t.Errorf("resources: %+v", o)
	}
	if v, ok := o.Labels["alone"]; !ok || v != "" || o.Labels["k"] != "v" || o.Network != "nat" {
		t.Errorf("labels %v, network %s", o.Labels, o.Network)
	}
	if o, err = parse(t, "img"); err != nil || o.SetEntrypoint || o.StopTimeout != nil || o.Labels != nil {
		t.Errorf("no flags: %+v, %v", o, err)
	}
}

func TestEgressFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte("# of the scoring phase\n\nallow=192.0.2.0/24:443 # the grader\r\ndeny=192.0.2.9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parse(t, "--egress", "deny", "--egress", "@"+file, "--egress", "allow=10.0.2.3", "img")
	var got []string
	if err == nil {
		for i := range o.Egress {
			got = append(got, o.Egress[i].String())
		}
	}
	if want := "deny allow=192.0.2.0/24:443 deny=192.0.2.9/32 allow=10.0.2.3/32"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("%q, %v, want %s", got, err, want)
	}
}

func TestStatusWords(t *testing.T) {
	stopped := &state.Record{State: api.StateStopped, Exit: &api.ExitStatus{Code: 3}}
	for _, c := range []struct {
		rec           *state.Record
		state, status string
	}{
		{&state.Record{State: api.StateCreating}, "created", "Created"},
		{&state.Record{State: api.StateCreated}, "created", "Created"},
		// Its launcher was killed before the guest ran.
		{&state.Record{State: api.StateStopped}, "created", "Created"},
		{stopped, "exited", "Exited (3)"},
	} {
		if s, w := dockerState(c.rec), dockerStatus(c.rec); s != c.state || w != c.status {
			t.Errorf("%s: %q, %q", c.rec.State, s, w)
		}
	}
}

func TestPsAndInspectOfARecord(t *testing.T) {
	linuxOnly(t)
	root := t.TempDir()
	s, err := state.Open(filepath.Join(root, "state"))
	if err != nil {
		t.Fatal(err)
	}
	rec := state.Record{Image: "debian:12", ImageID: "sha256:abc"}
	rec.Process.Args = []string{"sleep", "a-very-long-argument-indeed"}
	rec.Options.Labels = map[string]string{"b": "2", "a": "1"}
	h, err := s.Create(rec, "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Update(func(r *state.Record) error { return r.SetState(api.StateRunning) }); err != nil {
		t.Fatal(err)
	}
	expect := func(want string, args ...string) {
		t.Helper()
		out, errs, code := rungv(t, root, args...)
		if code != 0 || strings.TrimSpace(out) != want {
			t.Errorf("rungv %q: exit code %d, %q, want %q\n%s", args, code, out, want, errs)
		}
	}
	expect(h.ID()[:12], "ps", "-q")
	expect(h.ID(), "ps", "-q", "--no-trunc")
	expect(`box running "sleep a-very-long-a…" a=1,b=2 2`, "ps", "--format", `{{.Names}} {{.State}} {{.Command}} {{.Labels}} {{.Label "b"}}`)
	expect(h.ID()[:12], "ps", "-q", "--filter", "label=a=1", "--filter", "name=bo", "--filter", "ancestor=debian:12", "--filter", "id="+h.ID()[:3])
	expect("", "ps", "-q", "--filter", "label=a=2")
	expect("", "ps", "-q", "--filter", "status=exited")
	expect("", "ps", "-aq", "--filter", "since=box")
	expect("running true sleep [a-very-long-argument-indeed]", "inspect", "-f", "{{.State.Status}} {{.State.Running}} {{.Path}} {{.Args}}", "box")
	// Its launcher (this process) lives, but no sandbox answers.
	if _, errs, code := rungv(t, root, "kill", "box"); code != 1 || !strings.Contains(errs, "is not running") {
		t.Errorf("kill: exit code %d, %s", code, errs)
	}
	if _, errs, code := rungv(t, root, "rm", "box"); code != 1 || !strings.Contains(errs, "container is running") {
		t.Errorf("rm: exit code %d, %s", code, errs)
	}
	h.Close() // As when a launcher dies.
	expect("", "ps", "-q")
	expect("exited 137 launcher died: the sandbox ended with it", "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}} {{.State.Error}}", "box")
	expect("box", "rm", "box")
}

func TestStateRoot(t *testing.T) {
	linuxOnly(t)
	if os.Geteuid() == 0 {
		g := &globals{}
		if dir, err := g.stateRoot(); dir != "/run/gvx" || err != nil {
			t.Errorf("root's: %s, %v", dir, err)
		}
		return
	}
	own := t.TempDir()
	fallback := filepath.Join(os.TempDir(), "gvx-"+strconv.Itoa(os.Getuid()))
	for runtimeDir, want := range map[string]string{own: filepath.Join(own, "gvx"), "/": fallback, "": fallback, "relative": fallback} {
		t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
		g := &globals{}
		if dir, err := g.stateRoot(); dir != want || err != nil {
			t.Errorf("XDG_RUNTIME_DIR=%q: %s, want %s, %v", runtimeDir, dir, want, err)
		}
	}
}

// TestInspectTemplatesTakeBothNames: docker's users write .Id as well as .ID.
func TestInspectTemplatesTakeBothNames(t *testing.T) {
	found := []any{&containerDocument{ID: "abc", State: stateDocument{Pid: 1 << 60}}}
	for format, want := range map[string]string{
		"{{.ID}}": "abc\n", "{{.Id}}": "abc\n", "{{.State.Pid}}": "1152921504606846976\n", "{{.Id}} {{.State.Pid}}": "abc 1152921504606846976\n",
	} {
		var b strings.Builder
		if err := printInspect(&b, format, found); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v, want %q", format, b.String(), err, want)
		}
	}
	if err := printInspect(&strings.Builder{}, "{{.Nothing}}", found); err == nil {
		t.Error("a field that does not exist is none")
	}
}
