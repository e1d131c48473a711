// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// outcome is how one test, or one module of tests, ended.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
)

// suiteResult is what a run of CPython's test suite gave.
type suiteResult struct {
	// modules by name ("test_os"), as the runner printed them.
	modules map[string]outcome
	// tests by id ("test.test_os.FileTests.test_access"), from the JUnit file.
	tests map[string]outcome
}

// moduleLine is what the runner prints when a module has ended.
var moduleLine = regexp.MustCompile(`\[ *\d+/\d+(?:/\d+)?\] (test_\w+(?:\.\w+)*) (.*)$`)

// parseSuite reads the runner's log and JUnit file.
func parseSuite(log, junit string) (*suiteResult, error) {
	result := &suiteResult{modules: make(map[string]outcome), tests: make(map[string]outcome)}
	lines := bufio.NewScanner(strings.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if match := moduleLine.FindStringSubmatch(lines.Text()); match != nil {
			result.modules[match[1]] = moduleOutcome(match[2])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the runner's log: %w", err)
	}
	decoder := xml.NewDecoder(strings.NewReader(junit))
	// Tests put what they like into messages, control characters included.
	decoder.Strict = false
	var suites struct {
		Suites []struct {
			Cases []struct {
				Name     string     `xml:"name,attr"`
				Failures []struct{} `xml:"failure"`
				Errors   []struct{} `xml:"error"`
				Skipped  []struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := decoder.Decode(&suites); err != nil {
		return nil, fmt.Errorf("read the JUnit file: %w", err)
	}
	for _, suite := range suites.Suites {
		for _, test := range suite.Cases {
			// A test with subtests has an entry for each: the worst counts.
			now := passed
			switch {
			case len(test.Failures)+len(test.Errors) > 0:
				now = failed
			case len(test.Skipped) > 0:
				now = skipped
			}
			if before, ok := result.tests[test.Name]; !ok || now == failed || before == passed {
				result.tests[test.Name] = now
			}
		}
	}
	return result, nil
}

// moduleOutcome classifies the words after a module's name.
func moduleOutcome(words string) outcome {
	switch {
	case strings.HasPrefix(words, "passed"):
		return passed
	case strings.HasPrefix(words, "skipped"), strings.Contains(words, "resource denied"):
		return skipped
	}
	// failed, crashed, timed out, "failed (env changed)", worker died.
	if strings.HasPrefix(words, "failed (env changed)") {
		return passed
	}
	return failed
}

// count says how many of the outcomes are of each kind.
func count(outcomes map[string]outcome) string {
	counts := make(map[outcome]int)
	for _, o := range outcomes {
		counts[o]++
	}
	return fmt.Sprintf("%d: %d passed, %d failed, %d skipped", len(outcomes), counts[passed], counts[failed], counts[skipped])
}

// difference is a test that ends worse here than in the baseline.
type difference struct {
	id             string
	here, baseline outcome
}

// compare returns what is worse here than in the baseline, sorted. A module is
// named only where none of its tests explains it: it crashed, hung, or was not
// run at all.
func compare(here, baseline *suiteResult) []difference {
	var differences []difference
	for id, base := range baseline.tests {
		now, ran := here.tests[id]
		if !ran {
			continue // its module is looked at below
		}
		if worse(now, base) {
			differences = append(differences, difference{id, now, base})
		}
	}
	byTest := differences
	explained := func(module string) bool {
		return slices.ContainsFunc(byTest, func(d difference) bool { return strings.HasPrefix(d.id, "test."+module+".") })
	}
	for name, base := range baseline.modules {
		now, ran := here.modules[name]
		if !ran {
			now = failed
		}
		if worse(now, base) && !explained(name) {
			differences = append(differences, difference{name, now, base})
		}
	}
	slices.SortFunc(differences, func(a, b difference) int { return strings.Compare(a.id, b.id) })
	return differences
}

// worse says whether an outcome is worse than the baseline's: a skip where the
// baseline runs is one too.
func worse(here, baseline outcome) bool {
	return here != baseline && here != passed && !(here == skipped && baseline == failed)
}

// knownDifference is one line of the list of known differences.
type knownDifference struct {
	// pattern is a test's or module's id, with * as in path.Match.
	pattern string
	// flaky ones may pass: what they depend on is not ours to decide.
	flaky  bool
	reason string
}

// parseKnown reads the list: "ID reason…" or "~ID reason…" for flaky ones;
// lines that begin with # are comments.
func parseKnown(text string) ([]knownDifference, error) {
	var list []knownDifference
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("line %d: %q has no reason", i+1, line)
		}
		pattern, flaky := strings.CutPrefix(pattern, "~")
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("line %d: pattern %q: %w", i+1, pattern, err)
		}
		list = append(list, knownDifference{pattern, flaky, strings.TrimSpace(reason)})
	}
	return list, nil
}

// judge compares differences with the list: what is not on it, and what is on it
// and ran and yet is no difference any more.
func judge(differences []difference, known []knownDifference, here *suiteResult) (unknown []difference, stale []string) {
	matched := make(map[string]bool)
	for _, d := range differences {
		i := slices.IndexFunc(known, func(k knownDifference) bool { ok, _ := path.Match(k.pattern, d.id); return ok })
		if i < 0 {
			unknown = append(unknown, d)
			continue
		}
		matched[known[i].pattern] = true
	}
	for _, k := range known {
		ran := func(ids map[string]outcome) bool {
			for id := range ids {
				if ok, _ := path.Match(k.pattern, id); ok {
					return true
				}
			}
			return false
		}
		if !matched[k.pattern] && !k.flaky && (ran(here.tests) || ran(here.modules)) {
			stale = append(stale, k.pattern)
		}
	}
	return unknown, stale
}

// modulesOf returns the modules, each once, that differences and patterns of
// the known list belong to.
func modulesOf(differences []difference, patterns []string) []string {
	ids := slices.Clone(patterns)
	for _, d := range differences {
		ids = append(ids, d.id)
	}
	var modules []string
	for _, id := range ids {
		parts := strings.Split(strings.TrimPrefix(id, "test."), ".")
		module := parts[0]
		if len(parts) > 1 && packages[module] {
			module += "." + parts[1]
		}
		if !slices.Contains(modules, module) {
			modules = append(modules, module)
		}
	}
	slices.Sort(modules)
	return modules
}

// packages are the modules that the suite runs in parts.
var packages = map[string]bool{"test_asyncio": true}

// only is the part of r that ran in other as well.
func (r *suiteResult) only(other *suiteResult) *suiteResult {
	part := &suiteResult{modules: make(map[string]outcome), tests: make(map[string]outcome)}
	for name, o := range r.modules {
		if _, ran := other.modules[name]; ran {
			part.modules[name] = o
		}
	}
	for id, o := range r.tests {
		if _, ran := other.tests[id]; ran {
			part.tests[id] = o
		}
	}
	return part
}

// both returns the elements of a that are in b.
func both[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(e T) bool { return !slices.Contains(b, e) })
}

func TestModulesOf(t *testing.T) {
	got := modulesOf([]difference{{id: "test.test_os.FileTests.test_access"}, {id: "test_mmap"}, {id: "test.test_os.X.y"}},
		[]string{"test.test_asyncio.test_sock_lowlevel.*.test_x", "test.test_socket.Recvmsg*.test*"})
	want := []string{"test_asyncio.test_sock_lowlevel", "test_mmap", "test_os", "test_socket"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCompareAndJudge(t *testing.T) {
	here, err := parseSuite(`0:00:01 load avg: 0.5 [ 1/4] test_a passed
0:00:01 load avg: 0.5 [ 2/4/1] test_b failed (2 failures)
0:00:02 load avg: 0.5 [ 3/4/1] test_c crashed (Exit code -11)
0:00:02 load avg: 0.5 [ 4/4/1] test_d skipped (resource denied)
`, `<testsuites tests="5"><testsuite start="x">
<testcase name="test.test_a.T.test_1" status="run"/>
<testcase name="test.test_b.T.test_1"><failure>no</failure></testcase>
<testcase name="test.test_b.T.test_2"><error>no</error></testcase>
<testcase name="test.test_b.T.test_2"/>
<testcase name="test.test_b.T.test_3"><skipped>x</skipped></testcase>
</testsuite></testsuites>`)
	if err != nil {
		t.Fatal(err)
	}
	baseline := &suiteResult{
		modules: map[string]outcome{"test_a": passed, "test_b": passed, "test_c": passed, "test_d": skipped, "test_e": passed},
		tests: map[string]outcome{"test.test_a.T.test_1": passed, "test.test_b.T.test_1": passed,
			"test.test_b.T.test_2": passed, "test.test_b.T.test_3": passed},
	}
	differences := compare(here, baseline)
	var ids []string
	for _, d := range differences {
		ids = append(ids, d.id)
	}
	want := []string{"test.test_b.T.test_1", "test.test_b.T.test_2", "test.test_b.T.test_3", "test_c", "test_e"}
	if !slices.Equal(ids, want) {
		t.Errorf("differences %q, want %q", ids, want)
	}
	known, err := parseKnown("# comment\ntest.test_b.T.* for a reason\n~test_c sometimes\ntest.test_a.T.test_1 passes now\ntest_z not run\n")
	if err != nil {
		t.Fatal(err)
	}
	unknown, stale := judge(differences, known, here)
	if len(unknown) != 1 || unknown[0].id != "test_e" {
		t.Errorf("unknown %v, want test_e", unknown)
	}
	if !slices.Equal(stale, []string{"test.test_a.T.test_1"}) {
		t.Errorf("stale %q, want test_a's", stale)
	}
	if _, err := parseKnown("test_x"); err == nil {
		t.Error("an entry without a reason was accepted")
	}
	if names := slices.Sorted(maps.Keys(here.modules)); len(names) != 4 {
		t.Errorf("modules %q, want 4", names)
	}
}
