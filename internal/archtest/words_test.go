package archtest

import (
	"cmp"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// replaced are words that the glossary's words have replaced, or that stood for one of its
// things in a second way. Only those are here that have no other use: a plug, a page or a
// seat may also be what everybody calls so.
var replaced = map[string]string{
	"vanished": "unknown", "stranded": "lost", "repoint": "activate", "repointing": "activating",
	"gathering": "post-copy", "gatherer": "post-copier", "withdrawing": "cancelling", "lookout": "presence monitor",
	"calm": "longest-idle", "lore": "history", "deed": "action", "deeds": "actions", "court": "checker",
	"scene": "case", "scenes": "cases", "judgement": "verdict", "judgements": "verdicts",
	"shelf": "binary cache, or snapshots", "gauge": "dirty-rate sampler", "atlas": "desired state", "ledger": "state index, or order journal",
	"haul": "transfer", "door": "listener", "grip": "uffd holder", "keeper": "page proxy", "lender": "page server", "creditor": "page client",
	"paused": "suspended", "amid": "within", "owed": "lazy", "debt": "remaining, or lazy, pages", "lighten": "page-cache drop",
}

// bare are verbs that say nothing as the whole name of a function or method: settleJob, not settle.
var bare = []string{"look", "take", "settle", "begin", "follow", "hold", "keep", "note"}

// shortForm is a command that messages and documents write with its noun and verb:
// pagurus job ls. Users may type either.
var shortForm = regexp.MustCompile(`pagurus (jobs|guests|hosts|moves|images|users|tokens|policies)\b`)

// checkWords forbids replaced words in a file's path, its names, texts and comments, and
// bare verbs as names of functions.
func checkWords(s source) []breach {
	if under(s.dir(), "internal/archtest") {
		return nil
	}
	var out []breach
	find := func(at token.Pos, in []string) {
		for _, w := range in {
			if now := replaced[w]; now != "" {
				where := s.path
				if at.IsValid() {
					where = s.fset.Position(at).String()
				}
				out = append(out, breach{"word", where, s.path + ":" + w, w + " is now called " + now})
			}
		}
	}
	find(token.NoPos, words(strings.ReplaceAll(strings.TrimSuffix(s.path, ".go"), "/", "_")))
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			find(n.Pos(), words(n.Name))
		case *ast.BasicLit:
			find(n.Pos(), plainWords(n.Value))
			if form := shortForm.FindString(n.Value); form != "" && !s.test() {
				out = append(out, breach{"word", s.fset.Position(n.Pos()).String(), s.path + ":" + form, form + " is written as noun and verb, like pagurus job ls"})
			}
		case *ast.FuncDecl:
			if name := strings.ToLower(n.Name.Name); slices.Contains(bare, name) {
				out = append(out, breach{"word", s.fset.Position(n.Pos()).String(), s.dir() + ":" + n.Name.Name, n.Name.Name + " does not say what it acts on"})
			}
		}
		return true
	})
	for _, c := range s.file.Comments {
		find(c.Pos(), plainWords(c.Text()))
	}
	return out
}

// plainWords splits a text; what is written together, as a Go name is, is split too.
func plainWords(text string) (out []string) {
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) }) {
		out = append(out, words(w)...)
	}
	return out
}

// The documents use no replaced word either. The change log says what they were.
func TestDocumentsUseTodaysWords(t *testing.T) {
	tree := os.DirFS(root)
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md"} {
		names, err := fs.Glob(tree, pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", pattern, names, err)
		}
		for _, name := range names {
			text, err := fs.ReadFile(tree, name)
			if err != nil {
				t.Fatal(err)
			}
			for n, line := range strings.Split(string(text), "\n") {
				if form := shortForm.FindString(line); form != "" {
					t.Errorf("%s:%d: %s is written as noun and verb, like pagurus job ls", name, n+1, form)
				}
				for _, w := range plainWords(line) {
					if now := replaced[w]; now != "" {
						t.Errorf("%s:%d: %s is now called %s", name, n+1, w, now)
					}
				}
			}
		}
	}
}

func TestWordsFindWhatBreaksThem(t *testing.T) {
	for _, c := range []struct{ path, src, want string }{
		{"act/x/x.go", "package x; func takeJob() {}", ""},
		{"act/x/x.go", "package x; func take() {}", "act/x:take"},
		{"act/x/x.go", "package x; type t int; func (t) Settle() {}", "act/x:Settle"},
		{"act/x/shelf.go", "package x", "act/x/shelf.go:shelf"},
		{"act/x/x.go", "package x; var hostDebt int", "act/x/x.go:debt"},
		{"act/x/x.go", "package x; const c = `is owed`", "act/x/x.go:owed"},
		{"act/x/x.go", "package x // the lookout", "act/x/x.go:lookout"},
		{"act/x/x.go", "package x; const c = `see pagurus jobs`", "act/x/x.go:pagurus jobs"},
		{"act/x/x.go", "package x; const c = `see pagurus job ls`", ""},
		{"act/x/x.go", "package x // allowed indoors", ""},
	} {
		s, err := parse(c.path, []byte(c.src))
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for _, b := range checkWords(s) {
			got = cmp.Or(got, b.what)
		}
		if got != c.want {
			t.Errorf("%s: %s: found %q, want %q", c.path, c.src, got, c.want)
		}
	}
}
