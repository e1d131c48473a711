// SPDX-License-Identifier: Apache-2.0

//go:build unix

package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

// Roles of the test binary when a test starts it as another process: it does
// one thing in the store that its second argument names.
const (
	roleRun    = "run"    // enter a container, say its id, live until killed
	roleCreate = "create" // enter and remove containers until killed
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && (os.Args[1] == roleRun || os.Args[1] == roleCreate) {
		play(os.Args[1], os.Args[2])
	}
	os.Exit(m.Run())
}

func play(role, root string) {
	s, err := Open(root)
	if err != nil {
		panic(err)
	}
	for {
		h, err := s.Create(Record{Image: "img"}, "")
		if err != nil {
			panic(err)
		}
		if err := h.Update(func(r *Record) error { return r.SetState(api.StateRunning) }); err != nil {
			panic(err)
		}
		fmt.Println(h.ID())
		if role == roleRun {
			select {}
		}
		if err := h.Remove(); err != nil {
			panic(err)
		}
	}
}

// other starts the test binary in a role and returns it with its first line.
func other(t *testing.T, role, root string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], role, root)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("no answer: %v", lines.Err())
	}
	line := lines.Text()
	go func() {
		for lines.Scan() {
		}
	}()
	return cmd, line
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checkEmptyOrConsistent(t, s) })
	return s
}

// checkEmptyOrConsistent: every name leads to a record of that name, every
// directory has a record, and nothing else lies about.
func checkEmptyOrConsistent(t *testing.T, s *Store) {
	t.Helper()
	list, err := s.List()
	if err != nil {
		return // A test that damages records says so itself.
	}
	names := map[string]bool{}
	for _, r := range list {
		names[r.Name] = true
	}
	entries, _ := os.ReadDir(s.path(dirNames))
	for _, e := range entries {
		if !names[e.Name()] {
			if _, gone := s.nameOwner(e.Name()); !gone {
				t.Errorf("name %s leads to a container of another name", e.Name())
			}
		}
		delete(names, e.Name())
	}
	if len(names) != 0 {
		t.Errorf("records without a name: %v", names)
	}
}

func create(t *testing.T, s *Store, name string) *Handle {
	t.Helper()
	h, err := s.Create(Record{Image: "img"}, name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func to(state api.State) func(*Record) error {
	return func(r *Record) error { return r.SetState(state) }
}

func TestLifeOfARecord(t *testing.T) {
	s := open(t)
	h := create(t, s, "box")
	if r, err := s.Get("box"); err != nil || r.State != api.StateCreating || r.ID != h.ID() || r.Launcher.PID != os.Getpid() {
		t.Fatalf("created: %+v, %v", r, err)
	}
	if err := h.Update(to(api.StateRunning)); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get(h.ID()[:6]); err != nil || r.State != api.StateRunning {
		t.Fatalf("running: %+v, %v", r, err)
	}
	if err := s.Remove("box", true); api.KindOf(err) != api.KindState {
		t.Errorf("removing one that runs: %v", err)
	}
	if err := h.Update(to(api.StateStopped)); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get("box"); err != nil || r.State != api.StateStopped || r.Error != "" {
		t.Fatalf("stopped: %+v, %v", r, err)
	}
	if err := s.Remove("box", false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("box"); api.KindOf(err) != api.KindNotFound {
		t.Errorf("removed: %v", err)
	}
	if err := create(t, s, "box").Remove(); err != nil {
		t.Errorf("the name again, and --rm: %v", err)
	}
}

func TestTransitions(t *testing.T) {
	all := []api.State{api.StateCreating, api.StateCreated, api.StateRunning, api.StateStopped}
	legal := map[string]bool{
		"creating created": true, "creating running": true, "creating stopped": true,
		"created running": true, "created stopped": true, "running stopped": true,
	}
	for _, from := range all {
		for _, target := range all {
			r := Record{ID: "x", State: from}
			err := r.SetState(target)
			var typed *TransitionError
			if ok := legal[string(from)+" "+string(target)]; ok != (err == nil) {
				t.Errorf("%s to %s: %v", from, target, err)
			} else if err != nil && (!errors.As(err, &typed) || api.KindOf(err) != api.KindState || r.State != from) {
				t.Errorf("%s to %s: %v", from, target, err)
			}
		}
	}
}

func TestUpdateThatFailsChangesNothing(t *testing.T) {
	s := open(t)
	h := create(t, s, "box")
	defer h.Remove()
	wrong := errors.New("no")
	err := h.Update(func(r *Record) error {
		r.State = api.StateStopped
		return wrong
	})
	if !errors.Is(err, wrong) || h.Record().State != api.StateCreating {
		t.Errorf("%v, %s", err, h.Record().State)
	}
}

func TestNames(t *testing.T) {
	s := open(t)
	h := create(t, s, "box")
	defer h.Remove()
	_, err := s.Create(Record{}, "box")
	if api.KindOf(err) != api.KindExists || !strings.Contains(err.Error(), `The container name "/box" is already in use by container "`+h.ID()) {
		t.Errorf("conflict: %v", err)
	}
	for _, bad := range []string{"a", "-x", "a/b", "../x", "a b", ".hidden", strings.Repeat("x", 200)} {
		if _, err := s.Create(Record{}, bad); api.KindOf(err) != api.KindInvalid {
			t.Errorf("name %q: %v", bad, err)
		}
		if bad == "a" {
			continue // It may be the beginning of an id.
		}
		if _, err := s.Get(bad); api.KindOf(err) != api.KindNotFound {
			t.Errorf("get %q: %v", bad, err)
		}
	}
	seen := map[string]bool{}
	for range 50 {
		h := create(t, s, "")
		if seen[h.Record().Name] || checkName(h.Record().Name) != nil {
			t.Errorf("random name %q", h.Record().Name)
		}
		seen[h.Record().Name] = true
		defer h.Remove()
	}
	if _, err := s.Get(""); api.KindOf(err) != api.KindNotFound {
		t.Errorf("the empty reference: %v", err)
	}
}

func TestOneNameManyCreators(t *testing.T) {
	s := open(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []*Handle
	for range 16 {
		wg.Go(func() {
			h, err := s.Create(Record{}, "box")
			if err != nil {
				if api.KindOf(err) != api.KindExists {
					t.Error(err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			won = append(won, h)
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d containers have one name", len(won))
	}
	won[0].Remove()
}

func TestLauncherKilled(t *testing.T) {
	s := open(t)
	cmd, id := other(t, roleRun, s.Root())
	if r, err := s.Get(id); err != nil || r.State != api.StateRunning || !r.Launcher.Alive() {
		t.Fatalf("while it lives: %+v, %v", r, err)
	}
	released := make(chan error, 1)
	go func() { released <- s.WaitReleased(context.Background(), id) }()
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	r, err := s.Get(id)
	if err != nil || r.State != api.StateStopped || r.Error != launcherDied || r.Exit == nil || r.Exit.Code != 137 || r.Launcher.Alive() {
		t.Errorf("after its death: %+v, %v", r, err)
	}
	if err := s.Remove(r.Name, false); err != nil {
		t.Error(err)
	}
}

// TestAutoRemoveOutlivesLauncher: what was to go with its launcher goes when
// that was killed, at the next look, and its name with it.
func TestAutoRemoveOutlivesLauncher(t *testing.T) {
	s := open(t)
	for name, look := range map[string]func(id string){
		"list":   func(string) { s.List() },
		"get":    func(id string) { s.Get(id) },
		"create": func(string) {},
	} {
		h, err := s.Create(Record{AutoRemove: true}, name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(name); err != nil {
			t.Errorf("%s: while it lives: %v", name, err)
		}
		h.Close() // As the kernel does for the dead.
		look(h.ID())
		if _, err := os.Lstat(s.Dir(h.ID())); name != "create" && err == nil {
			t.Errorf("%s: its directory is still there", name)
		}
		again, err := s.Create(Record{}, name)
		if err != nil {
			t.Errorf("%s: its name is still taken: %v", name, err)
			continue
		}
		again.Remove()
	}
}

// TestKilledEpisodesDoNotPileUp: who only ever creates containers that go with
// their launchers, and kills those, does not gather their records; the living and
// the stopped are left alone.
func TestKilledEpisodesDoNotPileUp(t *testing.T) {
	s := open(t)
	var living []*Handle
	for i := range 5 {
		living = append(living, create(t, s, fmt.Sprint("living-", i)))
	}
	stopped := create(t, s, "stopped")
	stopped.Close()
	const episodes = 300
	for range episodes {
		h, err := s.Create(Record{AutoRemove: true}, "")
		if err != nil {
			t.Fatal(err)
		}
		h.Close() // As the kernel does for the dead.
	}
	for _, dir := range []string{dirContainers, dirNames} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			t.Fatal(err)
		}
		// One is to be expected, of six that stay; twenty never happens.
		if left := len(entries) - len(living) - 1; left > 20 {
			t.Errorf("%d of %d killed episodes are left in %s", left, episodes, dir)
		}
	}
	for _, h := range append(living, stopped) {
		if _, err := os.Lstat(filepath.Join(s.Dir(h.ID()), fileRecord)); err != nil {
			t.Errorf("one that was to stay: %v", err)
		}
	}
}

// TestAskersAreNoLaunchers: whoever lists containers all the time makes none
// of them look alive to who removes them, and stops nobody who creates one.
func TestAskersAreNoLaunchers(t *testing.T) {
	s := open(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.List()
				}
			}
		})
	}
	for range 100 {
		h, err := s.Create(Record{}, "asked")
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
		if err := s.Remove("asked", false); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestWaitReleasedGivesUp(t *testing.T) {
	s := open(t)
	h := create(t, s, "")
	defer h.Remove()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := s.WaitReleased(ctx, h.ID()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := s.WaitReleased(context.Background(), NewID()); err != nil {
		t.Errorf("a container that is gone: %v", err)
	}
}

// TestKilledAnywhere kills a process that enters and removes containers all
// the time, again and again, and looks at what is left each time.
func TestKilledAnywhere(t *testing.T) {
	s := open(t)
	for i := range 20 {
		cmd, _ := other(t, roleCreate, s.Root())
		time.Sleep(time.Duration(i) * 300 * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		list, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			if r.State != api.StateStopped {
				t.Errorf("a dead launcher's container is %s", r.State)
			}
			if err := s.Remove(r.ID, false); err != nil {
				t.Error(err)
			}
		}
		if left, _ := os.ReadDir(s.path(dirContainers)); len(left) != 0 {
			t.Fatalf("round %d: %d directories left", i, len(left))
		}
		if names, _ := os.ReadDir(s.path(dirNames)); len(names) != 0 {
			t.Fatalf("round %d: names left: %v", i, names)
		}
	}
}

// TestNamesOfTheDeadGoUnlisted: whoever starts containers and never lists them gathers no
// names of those whose creation was cut short, and theirs may be had at once.
func TestNamesOfTheDeadGoUnlisted(t *testing.T) {
	s := open(t)
	for n := range 100 {
		if err := os.Symlink("../containers/"+NewID(), s.path(dirNames, fmt.Sprint("dead", n))); err != nil {
			t.Fatal(err)
		}
		if err := create(t, s, fmt.Sprint("dead", n)).Remove(); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../containers/"+NewID(), s.path(dirNames, fmt.Sprint("dead", n))); err != nil {
			t.Fatal(err)
		}
	}
	living := create(t, s, "living")
	if names, _ := os.ReadDir(s.path(dirNames)); len(names) > 10 {
		t.Errorf("%d names", len(names))
	}
	if _, err := s.List(); err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(s.path(dirNames)); len(names) != 1 || names[0].Name() != "living" {
		t.Errorf("names %v", names)
	}
	if err := living.Remove(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryStepOfCreateMayBeTheLast(t *testing.T) {
	id := NewID()
	steps := []struct {
		name string
		make func(t *testing.T, s *Store)
	}{
		{"name only", func(t *testing.T, s *Store) {
			if err := os.Symlink("../containers/"+id, s.path(dirNames, "box")); err != nil {
				t.Fatal(err)
			}
		}},
		{"directory", func(t *testing.T, s *Store) {
			if err := os.Mkdir(s.Dir(id), 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"lock", func(t *testing.T, s *Store) {
			if err := os.WriteFile(filepath.Join(s.Dir(id), fileLock), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"temporary record", func(t *testing.T, s *Store) {
			if err := os.WriteFile(filepath.Join(s.Dir(id), fileTemp), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for n := range steps {
		s := open(t)
		for _, step := range steps[:n+1] {
			step.make(t, s)
		}
		list, err := s.List()
		if names, _ := os.ReadDir(s.path(dirNames)); len(names) != 0 {
			t.Errorf("after %q: names %v", steps[n].name, names)
		}
		if err != nil || len(list) != 0 {
			t.Errorf("killed after %s: %v, %v", steps[n].name, list, err)
		}
		if _, err := os.Lstat(s.Dir(id)); !os.IsNotExist(err) {
			t.Errorf("killed after %s: its directory stays: %v", steps[n].name, err)
		}
		if err := create(t, s, "box").Remove(); err != nil {
			t.Errorf("killed after %s: the name is taken: %v", steps[n].name, err)
		}
	}
}

func TestDamagedRecords(t *testing.T) {
	for name, doc := range map[string]string{
		"empty": "", "cut": `{"version":1`, "another's": `{"version":1,"id":"x","name":"box","state":"running"}`,
		"unknown state": `{"version":1,"id":"ID","name":"box","state":"flying"}`, "version 0": `{"version":0,"id":"ID","name":"box","state":"stopped"}`,
		"bad name": `{"version":1,"id":"ID","name":"../../x","state":"stopped"}`,
	} {
		s := open(t)
		good := create(t, s, "good")
		h := create(t, s, "box")
		h.Close()
		if err := os.WriteFile(filepath.Join(h.Dir(), fileRecord), []byte(strings.ReplaceAll(doc, "ID", h.ID())), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := s.List()
		if err == nil || len(list) != 1 || list[0].ID != good.ID() {
			t.Errorf("%s: %d others, %v", name, len(list), err)
		}
		if err := s.Remove(h.ID(), false); err == nil {
			t.Errorf("%s: removed without force", name)
		}
		if err := s.Remove(h.ID(), true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		good.Remove()
	}
}

func TestNewerRecordIsLeftAlone(t *testing.T) {
	s := open(t)
	h := create(t, s, "box")
	h.Close()
	doc := fmt.Sprintf(`{"version":%d,"id":%q,"name":"box","state":"stopped"}`, RecordVersion+1, h.ID())
	if err := os.WriteFile(filepath.Join(h.Dir(), fileRecord), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("box"); api.KindOf(err) != api.KindUnsupported || !strings.Contains(err.Error(), "newer rungv") {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	shared := filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{shared, link, file, "relative"} {
		if _, err := Open(root); err == nil {
			t.Errorf("opened %s", root)
		}
	}
}

func TestProcessIdentity(t *testing.T) {
	me, ok := Identify(os.Getpid())
	if !ok {
		t.Skip("no /proc here")
	}
	if me != self() || !me.Alive() {
		t.Errorf("me: %+v, self: %+v", me, self())
	}
	again := me
	again.StartTicks++
	if again.Alive() || (ProcessID{}).Alive() || (ProcessID{PID: -1}).Alive() {
		t.Error("a number that was used again passes for the process")
	}
}
