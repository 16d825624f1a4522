package archtest

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
)

// breach is one violation of a rule.
type breach struct {
	rule  string
	where string // for people
	what  string // for exceptions.txt: a package, a file or a package's name.
	says  string
}

func (b breach) key() string { return b.rule + " " + b.what }

// may lists what each folder may import from this module; the longest matching folder
// counts. It is the architecture; docs/architecture.md only explains it. A package may
// always import packages inside itself.
var may = map[string][]string{
	"fleet":                  {},
	"decide":                 {"fleet", "decide"},
	"act":                    {"fleet", "act/host", "internal/fault", "internal/note", "internal/pause", "internal/thread"},                  // but not siblings
	"act/container":          {"fleet", "act/host", "internal/fault", "internal/note", "internal/pause", "internal/thread", "act/container"}, // its parts may import each other
	"serve":                  {"fleet", "decide", "serve", "internal/fault", "internal/note", "internal/pause"},
	"serve/agent/drivertest": {"fleet", "serve/agent", "internal/testkit", "act/freemem", "act/xen/line"}, // the last two for its witness
	"sim":                    {"fleet", "decide", "sim", "bench/stats", "internal/note"},
	"bench":                  {"fleet", "serve/wire", "bench", "internal/note", "internal/pause"},
	"show":                   {"fleet", "serve/wire", "show", "internal/pause"},
	"cmd":                    {"fleet", "decide", "act", "serve", "sim", "bench", "show", "internal/chromium", "internal/fault", "internal/note", "internal/pause", "internal/thread", shared},
	"cmd/pagurus-guest":      {"fleet", "act/freemem", "act/guestlink", "act/guestnet", "act/host/written", "act/libpagurus", "act/numa", "act/ranks", "act/xen/line", "internal/note"},
	"internal":               {"fleet"},
	"internal/testkit":       {"fleet", "internal/chromium"},
	"internal/testkit/ours":  {"internal/testkit"},
}

// never lists imports that a folder must not have, each with its reason.
var never = map[string]map[string]string{
	"fleet":             impure,
	"decide":            impure,
	"sim":               {"pagurus/decide/cost": "a simulator that shares the predictor proves nothing"},
	"cmd/pagurus-guest": {"net/http": "the guest agent stays tiny"},
	"cmd/pagurus":       drivers,
}

// impure is what pure code must not import, including everything below, except harmless.
var impure = map[string]string{
	"os": "pure code touches nothing", "net": "pure code touches nothing", "io": "pure code touches nothing",
	"syscall": "pure code touches nothing", "context": "pure code does not wait", "sync": "pure code has no goroutines",
	"math/rand": "take a seeded source as an argument", "crypto/rand": "take a seeded source as an argument",
	"log": "return what happened instead",
}

// drivers are for the agent's program, and the client leaves what needs them to it.
var drivers = map[string]string{
	"pagurus/act/qemu": "the client has no drivers", "pagurus/act/container": "the client has no drivers",
	"pagurus/act/xen": "the client has no drivers", "pagurus/act/overlay": "the client has no drivers", "pagurus/act/share": "the client has no drivers",
	"pagurus/act/wireguard": "the client has no drivers",
}

var harmless = []string{"net/netip"}

// The sizes that no part may exceed.
const (
	mostPackageLines  = 4000 // without tests; then it is likely two
	leastPackageLines = 300  // without tests, of a package with one importer: it is likely a file of that one
	mostFileLines     = 500
	mostTestLines     = 800
	mostFunctionLines = 70
	mostMethods       = 7
	mostParameters    = 5
)

// owned are the fields that hold a thing's state.
var owned = []string{"Phase", "State", "Home", "Gen"}

// clock is every function of package time that uses the clock.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// hollow are words that say nothing about a purpose.
var hollow = []string{"manager", "handler", "helper", "helpers", "util", "utils", "base", "impl", "data", "info"}

// vague are names of folders that collect everything.
var vague = []string{"pkg", "common", "util", "utils", "types", "manager", "helpers", "helper", "misc"}

// checkFile gives one file's violations.
func checkFile(s source) []breach {
	var out []breach
	add := func(rule, what string, n ast.Node, format string, args ...any) {
		where := s.path
		if n != nil {
			where = fmt.Sprintf("%s:%d", s.path, s.line(n))
		}
		out = append(out, breach{rule, where, what, fmt.Sprintf(format, args...)})
	}
	limit := mostFileLines
	if s.test() {
		limit = mostTestLines
	}
	if s.lines > limit {
		add("file", s.path, nil, "%d lines, at most %d", s.lines, limit)
	}
	for _, imp := range s.imports() {
		if why := checkImport(s.dir(), imp, s.test()); why != "" {
			add("import", s.dir()+":"+imp, nil, "must not import %s%s", imp, why)
		}
	}
	if s.test() {
		return out
	}
	checkSizes(s, add)
	checkNames(s, add)
	checkComments(s, add)
	if under(s.dir(), "decide") || under(s.dir(), "fleet") {
		forbidWorld(s, add)
	}
	if s.dir() != "decide/lifecycle" {
		forbidStateChange(s, add)
	}
	if !slices.ContainsFunc(knowKinds, func(folder string) bool { return under(s.path, folder) }) {
		forbidKinds(s, add)
	}
	return out
}

type report func(rule, what string, n ast.Node, format string, args ...any)

// shared is not a command, but common code of two commands.
const shared = "cmd/roles"

// checkImport says why a package must not import another; empty if it may.
func checkImport(from, imp string, test bool) string {
	in, ours := strings.CutPrefix(imp, module+"/")
	if ours && under(in, "cmd") && in != shared && !(under(in, from) && in != from) {
		return ": nothing imports a command"
	}
	if test {
		return ""
	}
	for folder, bad := range never {
		for p, why := range bad {
			if under(from, folder) && under(imp, p) && !slices.Contains(harmless, imp) {
				return ": " + why
			}
		}
	}
	if (under(from, "fleet") || under(from, "decide")) && !ours && strings.Contains(strings.Split(imp, "/")[0], ".") {
		return ": the standard library is enough for thinking"
	}
	if !ours || under(in, from) {
		return ""
	}
	folder := ""
	for f := range may {
		if under(from, f) && len(f) > len(folder) {
			folder = f
		}
	}
	for _, allowed := range may[folder] {
		if under(in, allowed) {
			return ""
		}
	}
	return fmt.Sprintf(": %s may import only %v", cmp.Or(folder, "the root"), may[folder])
}

func checkSizes(s source, add report) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			what := s.dir() + ":" + n.Name.Name
			if lines := s.fset.Position(n.End()).Line - s.line(n) + 1; lines > mostFunctionLines {
				add("function", what, n, "%s has %d lines, at most %d", n.Name.Name, lines, mostFunctionLines)
			}
			if count := n.Type.Params.NumFields(); count > mostParameters {
				add("parameters", what, n, "%s has %d parameters, at most %d", n.Name.Name, count, mostParameters)
			}
		case *ast.TypeSpec:
			if i, ok := n.Type.(*ast.InterfaceType); ok && i.Methods.NumFields() > mostMethods {
				add("interface", s.dir()+":"+n.Name.Name, n, "%s has %d methods, at most %d", n.Name.Name, i.Methods.NumFields(), mostMethods)
			}
		}
		return true
	})
}

// checkNames forbids meaningless names in a file's top-level declarations.
func checkNames(s source, add report) {
	name := func(id *ast.Ident) {
		for _, w := range words(id.Name) {
			if slices.Contains(hollow, w) {
				add("name", s.dir()+":"+id.Name, id, "%s: %q says nothing of what it is for", id.Name, w)
			}
		}
	}
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name(d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					name(spec.Name)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						name(id)
					}
				}
			}
		}
	}
	for _, folder := range strings.Split(s.dir(), "/") {
		if slices.Contains(vague, folder) {
			add("name", s.dir(), nil, "a folder named %q gathers what belongs elsewhere", folder)
		}
	}
}

// checkComments requires a comment on every exported name; one on a group of constants or
// variables counts for the group.
func checkComments(s source, add report) {
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil {
				add("comment", s.dir()+":"+d.Name.Name, d, "%s is exported and has no comment", d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil {
						add("comment", s.dir()+":"+spec.Name.Name, spec, "%s is exported and has no comment", spec.Name.Name)
					}
				case *ast.ValueSpec:
					if d.Doc == nil && spec.Doc == nil && spec.Comment == nil && slices.ContainsFunc(spec.Names, (*ast.Ident).IsExported) {
						add("comment", s.dir()+":"+spec.Names[0].Name, spec, "%s is exported and has no comment", spec.Names[0].Name)
					}
				}
			}
		}
	}
}

// exportedReceiver reports whether a function is not a method of an unexported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	receiver := d.Recv.List[0].Type
	for {
		switch t := receiver.(type) {
		case *ast.StarExpr:
			receiver = t.X
		case *ast.ParenExpr:
			receiver = t.X
		case *ast.IndexExpr:
			receiver = t.X
		case *ast.IndexListExpr:
			receiver = t.X
		case *ast.Ident:
			return t.IsExported()
		default:
			return true
		}
	}
}

// forbidWorld reports every use of the clock and of goroutines. Pure code gets the time as
// an argument and is sequential.
func forbidWorld(s source, add report) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
				add("pure", s.path, n, "time.%s: take the time as an argument", n.Sel.Name)
			}
		case *ast.GoStmt:
			add("pure", s.path, n, "pure code starts no goroutine")
		}
		return true
	})
}

// forbidStateChange keeps each state machine in one place. Composite literals do not count
// as assignments: they make something new.
func forbidStateChange(s source, add report) {
	assigned := func(e ast.Expr) {
		if sel, ok := e.(*ast.SelectorExpr); ok && slices.Contains(owned, sel.Sel.Name) {
			add("state", s.dir()+":"+sel.Sel.Name, sel, "assigns .%s: only package lifecycle may", sel.Sel.Name)
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				assigned(left)
			}
		case *ast.IncDecStmt:
			assigned(n.X)
		case *ast.UnaryExpr:
			if n.Op.String() == "&" {
				assigned(n.X)
			}
		}
		return true
	})
}

// knowKinds are the folders and files that may tell kinds of guest apart: the table of their
// traits, drivers, and what opens the drivers.
var knowKinds = []string{"fleet", "act/qemu", "act/container", "cmd/pagurus-agent/host.go"}

// forbidKinds reports comparisons of a kind of guest, and maps that are asked for one. A kind's
// abilities are data, in fleet.Kinds and in a host's facts.
func forbidKinds(s source, add report) {
	isKind := func(e ast.Expr) bool {
		sel, ok := e.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		return ok && x.Name == "fleet" && (sel.Sel.Name == "VM" || sel.Sel.Name == "Container")
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if (n.Op == token.EQL || n.Op == token.NEQ) && (isKind(n.X) || isKind(n.Y)) {
				add("kind", s.path, n, "compares a kind of guest: ask fleet.KindTraits")
			}
		case *ast.CaseClause:
			if slices.ContainsFunc(n.List, isKind) {
				add("kind", s.path, n, "has a case for a kind of guest: ask fleet.KindTraits")
			}
		case *ast.IndexExpr:
			if isKind(n.Index) {
				add("kind", s.path, n, "asks a map for one kind of guest: ask for the guest's own kind, or for those with a trait")
			}
		}
		return true
	})
}

// checkPackages gives violations by whole packages.
func checkPackages(all []source) []breach {
	documented, example := map[string]bool{}, map[string]string{}
	for _, s := range all {
		example[s.dir()] = s.path
		if s.file.Doc != nil {
			documented[s.dir()] = true
		}
	}
	var out []breach
	named := map[string]string{} // the folder of each package name
	for _, dir := range sortedKeys(example) {
		if first := named[path.Base(dir)]; first != "" {
			out = append(out, breach{"name", example[dir], dir, "there is another package of this name: " + first})
		}
		named[path.Base(dir)] = dir
		if !documented[dir] {
			out = append(out, breach{"comment", example[dir], dir, "package " + path.Base(dir) + " has no comment"})
		}
	}
	return out
}

// checkPackageSizes reports packages that are too large for one, and those that are so small, with
// one importer, that they may be a file of it.
func checkPackageSizes(all []source) []breach {
	lines, importers := map[string]int{}, map[string]map[string]bool{}
	for _, s := range all {
		if s.test() {
			continue
		}
		lines[s.dir()] += s.lines
		for _, imp := range s.imports() {
			if in, ours := strings.CutPrefix(imp, module+"/"); ours {
				if importers[in] == nil {
					importers[in] = map[string]bool{}
				}
				importers[in][s.dir()] = true
			}
		}
	}
	var out []breach
	for _, dir := range sortedKeys(lines) {
		switch n := lines[dir]; {
		case n > mostPackageLines:
			out = append(out, breach{"large", dir, dir, fmt.Sprintf("%d lines, at most %d: two packages, or a reason in exceptions.txt", n, mostPackageLines)})
		case n < leastPackageLines && len(importers[dir]) == 1:
			by := sortedKeys(importers[dir])[0]
			out = append(out, breach{"small", dir, dir, fmt.Sprintf("%d lines, and only %s imports it: a file of that package, or a reason in exceptions.txt", n, by)})
		}
	}
	return out
}

// words splits a Go name: "guestInfo2" gives guest, info.
func words(name string) []string {
	var out []string
	start, runes := 0, []rune(name)
	cut := func(end int) {
		if end > start {
			out = append(out, strings.ToLower(string(runes[start:end])))
		}
		start = end
	}
	for i, r := range runes {
		switch {
		case r == '_' || unicode.IsDigit(r):
			cut(i)
			start = i + 1
		case unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			cut(i)
		}
	}
	cut(len(runes))
	return out
}

func under(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
