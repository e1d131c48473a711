// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// clientTimeout bounds containerd's own tests with one runtime.
const clientTimeout = 30 * time.Minute

// clientRegistries are where the tests' images come from: they pull by their own
// code, which knows neither mirrors nor other names.
var clientRegistries = []string{"ghcr.io", "registry.k8s.io"}

// clientTasks are the tests, by words of their names, that a runtime has a part in.
const clientTasks = "^Test(Container|Task|Wait|Process|Kill|Delete|Daemon|Shim|Short|Regression|Issue|User|UID|Bind|Restart)"

// hangs begins the reason of a test that does not end: it is left out.
const hangs = "hangs: "

// clientSlow are tests of minutes, for the nightly run: a hundred large outputs on
// terminals, and what is restarted when a monitor looks.
var clientSlow = []string{"TestContainerExecLargeOutputWithTTY", "TestRestartMonitor", "TestContainerRestartPolicyAlways"}

// clientHangsWithRunc are tests that do not end with runc here: Debian's nc as process 1
// has no handler for the SIGTERM that is to end it.
var clientHangsWithRunc = []string{"TestBindLowPortNonOpt"}

// TestContainerdsOwn runs the integration tests of containerd's client, as containerd
// runs them, with gvx: they have a daemon of their own, which they also restart. The
// same tests with runc, nightly, say what the place makes fail. What fails with gvx is
// known, with its reason, and what is known fails.
func TestContainerdsOwn(t *testing.T) {
	testbed.NeedRoot(t, "containerd")
	suite := newClientSuite(t)
	known := testbed.KnownFailures(t, filepath.Join("testdata", "client_known.txt"))
	var without []string
	for test, reason := range known {
		if strings.HasPrefix(reason, hangs) {
			without = append(without, test)
		}
	}
	if !testbed.Nightly() {
		without = append(without, clientSlow...)
	}
	outcomes := suite.run(testbed.Runtime, without...)
	peer := map[string]string{}
	if testbed.Nightly() {
		peer = suite.run("io.containerd.runc.v2", slices.Concat(without, clientHangsWithRunc)...)
	}
	count := map[string]int{}
	for test, outcome := range outcomes {
		count[outcome]++
		if outcome == "FAIL" && known[test] == "" {
			t.Errorf("failed: %s (runc: %s)", test, peer[test])
		}
	}
	peers := map[string]int{}
	for _, outcome := range peer {
		peers[outcome]++
	}
	t.Logf("gvx: %v; runc: %v", count, peers)
	if count["PASS"] == 0 {
		t.Error("no test has passed")
	}
	for test, reason := range known {
		if outcomes[test] == "PASS" {
			t.Errorf("passes now, take it out of testdata/client_known.txt: %s (%s)", test, reason)
		}
	}
	if testbed.Nightly() {
		testbed.Record(t, "containerd's own tests of its client", fmt.Sprintf("gvx: %d passed, %d failed, %d skipped. runc, in the same place: %d, %d, %d.",
			count["PASS"], count["FAIL"], count["SKIP"], peers["PASS"], peers["FAIL"], peers["SKIP"]))
	}
}

// clientSuite is what the tests find: programs, registries, names.
type clientSuite struct {
	*testing.T
	program string
	env     []string
}

func newClientSuite(t *testing.T) *clientSuite {
	t.Helper()
	for _, left := range []string{"/var/lib/containerd-test", "/run/containerd-test"} {
		t.Cleanup(func() { _ = os.RemoveAll(left) }) // the tests' own, if they were ended
	}
	t.Cleanup(newCgroups(t))
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{testbed.ShimName: shim.Get(t), "runc": testbed.Need(t, "runc")} {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := &clientSuite{T: t, program: testbed.Need(t, "containerd-tests")}
	s.env = append(os.Environ(), "PATH="+strings.Join([]string{bin, testbed.Need(t, "containerd"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, ":"),
		"SSL_CERT_FILE="+s.serveAsOthers(dir), "GVX_ROOT="+filepath.Join(dir, "gvx"), "OTEL_TRACES_EXPORTER=none", "TMPDIR="+dir)
	return s
}

// newCgroups returns what removes the groups at the top that have come since, which
// runtimes make for the namespaces of the tests' containers and leave, and what is below
// them: processes in one would keep it.
func newCgroups(t *testing.T) (remove func()) {
	t.Helper()
	groups := func() []string {
		tops, err := filepath.Glob("/sys/fs/cgroup/*/*/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		return tops
	}
	before := groups()
	return func() {
		for _, procs := range groups() {
			if slices.Contains(before, procs) {
				continue
			}
			var dirs []string
			_ = filepath.WalkDir(filepath.Dir(procs), func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for _, dir := range slices.Backward(dirs) {
				err := unix.Rmdir(dir)
				if errors.Is(err, unix.ENOTEMPTY) {
					err = os.RemoveAll(dir) // made where a controller is not mounted
				}
				if err != nil {
					t.Errorf("a cgroup is left: %s: %v", dir, err)
				}
			}
		}
	}
}

// serveAsOthers has a registry serve as those of the tests' images, in this
// namespace, and returns the certificate that it is to be believed by.
func (s *clientSuite) serveAsOthers(dir string) (certificate string) {
	s.Helper()
	hosts := filepath.Join(dir, "hosts")
	s.write(hosts, "127.0.0.1 localhost "+strings.Join(clientRegistries, " ")+"\n")
	// The mount is the tests' own, as their network is.
	if err := unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = unix.Unmount("/etc/hosts", unix.MNT_DETACH) })

	certificate, key := filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	trusted := s.makeCertificate(certificate, key)
	startRegistry(s.T, fmt.Sprintf("{addr: '127.0.0.1:443', tls: {certificate: %s, key: %s}}", certificate, key))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	s.Cleanup(transport.CloseIdleConnections)
	await(s.T, "the registry", func() bool {
		r, err := (&http.Client{Transport: transport}).Get("https://" + clientRegistries[0] + "/v2/")
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
	base, users := busyboxLayer(s.T), layerOf(s.T, [2]string{"etc/passwd", clientUsers})
	shell := func(c *v1.Config) { c.Cmd = []string{"sh"} }
	mark := func(path, text string) []byte { return layerOf(s.T, [2]string{path, text}) }
	for _, i := range []struct {
		name   string
		layers [][]byte
		config func(*v1.Config)
	}{
		{"ghcr.io/containerd/busybox:1.36", [][]byte{base, users}, shell},
		{"ghcr.io/containerd/volume-copy-up:2.2", [][]byte{base, mark("test_dir/", ""), mark("test_dir/test_file", "test_content\n")}, shell},
		{"ghcr.io/containerd/volume-ownership:2.1", [][]byte{base, bashLayer(s.T)}, shell},
		{"ghcr.io/containerd/alpine:3.14.0", [][]byte{base, mark("etc/mark", "alpine\n")}, shell},
		{"registry.k8s.io/pause:3.10.2", [][]byte{layerOf(s.T, [2]string{"pause", string(testbed.PauseProgram(s.T))})}, func(c *v1.Config) { c.Entrypoint = []string{"/pause"} }},
	} {
		image := testbed.WithConfig(s.T, testbed.NewImage(s.T, i.layers...), func(c *v1.Config) {
			c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
			i.config(c)
		})
		ref, err := name.ParseReference(i.name)
		if err == nil {
			err = remote.Write(ref, image, remote.WithTransport(transport))
		}
		if err != nil {
			s.Fatalf("push %s: %v", i.name, err)
		}
	}
	return certificate
}

// clientUsers are those that the tests know of the image that they pull.
const clientUsers = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nbin:x:2:2:bin:/bin:/bin/false\nsys:x:3:3:sys:/dev:/bin/false\n" +
	"www-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n"

// bashLayer is what the tests of user namespaces want besides: bash, and a set-user-ID
// program.
func bashLayer(t *testing.T) []byte {
	t.Helper()
	bash := testbed.NeedCommand(t, "bash")
	entries := [][2]string{{"bin/bash", hostFile(bash)}, {"usr/bin/passwd", "#!/bin/sh\n"}}
	linked, err := exec.Command("ldd", bash).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", bash, err)
	}
	for word := range strings.FieldsSeq(string(linked)) {
		if strings.HasPrefix(word, "/") {
			entries = append(entries, [2]string{strings.TrimPrefix(word, "/"), hostFile(word)})
		}
	}
	return layerOf(t, entries...)
}

// makeCertificate makes one for all the registries, signed by itself.
func (s *clientSuite) makeCertificate(certificate, key string) *x509.CertPool {
	s.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: clientRegistries, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		s.Fatal(err)
	}
	privateDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		s.Fatal(err)
	}
	s.write(certificate, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	s.write(key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: privateDER})))
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return trusted
}

func (s *clientSuite) write(path, text string) {
	s.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// outcomeLine is a line about a whole test, not a part of one.
var outcomeLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) `)

// run runs the tests with a runtime, but for those named, and returns PASS, FAIL or
// SKIP for each.
func (s *clientSuite) run(runtime string, without ...string) map[string]string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), clientTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, "-test.v", "-test.root", "-no-criu", "-test.run", clientTasks, "-test.timeout", clientTimeout.String())
	if len(without) > 0 {
		cmd.Args = append(cmd.Args, "-test.skip", "^("+strings.Join(without, "|")+")$")
	}
	cmd.Env = append(slices.Clone(s.env), "TEST_RUNTIME="+runtime)
	if runtime == testbed.Runtime {
		cmd.Env = append(cmd.Env, "RUNC_FLAVOR=gvx") // not for tests of runc's own options
	}
	cmd.Dir = s.TempDir()
	output, err := cmd.CombinedOutput()
	outcomes := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(string(output)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := outcomeLine.FindStringSubmatch(lines.Text()); m != nil {
			outcomes[m[2]] = m[1]
		}
	}
	if len(outcomes) == 0 || ctx.Err() != nil {
		s.Fatalf("containerd's tests with %s: %v\n%s", runtime, err, output[max(0, len(output)-20000):])
	}
	if err != nil {
		s.Logf("containerd's tests with %s: %v\n%s", runtime, err, output)
	}
	return outcomes
}
