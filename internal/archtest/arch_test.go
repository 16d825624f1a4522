// Package archtest keeps the architecture. It fails when an import points the wrong way,
// when pure code has effects, when a file is too long, when a name means nothing, or when a
// printed document is outdated.
//
// It parses the files itself and does not call the go tool: go test caches a result until a
// file that the test opened has changed, and does not see what a child process opens. It
// must not know what any package does. Its tests run against this repository, and against
// small sources that break each rule.
package archtest

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pagurus/decide/lifecycle"
)

var update = flag.Bool("update", false, "print docs/protocol.md and docs/imports.txt again")

const (
	module = "pagurus"
	root   = "../.."
)

// source is one parsed Go file.
type source struct {
	path  string // from the root of the repository
	file  *ast.File
	fset  *token.FileSet
	lines int
}

func (s source) dir() string { return path.Dir(s.path) }
func (s source) test() bool  { return strings.HasSuffix(s.path, "_test.go") }

func (s source) line(n ast.Node) int { return s.fset.Position(n.Pos()).Line }

// imports gives a file's imports.
func (s source) imports() []string {
	var out []string
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func parse(name string, src []byte) (source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, fmt.Errorf("parsing %s: %w", name, err)
	}
	return source{path: name, file: f, fset: fset, lines: bytes.Count(src, []byte("\n"))}, nil
}

// repository parses every Go file, in order of path.
func repository(t *testing.T) []source {
	t.Helper()
	var out []source
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && p != "." || d.Name() == "testdata" || d.Name() == "dist") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		src, err := fs.ReadFile(tree, p)
		if err != nil {
			return err
		}
		s, err := parse(p, src)
		if err == nil {
			out = append(out, s)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRules(t *testing.T) {
	excused := exceptions(t)
	all := repository(t)
	var found []breach
	for _, s := range all {
		found = append(found, checkFile(s)...)
		found = append(found, checkWords(s)...)
	}
	found = append(found, checkPackages(all)...)
	found = append(found, checkPackageSizes(all)...)
	used := map[string]bool{}
	for _, b := range found {
		if excused[b.key()] {
			used[b.key()] = true
			continue
		}
		t.Errorf("%s: %s: %s", b.where, b.rule, b.says)
	}
	for key := range excused {
		if !used[key] {
			t.Errorf("exceptions.txt excuses %q, which breaks no rule any more: remove the line", key)
		}
	}
}

// exceptions reads the allowed violations: lines with a rule, what breaks it, and the
// reason.
func exceptions(t *testing.T) map[string]bool {
	t.Helper()
	f, err := os.Open("exceptions.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]bool{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		words := strings.Fields(text)
		if len(words) < 4 {
			t.Errorf("exceptions.txt:%d: want a rule, what breaks it, and a reason", n)
			continue
		}
		out[words[0]+" "+words[1]] = true
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestProtocolIsPrinted(t *testing.T) { golden(t, "docs/protocol.md", lifecycle.Diagram()) }

func TestImportsArePrinted(t *testing.T) {
	golden(t, "docs/imports.txt", whoImportsWhat(repository(t)))
}

func golden(t *testing.T, name, want string) {
	t.Helper()
	file := path.Join(root, name)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what would be printed now; run: go test ./internal/archtest -update", name)
		for i, line := range strings.Split(want, "\n") {
			if old := strings.Split(string(got), "\n"); i >= len(old) || old[i] != line {
				t.Errorf("first difference, line %d: %q", i+1, line)
				break
			}
		}
	}
}

// whoImportsWhat lists each package's direct imports, without tests and the standard
// library.
func whoImportsWhat(all []source) string {
	byPackage := map[string][]string{}
	for _, s := range all {
		if s.test() {
			continue
		}
		list := byPackage[s.dir()]
		for _, imp := range s.imports() {
			if first, _, _ := strings.Cut(imp, "/"); first == module || strings.Contains(first, ".") {
				list = append(list, imp)
			}
		}
		byPackage[s.dir()] = list
	}
	var b strings.Builder
	b.WriteString("# Who imports what: each package's direct imports, without tests and the standard library.\n" +
		"# Printed by: go test ./internal/archtest -update\n")
	for _, dir := range sortedKeys(byPackage) {
		fmt.Fprintf(&b, "\n%s\n", dir)
		list := byPackage[dir]
		slices.SortFunc(list, func(a, b string) int {
			ours := func(p string) int {
				if under(p, module) {
					return 0
				}
				return 1
			}
			if d := ours(a) - ours(b); d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		for _, imp := range slices.Compact(list) {
			fmt.Fprintf(&b, "\t%s\n", imp)
		}
	}
	return b.String()
}
