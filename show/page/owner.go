package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/show/view"
)

// This file has the page of a machine's owner. It is served on loopback by a program that runs as the owner, and asks the agent as that
// program's user: so the page can do what its owner can, and the agent needs no way in for browsers. Others of the machine reach the
// same port, and pages of other sites may have the owner's browser call it; guard and session keep both out.

// ownerFiles are the parts of the owner's page that are not the controller's.
const ownerFiles = "owner/*"

const (
	ownerPath    = "/owner/" // below it questions are asked
	ownerHeaders = 16 << 10  // bytes
	ownerBody    = 4 << 10   // bytes
	ownerPatient = 10 * time.Second
	ownerEnds    = 2 * time.Second // for what is under way when the page ends
)

// AskAgent asks the agent of this machine.
type AskAgent func(context.Context, fleet.OwnerAsk) (fleet.OwnerAnswer, error)

// Owner serves the owner's page.
type Owner struct {
	ask   AskAgent
	files *Page

	mu      sync.Mutex
	secret  string // of the link, which works once; empty: it has been used
	session string // of the tab that used it; empty: none has
}

// NewOwner makes one, with a link that works once.
func NewOwner(ask AskAgent) *Owner {
	files := of("owner.html", ownerFiles, "files/dom.js", "files/style.css", "files/shell.svg")
	return &Owner{ask: ask, files: files, secret: rand.Text()}
}

// Link is the address of the page for its owner, as long as nobody has used it. The secret is in the fragment, which browsers do not send.
func (o *Owner) Link(at net.Addr) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return "http://" + at.String() + "/#" + o.secret
}

// Serve answers until ctx ends. It closes the listener, which is one of the loopback.
func (o *Owner) Serve(ctx context.Context, l net.Listener) error {
	s := http.Server{
		Handler: o, MaxHeaderBytes: ownerHeaders, ReadHeaderTimeout: ownerPatient, ReadTimeout: ownerPatient, WriteTimeout: 2 * ownerPatient, IdleTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, callerKey{}, callerOf(c))
		},
	}
	over := context.AfterFunc(ctx, func() {
		ending, stop := context.WithTimeout(context.WithoutCancel(ctx), ownerEnds)
		defer stop()
		_ = s.Shutdown(ending) // what is not done by then is cut off
		_ = s.Close()
	})
	defer over()
	if err := s.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving the owner's page: %w", err)
	}
	return nil
}

// ServeHTTP answers the owner's browser, and refuses everybody else.
func (o *Owner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	question, asks := strings.CutPrefix(r.URL.Path, ownerPath)
	switch why := guard(r, asks); {
	case why != "":
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusForbidden, why)
	case !asks:
		o.files.ServeHTTP(w, r)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, "questions are asked by POST")
	case question == "session":
		o.open(w, r)
	case question == "ask":
		o.answer(w, r)
	default:
		refuse(w, http.StatusNotFound, "there is nothing here: the page begins at /")
	}
}

// guard says why a request is refused whatever it asks for; empty: it is not. A name in Host that is not this machine's is how another
// site makes itself look like this one (DNS rebinding); another Origin is another site, or another port of this machine, whose page asks.
func guard(r *http.Request, asks bool) string {
	if c, _ := r.Context().Value(callerKey{}).(caller); c.foreign != "" {
		return c.foreign
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil || host != "127.0.0.1" && host != "localhost" {
		return "this page is called by the address that `pagurus owner page` prints, or as localhost"
	}
	if !asks {
		return "" // a link leads here, and the files are no secret
	}
	if r.Header.Get("Origin") != "http://"+r.Host {
		return "the page of another site asks, or no page at all; programs have `pagurus owner --json`"
	}
	if from := r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" {
		return "the page of another site asks"
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Method == http.MethodPost && (err != nil || kind != "application/json") {
		return "a question is JSON, and its type says so"
	}
	return ""
}

// open exchanges the link's secret for the key of a tab.
func (o *Owner) open(w http.ResponseWriter, r *http.Request) {
	var q struct{ Secret string }
	if !read(w, r, &q) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.secret == "" || subtle.ConstantTimeCompare([]byte(q.Secret), []byte(o.secret)) != 1 {
		refuse(w, http.StatusUnauthorized, "This link does not work any more: it works once. Type pagurus owner page for another one.")
		return
	}
	o.secret, o.session = "", rand.Text()
	say(w, map[string]string{"session": o.session})
}

// known reports whether the tab that used the link asks.
func (o *Owner) known(r *http.Request) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	key, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return is && o.session != "" && subtle.ConstantTimeCompare([]byte(key), []byte(o.session)) == 1
}

// ownerSees is what the page shows: the texts of the commands.
type ownerSees struct {
	Host    fleet.HostID `json:"host"`
	Pause   bool         `json:"pause"`
	Status  string       `json:"status"`
	Policy  string       `json:"policy"`
	History struct {
		Rows  [][]string `json:"rows"` // the oldest first
		Empty string     `json:"empty"`
	} `json:"history"`
}

// answer asks the agent what the page asks, and then what there is to see.
func (o *Owner) answer(w http.ResponseWriter, r *http.Request) {
	if !o.known(r) {
		refuse(w, http.StatusUnauthorized, "This tab was not opened by the link of pagurus owner page: type that for one.")
		return
	}
	var q fleet.OwnerAsk
	if !read(w, r, &q) {
		return
	}
	switch q.Verb {
	case fleet.OwnerHistory, fleet.OwnerPause, fleet.OwnerResume:
	default:
		refuse(w, http.StatusBadRequest, fmt.Sprintf("the page does not ask for %q", string(q.Verb)))
		return
	}
	if q.Policy != nil || q.For != 0 && q.Verb != fleet.OwnerPause || q.Refused() != "" {
		refuse(w, http.StatusBadRequest, "the page asks for a pause or its end, and nothing more")
		return
	}
	got, err := o.ask(r.Context(), q)
	if err == nil && q.Verb != fleet.OwnerHistory {
		got, err = o.ask(r.Context(), fleet.OwnerAsk{Verb: fleet.OwnerHistory})
	}
	if err != nil {
		refuse(w, http.StatusBadGateway, err.Error())
		return
	}
	sees := ownerSees{Host: got.Host, Pause: got.Pause, Status: view.OwnerStatus(got), Policy: view.OwnerPolicyText(got)}
	past := view.OwnerHistory(got)
	sees.History.Rows, sees.History.Empty = append([][]string{}, past.Rows...), past.Empty
	say(w, sees)
}

// read reads a question; if it cannot be read, that is said.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, ownerBody))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && !errors.Is(d.Decode(&struct{}{}), io.EOF) {
		err = errors.New("more than one value")
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "the question cannot be read: "+err.Error())
	}
	return err == nil
}

// heads are what browsers are told with each answer to a question.
func heads(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
}

func say(w http.ResponseWriter, v any) {
	heads(w, "application/json")
	_ = json.NewEncoder(w).Encode(v) // the reader may be gone
}

// refuse says why nothing is done, as the controller's interface does (RFC 9457).
func refuse(w http.ResponseWriter, status int, detail string) {
	heads(w, "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "detail": detail}) // the reader may be gone
}
