// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxFileLines is where a file has to be split: more than this is not read in
// one sitting.
const maxFileLines = 600

// licence is what every source file begins with, after its comment sign.
const licence = "SPDX-License-Identifier: Apache-2.0"

// skipped are folders without sources of ours.
var skipped = []string{".git", "bin", "dist", "testdata"}

// machinePaths are parts of paths that exist on one developer's machine only.
// They are spelled in pieces so that this file does not match itself.
var machinePaths = []string{
	"/" + "work/main", "/" + "work/shared", "/" + "work/.", ".." + "/shared", "." + "library/",
	"/root/" + "scratch", "/root/" + "spike", "/root/" + "go/", "/root/" + "main", "/root/" + ".cache",
}

// sourceFile is one text file of the tree.
type sourceFile struct {
	path string
	data []byte
}

// TestLicenceLine checks the first line (after "#!") of every source file.
func TestLicenceLine(t *testing.T) {
	for _, file := range sources(t) {
		if !hasLicenceLine(file) {
			t.Errorf("%s: the first line is not the comment %q", file.path, licence)
		}
	}
}

func hasLicenceLine(file sourceFile) bool {
	head := file.data
	if bytes.HasPrefix(head, []byte("#!")) {
		_, head, _ = bytes.Cut(head, []byte("\n"))
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	text, ok := strings.CutPrefix(string(line), "//")
	if !ok {
		text, ok = strings.CutPrefix(string(line), "#")
	}
	// Generated files begin as their generator has it.
	return ok && strings.TrimSpace(text) == licence || generated(file.data)
}

// TestFileLength checks that files stay readable; generated ones are nobody's
// reading.
func TestFileLength(t *testing.T) {
	for _, file := range sources(t) {
		if lines := bytes.Count(file.data, []byte("\n")); lines > maxFileLines && !generated(file.data) {
			t.Errorf("%s has %d lines, more than %d: split it by what is done", file.path, lines, maxFileLines)
		}
	}
}

// TestNoMachinePaths checks that nothing in the tree, documents included, names
// a path of the machine it was written on.
func TestNoMachinePaths(t *testing.T) {
	walk(t, func(path string, data []byte) {
		if bytes.IndexByte(data, 0) >= 0 {
			return // not text
		}
		for _, part := range machinePaths {
			if i := bytes.Index(data, []byte(part)); i >= 0 {
				t.Errorf("%s:%d: names %q, a path of one machine", path, 1+bytes.Count(data[:i], []byte("\n")), part)
			}
		}
	})
}

// restating is a package comment that says nothing.
var restating = regexp.MustCompile(`(?i)^package (\w+) (implements|provides|contains|is) (the |a |an )?(\w+)( package)?\.?$`)

// TestPackageComments checks that every package has exactly one package comment
// and that it says more than the package's name.
func TestPackageComments(t *testing.T) {
	type packageDoc struct {
		where    []string
		text     string
		onlyTest bool
	}
	docs := make(map[string]*packageDoc)
	for _, file := range sources(t) {
		if filepath.Ext(file.path) != ".go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.path, file.data, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		isTest := strings.HasSuffix(file.path, "_test.go")
		dir := filepath.Dir(file.path)
		doc := docs[dir]
		if doc == nil {
			doc = &packageDoc{onlyTest: true}
			docs[dir] = doc
		}
		doc.onlyTest = doc.onlyTest && isTest
		if parsed.Doc == nil || isTest && strings.HasSuffix(parsed.Name.Name, "_test") {
			continue
		}
		text := commentText(parsed.Doc)
		if text == "" || generated(file.data) && doc.text != "" {
			continue
		}
		if !generated(file.data) {
			doc.where = append(doc.where, file.path)
		}
		doc.text = text
	}
	for dir, doc := range docs {
		switch {
		case doc.text == "":
			t.Errorf("package %s has no package comment: say what it owns and what it never does", dir)
		case len(doc.where) > 1:
			t.Errorf("package %s has %d package comments, in %s: keep one", dir, len(doc.where), strings.Join(doc.where, " "))
		case restating.MatchString(strings.TrimSpace(doc.text)):
			t.Errorf("package %s: the comment %q only restates its name", dir, strings.TrimSpace(doc.text))
		}
	}
}

// commentText is the comment without build constraints and licence.
func commentText(group *ast.CommentGroup) string {
	text := strings.TrimSpace(group.Text())
	return strings.TrimSpace(strings.TrimPrefix(text, licence))
}

// sources returns the files that are ours to write: Go, protobuf, shell, make.
func sources(t *testing.T) []sourceFile {
	t.Helper()
	var files []sourceFile
	walk(t, func(path string, data []byte) {
		extension := filepath.Ext(path)
		isSource := slices.Contains([]string{".go", ".proto", ".sh", ".env", ".c", ".s"}, extension) || path == "Makefile" ||
			extension == "" && bytes.HasPrefix(data, []byte("#!"))
		if isSource {
			files = append(files, sourceFile{path: path, data: data})
		}
	})
	return files
}

// walk calls f with every file of the tree, by its path from the root.
func walk(t *testing.T, f func(path string, data []byte)) {
	t.Helper()
	root := moduleRoot(t)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if slices.Contains(skipped, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		case !entry.Type().IsRegular(), entry.Name() == ".git": // of a worktree
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(relative), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// generatedLine marks generated files, as "go help generate" has it.
var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func generated(data []byte) bool {
	return generatedLine.Match(data[:min(len(data), 4096)])
}
