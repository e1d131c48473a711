// SPDX-License-Identifier: Apache-2.0

// Package structure holds the tests of the source tree itself: who may import
// whom, that every package says what it owns, that files carry their licence
// line and stay readable in length. It owns no product code and runs without
// building any: it reads the tree and asks "go list".
package structure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goPackage is what "go list" tells of a package.
type goPackage struct {
	ImportPath string
	Imports    []string
}

// platforms are those whose import graphs are looked at: build tags hide
// imports from the others.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/arm64", "windows/amd64"}

// TestImportRules checks the table of rules and the direction of layers.
func TestImportRules(t *testing.T) {
	graph := loadGraph(t)
	for pkg, imports := range graph {
		for i := range rules {
			r := &rules[i]
			if !r.binds(pkg) {
				continue
			}
			for path, via := range reach(graph, pkg, imports, r.transitive) {
				if r.forbids(path) {
					t.Errorf("%s imports %s%s\n\tbut %s", pkg, path, via, r.why)
				}
			}
		}
		for path := range imports {
			relative, own := relativePath(path)
			if from, to := layerOf(pkg), layerOf(relative); own && from >= 0 && to > from {
				t.Errorf("%s imports %s, which is in a higher layer: see the table in rules_test.go", pkg, relative)
			}
		}
	}
}

// TestRulesMatchSomething keeps the table honest: a rule about a package that
// is neither there nor planned checks nothing.
func TestRulesMatchSomething(t *testing.T) {
	r := rule{who: []string{"oci/..."}, except: []string{"oci/erofs/sentryfs/..."}, never: []string{"./runtime/cli/...", "net/http", "github.com/x/..."}}
	for pkg, want := range map[string]bool{"oci": true, "oci/image": true, "ocix": false, "oci/erofs/sentryfs": false, "runtime": false} {
		if r.binds(pkg) != want {
			t.Errorf("binds(%q) = %v, want %v", pkg, !want, want)
		}
	}
	for path, want := range map[string]bool{
		module + "/runtime/cli": true, module + "/runtime/cli/x": true, module + "/runtime/client": false,
		"net/http": true, "net/http/httptest": false, "github.com/x/y": true, "github.com/xy": false,
	} {
		if r.forbids(path) != want {
			t.Errorf("forbids(%q) = %v, want %v", path, !want, want)
		}
	}
}

// reach returns the imports of a package, and with transitive set those of the
// module's packages below it too, each with the way that leads there.
func reach(graph map[string]map[string]bool, pkg string, imports map[string]bool, transitive bool) map[string]string {
	reached := make(map[string]string)
	for path := range imports {
		reached[path] = ""
	}
	if !transitive {
		return reached
	}
	queue := []string{pkg}
	seen := map[string]string{pkg: ""}
	for len(queue) > 0 {
		from := queue[0]
		queue = queue[1:]
		for path := range graph[from] {
			if _, ok := reached[path]; !ok {
				reached[path] = seen[from]
			}
			relative, own := relativePath(path)
			if _, ok := seen[relative]; own && !ok {
				seen[relative] = fmt.Sprintf(" (by way of %s)", relative)
				queue = append(queue, relative)
			}
		}
	}
	return reached
}

// loadGraph returns the direct imports of every package of the module, united
// over the platforms. Test files are not part of it: tests import what they
// like.
func loadGraph(t *testing.T) map[string]map[string]bool {
	t.Helper()
	graph := make(map[string]map[string]bool)
	for _, platform := range platforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		list := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", "./...")
		list.Dir = moduleRoot(t)
		list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
		var stderr bytes.Buffer
		list.Stderr = &stderr
		output, err := list.Output()
		if err != nil {
			t.Fatalf("go list for %s: %v\n%s", platform, err, stderr.Bytes())
		}
		decoder := json.NewDecoder(bytes.NewReader(output))
		for {
			var pkg goPackage
			if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("go list for %s: decode: %v", platform, err)
			}
			relative, _ := relativePath(pkg.ImportPath)
			if graph[relative] == nil {
				graph[relative] = make(map[string]bool)
			}
			for _, path := range pkg.Imports {
				graph[relative][path] = true
			}
		}
	}
	if len(graph) < 2 {
		t.Fatalf("go list found %d packages: it looked in the wrong place", len(graph))
	}
	return graph
}

// topLevel is what the module's root may hold besides files: the layout is
// agreed with its users, and a new root folder is a change of that agreement.
var topLevel = []string{".ci", ".git", "bin", "cmd", "dist", "ext4lite", "install", "integration", "oci", "pkg", "runtime", "shim"}

// TestTopLevel checks the root's folders.
func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.IsDir() && !slices.Contains(topLevel, entry.Name()) {
			t.Errorf("folder %s at the module's root: the layout has only %s", entry.Name(), strings.Join(topLevel, " "))
		}
	}
}

// moduleRoot returns the folder of go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test's directory")
		}
	}
}
