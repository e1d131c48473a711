// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// critestTimeout bounds the whole suite.
const critestTimeout = 40 * time.Minute

// critest runs the suite with a handler, logs what has failed and why, and returns how
// many tests have passed and the names of those that have not.
func critest(t *testing.T, c *testbed.Containerd, handler string, args ...string) (passed int, failed []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), critestTimeout)
	defer cancel()
	report := filepath.Join(t.TempDir(), "report.xml")
	endpoint := "unix://" + c.Socket
	cmd := exec.CommandContext(ctx, filepath.Join(testbed.Need(t, "cri-tools"), "critest"), append([]string{
		"-runtime-endpoint", endpoint, "-image-endpoint", endpoint, "-runtime-handler", handler, "-ginkgo.junit-report", report, "-ginkgo.no-color",
	}, args...)...)
	output, err := cmd.CombinedOutput()
	// A test that fails may leave its pods.
	c.Crictl(t, "rmp", "--all", "--force")
	data, readErr := os.ReadFile(report)
	if readErr != nil {
		t.Fatalf("critest: %v: %v\n%s", err, readErr, output)
	}
	var doc struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Status  string `xml:"status,attr"`
				Failure struct {
					Text string `xml:",chardata"`
				} `xml:"failure"`
				Steps string `xml:"system-err"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &doc); err != nil {
		t.Fatalf("read %s: %v", report, err)
	}
	for _, suite := range doc.Suites {
		for _, c := range suite.Cases {
			switch {
			case !strings.HasPrefix(c.Name, "[It] "):
			case c.Status == "passed":
				passed++
			case c.Status != "skipped" && c.Status != "pending":
				name := strings.TrimPrefix(c.Name, "[It] ")
				failed = append(failed, name)
				t.Logf("critest with %s: %s: %s\n%s", handler, name, c.Failure.Text, c.Steps)
			}
		}
	}
	slices.Sort(failed)
	return passed, failed
}

// repeatAtTheEnd returns a list whose names are logged behind the logs of daemons, where
// who reads a failed run's last page sees them. Call it before anything else that logs
// when the test ends.
func repeatAtTheEnd(t *testing.T) (list *[]string) {
	list = new([]string)
	t.Cleanup(func() {
		if len(*list) > 0 {
			t.Logf("not known to fail: %q", *list)
		}
	})
	return list
}

// compareFailures wants what fails to be known and, in a whole run, what is known to
// fail. What is not known is added to a list.
func compareFailures(t *testing.T, passed int, failed []string, unknown *[]string) {
	t.Helper()
	known := testbed.KnownFailures(t, filepath.Join("testdata", "critest_known.txt"))
	t.Logf("gvx: %d passed, %d failed", passed, len(failed))
	if passed == 0 {
		t.Error("no test has passed")
	}
	for _, name := range failed {
		if known[name] == "" {
			t.Errorf("failed: %s", name)
			*unknown = append(*unknown, name)
		}
	}
	if !testbed.Nightly() {
		return
	}
	for name := range known {
		if !slices.Contains(failed, name) {
			t.Errorf("passes now, take it out of testdata/critest_known.txt: %s", name)
		}
	}
}

// quick is the part of the suite that every run has, by words of its names: what
// containers are asked for most, and where runtimes differ.
const quick = "execSync|exec with|attach|basic operations|seccomp|NoNewPrivs|RunAsUser|SupplementalGroups|ReadonlyRootfs|volume|OOMKilled|Privileged is true|adding capability|host network"

// TestCritest runs Kubernetes' suite for container runtimes with gvx, where pods may
// ask for the host's network, which the suite does: a part of it,
// or nightly the whole, with runc's score beside it. What fails is known, with its
// reason, and what is known fails.
func TestCritest(t *testing.T) {
	unknown := repeatAtTheEnd(t)
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.HostNetworkHandlers()})
	serveRegistry(t, c)
	pushImages(t)
	c.CRIPause(t, "erofs")
	var args []string
	if !testbed.Nightly() {
		args = []string{"-ginkgo.focus", quick}
	}
	passed, failed := critest(t, c, "gvx-host", args...)
	compareFailures(t, passed, failed, unknown)
	if !testbed.Nightly() {
		return
	}
	c.CRIPause(t, "overlayfs")
	runcPassed, runcFailed := critest(t, c, "runc")
	t.Logf("runc: %d passed, %d failed: %q", runcPassed, len(runcFailed), runcFailed)
	testbed.Record(t, "critest", fmt.Sprintf("gvx: %d passed, %d failed. runc, in the same place: %d passed, %d failed.", passed, len(failed), runcPassed, len(runcFailed)))
}

// TestCritestSandboxAPI is the whole suite with pods that have no pause container. The
// same tests fail.
func TestCritestSandboxAPI(t *testing.T) {
	if !testbed.Nightly() {
		t.Skip("as long as the whole of TestCritest: nightly")
	}
	unknown := repeatAtTheEnd(t)
	c := newSandboxer(t)
	serveRegistry(t, c)
	pushImages(t)
	passed, failed := critest(t, c, "gvx-host-sandbox")
	compareFailures(t, passed, failed, unknown)
	testbed.Record(t, "critest, pods without a pause container", fmt.Sprintf("gvx: %d passed, %d failed.", passed, len(failed)))
}
