package page

import (
	"compress/gzip"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/api"
)

// texts are the page's files, or those of patterns.
func texts(t *testing.T, patterns ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var files []string
	for _, pattern := range append(patterns, "files/*") {
		found, err := fs.Glob(embedded, pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	for _, at := range files {
		text, err := embedded.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		out[path.Base(at)] = string(text)
	}
	return out
}

func get(method, at string) *http.Response {
	w := httptest.NewRecorder()
	New().ServeHTTP(w, httptest.NewRequest(method, at, nil))
	return w.Result()
}

// TestHeaders: what browsers are told with each file, and with what is refused.
func TestHeaders(t *testing.T) {
	paths := map[string]int{"/": 200, wire.PagePath + "nothing.js": 404, wire.PagePath: 404, wire.PagePath + "../page.go": 404, wire.PagePath + "files/main.js": 404}
	for name := range texts(t) {
		paths[wire.PagePath+name] = 200
	}
	for at, status := range paths {
		for _, method := range []string{"GET", "HEAD"} {
			r := get(method, at)
			if r.StatusCode != status {
				t.Errorf("%s %s: %s", method, at, r.Status)
			}
			for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
				"Cross-Origin-Opener-Policy": "same-origin", "Content-Security-Policy": policy} {
				if r.Header.Get(name) != want {
					t.Errorf("%s %s has %s: %q", method, at, name, r.Header.Get(name))
				}
			}
			if r.Header.Get("Set-Cookie") != "" || r.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %s: %v", method, at, r.Header)
			}
		}
	}
	for _, rule := range []string{"default-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, rule) || strings.Contains(policy, "unsafe") {
			t.Errorf("%q is not in %q, or something unsafe is", rule, policy)
		}
	}
	if r := get("POST", "/"); r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") == "" {
		t.Errorf("POST: %s, %v", r.Status, r.Header)
	}
	if kind := get("GET", wire.PagePath+"main.js").Header.Get("Content-Type"); kind != "text/javascript; charset=utf-8" {
		t.Errorf("main.js is %q", kind)
	}
}

// TestSaved: a browser that has a file is not sent it again, and one that reads gzip gets it so.
func TestSaved(t *testing.T) {
	for name, text := range texts(t) {
		ask := func(header, value string) *http.Response {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", wire.PagePath+name, nil)
			r.Header.Set(header, value)
			New().ServeHTTP(w, r)
			return w.Result()
		}
		plain := ask("Accept-Encoding", "gzip;q=0, br")
		if got, err := io.ReadAll(plain.Body); err != nil || string(got) != text || plain.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s without gzip: %v, %v", name, plain.Header, err)
		}
		packed := ask("Accept-Encoding", "deflate, gzip")
		unpacked, err := gzip.NewReader(packed.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(unpacked); err != nil || string(got) != text || packed.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s with gzip: %v, %v", name, packed.Header, err)
		}
		if again := ask("If-None-Match", plain.Header.Get("ETag")); again.StatusCode != http.StatusNotModified || again.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s again: %s", name, again.Status)
		}
		if other := ask("If-None-Match", `"another"`); other.StatusCode != http.StatusOK {
			t.Errorf("%s after a change: %s", name, other.Status)
		}
	}
}

// TestFiles: the files load only each other, and have nothing by which text could become markup or code, or a token be kept.
func TestFiles(t *testing.T) {
	all := texts(t, ownerFiles)
	dangerous := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\("(on|style)|srcdoc|javascript:|localStorage|indexedDB|document\.cookie|postMessage|createContextualFragment|DOMParser`)
	foreign := regexp.MustCompile(`(https?:)?//[a-z0-9-]+\.[a-z]+`)
	loads := regexp.MustCompile(`(?:from|src=|href=|import\() ?"(/page/|\./)([^"]+)"`)
	for name, text := range all {
		if found := dangerous.FindString(text); found != "" {
			t.Errorf("%s has %q", name, found)
		}
		for _, found := range foreign.FindAllString(text, -1) {
			if found != "http://www.w" { // of www.w3.org, the name of a vocabulary
				t.Errorf("%s names another site: %q", name, found)
			}
		}
		for _, m := range loads.FindAllStringSubmatch(text, -1) {
			if all[m[2]] == "" {
				t.Errorf("%s loads %s, which is not there", name, m[2])
			}
		}
	}
	for name, html := range all {
		if strings.HasSuffix(name, ".html") && (strings.Contains(html, "<style") || strings.Contains(html, " style=") || regexp.MustCompile(`<script>|<script [^>]*>[^<]|\son[a-z]+=`).MatchString(html)) {
			t.Errorf("%s has scripts or styles in it, which its policy refuses", name)
		}
	}
}

// TestOperations: the page asks what the interface has, and names each that it asks.
func TestOperations(t *testing.T) {
	all := texts(t)
	listed := regexp.MustCompile(`(?m)^  (\w+): \["([A-Z]+)", "([^"]+)"\],$`).FindAllStringSubmatch(all["api.js"], -1)
	if len(listed) < 10 {
		t.Fatalf("api.js lists %v", listed)
	}
	uses := map[string]bool{}
	for _, m := range listed {
		i := slices.IndexFunc(api.Operations, func(o api.Operation) bool { return o.ID == m[1] })
		if i < 0 || api.Operations[i].Method != m[2] || api.Operations[i].Path != m[3] {
			t.Errorf("the interface has no %v", m[1:])
		}
		uses[m[1]] = false
	}
	for _, text := range all {
		for _, m := range regexp.MustCompile("(?:call|ask|Asked)\\(([\"`])([\\w${}]+)[\"`]").FindAllStringSubmatch(text, -1) {
			for name := range uses {
				begin, of, _ := strings.Cut(m[2], "${name}")
				uses[name] = uses[name] || name == m[2] || m[1] == "`" && of == "" && strings.HasPrefix(name, begin)
			}
			if _, known := uses[m[2]]; !known && m[1] == `"` {
				t.Errorf("%q is asked and not listed", m[2])
			}
		}
	}
	for name, used := range uses {
		if !used {
			t.Errorf("%s is listed and not asked", name)
		}
	}
}

// TestWords: what the page knows of phases, states and causes is what there is.
func TestWords(t *testing.T) {
	all := texts(t)
	for _, p := range []fleet.Phase{fleet.Finished, fleet.Aborted, fleet.Lost} {
		if !p.Ended() || !strings.Contains(all["model.js"], strconv.Quote(string(p))) {
			t.Errorf("%s", p)
		}
	}
	set := regexp.MustCompile(`const (over|gone) = new Set\(\[(.*)\]\)`).FindAllStringSubmatch(all["model.js"], -1)
	if len(set) != 2 || strings.Count(set[0][2], ",") != 2 || strings.Count(set[1][2], ",") != 1 {
		t.Errorf("%v", set)
	}
	for _, p := range fleet.Phases {
		if p.Phase.Ended() {
			continue
		}
		if !strings.Contains(all["moves.js"], strconv.Quote(string(p.Phase))) && p.Phase != fleet.Activating && p.Phase != fleet.Retiring {
			t.Errorf("how far a move is in %s the page does not know", p.Phase)
		}
	}
	for _, reason := range constants(t, "../../fleet/trace.go", "Reason") {
		if !strings.Contains(all["words.js"], "  "+strconv.Quote(reason)+": (c)") && !strings.Contains(all["words.js"], "  "+reason+": (c)") {
			t.Errorf("the page has no words for %s", reason)
		}
	}
}

// constants are the values of a type's constants.
func constants(t *testing.T, file, kind string) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, is := n.(*ast.ValueSpec); is && len(v.Values) == 1 {
			if id, named := v.Type.(*ast.Ident); named && id.Name == kind {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, text)
			}
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("%s has no constants of %s", file, kind)
	}
	return out
}
