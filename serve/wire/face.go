// This file lets a face of the controller, such as the HTTP interface for programs, act for whoever calls it. What a
// caller may do, what is kept in the audit and who passes requests on to whom is the same as for the protocol, and is
// decided in the same functions. Its tests run real servers.

package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net"
	"net/http"
	"strings"
	"time"

	"pagurus/decide/access"
	"pagurus/fleet"
)

// FacePath begins the paths of a face. No path of the protocol begins so.
const FacePath = "/api/"

// PagePath begins the paths of the page's files.
const PagePath = "/page/"

// bearer begins the value of the header Authorization of who shows a token.
const bearer = "Bearer "

// Face is what a controller shows beside the protocol, below FacePath.
type Face interface {
	// Public answers what anybody may ask without being known; false: it is not that.
	Public(http.ResponseWriter, *http.Request) bool
	// Serve answers a request. An error is answered as a problem of RFC 9457; nothing has been sent then.
	Serve(*Acting, http.ResponseWriter, *http.Request) error
}

// Acting is a caller who is known, and can do what they may. Its methods are those of a Client of theirs.
type Acting struct {
	s  *server
	id Peer
	r  *http.Request
}

// routeFace adds the paths of the face.
func (s *server) routeFace(mux *http.ServeMux) {
	if s.Face == nil {
		return
	}
	mux.HandleFunc(FacePath, func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, func(w http.ResponseWriter, r *http.Request) error {
			harmless(w.Header())
			if _, passedOn := r.Context().Value(passedKey{}).(passed); !passedOn { // else the controller that it came to has looked
				if err := s.sameSite(r); err != nil {
					return err
				}
			}
			if s.Face.Public(w, r) {
				return nil
			}
			id, err := s.bearerOr(r)
			if err != nil {
				return cmp.Or(s.strange(r), err)
			}
			return s.Face.Serve(&Acting{s, id, r}, w, r)
		})
	})
}

// ofPage reports whether a path is one of the page's.
func ofPage(path string) bool { return path == "/" || strings.HasPrefix(path, PagePath) }

// shows has the page answer for its paths, whether this controller leads or not. The page is the same for everybody, and what it
// shows it asks Face for. So a link from another site may lead to it, but no other site's name may.
func (s *server) shows(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Page == nil || !ofPage(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		s.answer(w, r, func(w http.ResponseWriter, r *http.Request) error {
			harmless(w.Header())
			if !s.isCalled(r.Host) {
				return s.sameSite(r)
			}
			s.Page.ServeHTTP(w, r)
			return nil
		})
	})
}

// onlyFace hides everything else, where programs ask.
func (s *server) onlyFace(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, FacePath) && (s.Page == nil || !ofPage(r.URL.Path)) {
			harmless(w.Header())
			http.Error(w, "there is nothing here: what programs ask is below "+FacePath, http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bearerOr says who makes a request: whose token it shows, else as for the protocol.
func (s *server) bearerOr(r *http.Request) (Peer, error) {
	shown := r.Header.Get("Authorization")
	if shown == "" {
		id, err := s.caller(r)
		if e := (*Error)(nil); err != nil && errors.As(err, &e) && e.Status == http.StatusUnauthorized && r.TLS == nil {
			return id, &Error{http.StatusUnauthorized, "the controller does not know you: send a token in the header Authorization: Bearer TOKEN; `pagurus token create --access` makes one"}
		}
		return id, err
	}
	via, err := s.caller(r)
	if err != nil { // who holds too many connections does not come past that by a token
		if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusTooManyRequests {
			return Peer{}, err
		}
	}
	text, is := cutFold(shown, bearer)
	if !is || s.Members == nil {
		return Peer{}, &Error{http.StatusUnauthorized, "the header Authorization has no token: write Authorization: Bearer TOKEN"}
	}
	from := hostOf(r.RemoteAddr)
	id, err := s.Members.Bearer(r.Context(), strings.TrimSpace(text), from)
	id.From, id.Machine = from, via.Machine
	return id, err
}

// cutFold cuts a prefix of any case.
func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return "", false
	}
	return s[len(prefix):], true
}

// sameSite refuses what a browser sends for a page of somebody else. A browser adds by itself whatever it has to be known
// by, a client certificate for example; so that a page of another site could act for its reader. Nothing here uses cookies,
// and no answer has a header of CORS. A name of somebody else in Host is how another site makes itself look like this one
// (DNS rebinding): names are this machine's, or the one in certificates.
func (s *server) sameSite(r *http.Request) error {
	refused := func(why string) error {
		return &Error{http.StatusForbidden, "this is a request of another site: " + why}
	}
	if !s.isCalled(r.Host) {
		return refused("Host " + clippedTo(r.Host, nameBytes) + " is not this controller; call it by its IP address, or as localhost")
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return refused("only pages of the controller itself may ask it")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		scheme := "http://"
		if r.TLS != nil {
			scheme = "https://"
		}
		if !strings.EqualFold(origin, scheme+r.Host) {
			return refused("only pages of the controller itself may ask it")
		}
	}
	for name := range r.URL.Query() {
		switch strings.ToLower(name) {
		case "token", "access_token", "authorization", "bearer":
			return &Error{http.StatusBadRequest, "a token in a URL is kept in logs and histories: send it in the header Authorization: Bearer TOKEN, and remove this one with `pagurus token rm`, since it has been seen"}
		}
	}
	return nil
}

// isCalled reports whether a Host is an address, or a name of this controller.
func (s *server) isCalled(hostport string) bool { return IsCalled(hostport, s.Names) }

// IsCalled reports whether the header Host is an address, or one of some names.
func IsCalled(hostport string, names []string) bool {
	name := hostport
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	if net.ParseIP(name) != nil || name == "" {
		return true
	}
	for _, own := range names {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

// may says why the caller may not make a call, and keeps that it was tried.
func (a *Acting) may(what access.Call) error {
	err := allowed(a.id, what)
	if err == nil {
		err = a.s.paced(a.id, what)
	}
	a.s.recordForbidden(a.id, what, a.r, err)
	return err
}

// Still says why the caller is not known any more, as one who was removed while they watched.
func (a *Acting) Still() error {
	id, err := a.s.bearerOr(a.r)
	if err == nil && id.Caller != a.id.Caller {
		err = &Error{http.StatusUnauthorized, "what you may do has changed: ask again"}
	}
	return err
}

// Over is closed when the server ends.
func (a *Acting) Over() <-chan struct{} { return a.s.ctx.Done() }

// Caller is who acts.
func (a *Acting) Caller() fleet.Caller { return a.id.Caller }

// Body reads what the caller sends, at most so many bytes.
func (a *Acting) Body(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	return a.s.bodyOf(a.id, w, r, most)
}

// Piece reads what is to be written to a stream, or, of somebody who has many large pieces under way, the beginning of it. all: it is not only that.
func (a *Acting) Piece(w http.ResponseWriter, r *http.Request) (data []byte, all bool, err error) {
	return a.s.pieceOf(a.id, w, r)
}

// WhoAmI says as whom the controller knows the caller.
func (a *Acting) WhoAmI(context.Context) (Who, error) {
	return Who{a.id.Caller, a.s.Cluster, a.s.pages()}, nil
}

// Ask makes a request.
func (a *Acting) Ask(ctx context.Context, q fleet.Request) (fleet.Answer, error) {
	if err := a.may(access.Ask); err != nil {
		return fleet.Answer{}, err
	}
	return a.s.asks(ctx, a.id, q)
}

// Predict gives the effect and cost of a request to move guests.
func (a *Acting) Predict(ctx context.Context, q fleet.Request) (fleet.Forecast, error) {
	if err := a.may(access.ReadCluster); err != nil {
		return fleet.Forecast{}, err
	}
	if a.s.Forecasts == nil {
		return fleet.Forecast{}, errNoForecasts
	}
	q.By, q.Image, q.Spec = a.id.Caller, nil, nil
	return a.s.Forecasts.Predict(ctx, q)
}

// Score compares past predictions with the results.
func (a *Acting) Score(ctx context.Context) (fleet.Calibration, error) {
	if err := a.may(access.ReadCluster); err != nil {
		return fleet.Calibration{}, err
	}
	if a.s.Forecasts == nil {
		return fleet.Calibration{}, errNoForecasts
	}
	return a.s.Forecasts.Score(ctx)
}

// Snapshot is what the caller may see of the cluster.
func (a *Acting) Snapshot(ctx context.Context) (fleet.Snapshot, error) {
	if err := a.may(access.ReadCluster); err != nil {
		return fleet.Snapshot{}, err
	}
	snap, err := a.s.Controller.Snapshot(ctx)
	return a.s.encoded.visible(snap, a.id.Caller), err
}

// Watch gives what the caller may see of the cluster now and after changes, until ctx or the server ends. Whoever takes long over one
// gets the newest next: none waits in between.
func (a *Acting) Watch(ctx context.Context) (iter.Seq[fleet.Snapshot], error) {
	if err := a.may(access.ReadCluster); err != nil {
		return nil, err
	}
	return func(yield func(fleet.Snapshot) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(a.s.ctx, cancel)()
		for snap := range a.s.Controller.Watch(ctx) {
			if ctx.Err() != nil || !yield(a.s.encoded.visible(snap, a.id.Caller)) {
				return
			}
		}
	}, nil
}

// Explain says why something is as it is.
func (a *Acting) Explain(ctx context.Context, about About) ([]string, error) {
	if err := a.may(access.ReadCluster); err != nil {
		return nil, err
	}
	about.By = a.id.Caller
	return a.s.Controller.Explain(ctx, about)
}

// Trace gives the MPI traces of a job's ranks.
func (a *Acting) Trace(ctx context.Context, job fleet.JobID) ([]fleet.Trace, error) {
	if err := a.may(access.ReadTrace); err != nil {
		return nil, err
	}
	return a.s.Controller.Trace(ctx, a.id.Caller, job)
}

// ReadStream gives a stream's bytes from an offset, and waits some time for new ones.
func (a *Acting) ReadStream(ctx context.Context, at Place) (data []byte, ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, streamLimit)
	defer cancel()
	return a.read(ctx, at)
}

// PeekStream gives a stream's bytes from an offset and does not wait. ended: nothing follows them.
func (a *Acting) PeekStream(ctx context.Context, at Place) (data []byte, ended bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return a.read(ctx, at)
}

func (a *Acting) read(ctx context.Context, at Place) ([]byte, bool, error) {
	if err := a.may(access.PassStream); err != nil {
		return nil, false, err
	}
	data, ended, err := a.s.Streams.Read(ctx, a.id.Caller, at)
	return a.s.piece(a.r, a.id, data, ended && err == nil, err)
}

// WriteStream adds bytes to a stream and returns the next offset. It may take only some of them.
func (a *Acting) WriteStream(ctx context.Context, at Place, data []byte, eof bool) (next int64, err error) {
	if err := a.may(access.PassStream); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, streamLimit)
	defer cancel()
	return a.s.Streams.Write(ctx, a.id.Caller, at, data, eof)
}

// Output says how much is kept of programs' output.
func (a *Acting) Output(ctx context.Context) (fleet.Output, error) {
	if err := a.may(access.ReadOutput); err != nil {
		return fleet.Output{}, err
	}
	if a.s.Output == nil {
		return fleet.Output{}, errNoOutput
	}
	return a.s.Output(ctx, a.id.Caller)
}

// Usage says what jobs used since a time.
func (a *Acting) Usage(ctx context.Context, since time.Time) (fleet.UsageAnswer, error) {
	if err := a.may(access.ReadUsage); err != nil {
		return fleet.UsageAnswer{}, err
	}
	if a.s.Usage == nil {
		return fleet.UsageAnswer{}, errNoUsage
	}
	return a.s.Usage(ctx, a.id.Caller, since)
}

// Audit gives each record since a time, oldest first.
func (a *Acting) Audit(ctx context.Context, since time.Time, each func(fleet.AuditRecord) error) (damaged int, err error) {
	if err := a.may(access.ReadAudit); err != nil {
		return 0, err
	}
	if a.s.Audit == nil {
		return 0, errNoAudit
	}
	return a.s.Audit.Read(ctx, since, each)
}

// Heads gives the cluster's controllers.
func (a *Acting) Heads(ctx context.Context) ([]Head, error) {
	if err := a.may(access.ReadCluster); err != nil {
		return nil, err
	}
	if a.s.Heads == nil {
		return nil, alone
	}
	return a.s.Heads.List(ctx)
}

// RemoveHead removes a controller.
func (a *Acting) RemoveHead(ctx context.Context, name string) error {
	if err := a.may(access.RemoveHead); err != nil {
		return err
	}
	return a.s.removesHead(ctx, a.id, name)
}

// Backup writes all that the controller keeps.
func (a *Acting) Backup(w http.ResponseWriter, r *http.Request) error {
	if err := a.may(access.BackUp); err != nil {
		return err
	}
	return a.s.backup(a.id, w, r)
}

// problem is an error by RFC 9457.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"` // the sentence that the command line prints
}

// sendProblem ends an answer with an error: by RFC 9457 below FacePath, else as the protocol says.
func sendProblem(w http.ResponseWriter, r *http.Request, status int, reason string) {
	if !strings.HasPrefix(r.URL.Path, FacePath) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(Problem{reason}) // the client may be gone
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(problem{http.StatusText(status), status, reason})
}

// TakesGzip reports whether a client reads compressed answers.
func TakesGzip(r *http.Request) bool {
	for _, one := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, weighed := strings.Cut(strings.ReplaceAll(one, " ", ""), ";")
		if strings.EqualFold(name, "gzip") {
			return !weighed || strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != ""
		}
	}
	return false
}

// harmless has browsers take an answer as what it says that it is, and nowhere keep it: what jobs are called is other
// people's text.
func harmless(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
