// Package page is the controller's page for people with a browser: the cluster at a glance, its jobs and moves, and what may be done
// about them. It is files only, as they are in the sources: no step makes them, and they load nothing from elsewhere. What they show
// and do they ask package api for, as their reader, by a token that the reader types. Of the same make is the page of a machine's
// owner (owner.go), which a program of the owner's serves to that owner alone.
//
// Its tests compare the operations that the files name with those that there are, run them in a real Chromium (TestLong…), and
// look at what browsers are told.
package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"pagurus/serve/wire"
)

//go:embed files owner
var embedded embed.FS

// first is the file that / shows on the controller.
const first = "index.html"

// policy lets the page load nothing but the controller's own files, and talk to nobody else. No text can become code in it: markup and
// scripts that are made of text are refused by the browser (trusted types), as far as it knows these.
const policy = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is one file of the page.
type file struct {
	kind   string
	tag    string // changes with the text
	text   []byte
	packed []byte
}

func newFile(name string, text []byte) file {
	sum := sha256.Sum256(text)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(text) // a buffer takes everything
	_ = w.Close()
	return file{kindOf(name), `"` + hex.EncodeToString(sum[:8]) + `"`, text, packed.Bytes()}
}

// Page serves the files.
type Page struct {
	files map[string]file
	first string // what / shows
}

// New makes one.
func New() *Page { return of(first, "files/*") }

// of makes a page of the files that patterns name.
func of(first string, patterns ...string) *Page {
	p := &Page{files: map[string]file{}, first: first}
	for _, pattern := range patterns {
		found, err := fs.Glob(embedded, pattern)
		if err != nil || len(found) == 0 {
			panic(fmt.Sprintf("%s is not in the program: %v", pattern, err))
		}
		for _, at := range found {
			text, err := embedded.ReadFile(at)
			if err != nil {
				panic("the page's files are in the program: " + err.Error())
			}
			p.files[path.Base(at)] = newFile(at, text)
		}
	}
	return p
}

// kinds are the types of files. The machine's own table may have others.
var kinds = map[string]string{
	".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml",
}

func kindOf(name string) string {
	kind, known := kinds[path.Ext(name)]
	if !known {
		panic(name + " has a type that package page does not know")
	}
	return mime.FormatMediaType(kind, map[string]string{"charset": "utf-8"})
}

// ServeHTTP answers with a file.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", policy)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the page is only read: what it does it asks below "+wire.FacePath, http.StatusMethodNotAllowed)
		return
	}
	name := p.first
	if r.URL.Path != "/" {
		name = strings.TrimPrefix(r.URL.Path, wire.PagePath)
	}
	f, there := p.files[name]
	if !there {
		http.Error(w, "the page has no such file: it begins at /", http.StatusNotFound)
		return
	}
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.kind)
	text := f.text
	if wire.TakesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		text = f.packed
	}
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(text) // the reader may be gone
	}
}
