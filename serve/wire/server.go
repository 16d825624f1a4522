package wire

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"pagurus/decide/access"
	"pagurus/fleet"
)

// Controller is what a server serves. An *Error of its methods is answered with its status;
// any other error is an internal one.
type Controller interface {
	// Ask answers a request once its effect is stored.
	Ask(context.Context, fleet.Request) (fleet.Answer, error)
	// Snapshot is the present cluster state.
	Snapshot(context.Context) (fleet.Snapshot, error)
	// Watch gives the cluster state now and after every change until ctx ends. A slow reader
	// gets only the newest.
	Watch(context.Context) <-chan fleet.Snapshot
	// Explain says why something is as it is.
	Explain(context.Context, About) ([]string, error)
	// Trace asks a job's agents for its ranks' MPI traces.
	Trace(context.Context, fleet.Caller, fleet.JobID) ([]fleet.Trace, error)
	// Attach serves a host's session and returns when it is over. The host is sent the
	// error as the reason.
	Attach(context.Context, Peer, Hello, *HostSession) error
	// ImageFile gives the path of a file of an image.
	ImageFile(fleet.Digest, string) (string, error)
}

// Streams are jobs' stdin, stdout and stderr.
type Streams interface {
	// Read gives bytes from an offset, and waits for some until ctx ends, which is not an
	// error. ended: nothing follows data.
	Read(ctx context.Context, by fleet.Caller, at Place) (data []byte, ended bool, err error)
	// Write adds bytes at an offset and returns the next offset, which is smaller if bytes
	// before are missing. While the reader is too far behind, it waits until ctx ends, which
	// is not an error.
	Write(ctx context.Context, by fleet.Caller, at Place, data []byte, eof bool) (next int64, err error)
}

// Place is a position in one of a job's streams.
type Place struct {
	Job    fleet.JobID
	Stream string
	Offset int64

	Incarnation int // of the job, for its hosts: the offset counts from its beginning
}

// About is the subject of an explanation. One of Guest, Job and Host is set.
type About struct {
	Guest fleet.GuestID
	Job   fleet.JobID
	Host  fleet.HostID
	By    fleet.Caller // who asks; set by the server
}

// ServeConfig configures a server.
type ServeConfig struct {
	Listeners  []net.Listener // of ListenUnix and ListenTLS
	Faces      []net.Listener // of ListenFace: only Face is served there
	Face       Face           // nil: there is none
	Page       http.Handler   // what people see of Face in a browser, at / and below PagePath; nil: there is none
	Names      []string       // by which Face may be called, beside IP addresses
	Members    Members        // nil: the kernel alone says who calls, and no machine can join
	Cluster    string         // what people call the cluster
	Machine    string         // this machine's identity, as fleet.Facts.Machine of a host here
	Controller Controller
	Streams    Streams
	Forecasts  Forecasts                                   // nil: predictions are refused
	Output     Output                                      // nil: refused
	Usage      Usage                                       // nil: refused
	Copies     Copies                                      // nil: refused
	Backup     Backup                                      // nil: refused
	Passing    *Passing                                    // nil: there is no other controller
	Between    Between                                     // nil: refused
	Heads      Heads                                       // nil: there is no other controller
	Audit      Audit                                       // nil: nothing is kept
	Version    string                                      // this build, for people
	Refused    func(context.Context, fleet.HostID, string) // hears why a host's agent was not let in; may be nil
	Log        *slog.Logger

	protocol *int   // nil: as this program
	paces    *paces // nil: as always
}

// Limits of the server. A client's own are longer.
const (
	askBytes    = 1 << 20  // a request; smaller ones that are still too large are refused with the reason
	nameBytes   = 128      // a request's ID
	pieceBytes  = 1 << 20  // of a stream in one answer or request
	upBytes     = 4 << 20  // a message of an agent
	factsBytes  = 1 << 20  // and of its host's facts, which are kept and shown
	toldBytes   = 64 << 10 // a request of who joins, or renews a certificate
	headerBytes = 16 << 10 // of a request; who sends them may be anybody
	bodyLimit   = 30 * time.Second
	headerLimit = 10 * time.Second
	idleLimit   = 2 * time.Minute
	streamLimit = 25 * time.Second // how long ?wait=1 waits
	helloLimit  = 5 * time.Second
	farewell    = 2 * time.Second
	endedHeader = "Pagurus-Ended"
	upQueue     = 256
	downQueue   = 4096 // with more waiting messages the agent does not read
)

type server struct {
	ServeConfig
	sessions sync.WaitGroup // hijacked connections, which http.Server forgets
	agents   sessionsOf     // agents
	answers  answering
	pieces   answering // of streams
	requests answering // that are long
	encoded  encodings
	ctx      context.Context
}

// Serve answers until ctx ends, then closes the listeners and all connections. It returns an
// error if a listener breaks before that.
func Serve(ctx context.Context, c ServeConfig) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{ServeConfig: c, ctx: ctx}
	if s.paces == nil {
		s.paces = newPaces()
	}
	s.answers.wait, s.answers.most = s.paces.answers, answersEach
	s.pieces.wait, s.pieces.most = s.paces.answers, piecesEach
	s.requests.wait, s.requests.most = s.paces.answers, piecesEach
	all := s.shows(s.passes(s.routes()))
	h, face := s.serving(all), s.serving(s.onlyFace(all))
	broken := make(chan error, len(c.Listeners)+len(c.Faces))
	var serving sync.WaitGroup
	for _, l := range c.Listeners {
		serving.Go(func() { broken <- h.Serve(l) })
	}
	for _, l := range c.Faces {
		serving.Go(func() { broken <- face.Serve(l) })
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-broken:
		err = fmt.Errorf("serving: %w", err)
	}
	cancel()
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer stop()
	for _, server := range []*http.Server{h, face} {
		if server.Shutdown(ending) != nil {
			server.Close()
		}
	}
	serving.Wait()    // a server that had not begun closes its listener itself
	s.sessions.Wait() // they end with ctx
	return err
}

// serving makes an HTTP server.
func (s *server) serving(by http.Handler) *http.Server {
	return &http.Server{
		Handler: by, ConnContext: known,
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), // broken handshakes of strangers
	}
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	add := func(pattern string, what access.Call, serve func(Peer, http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			s.answer(w, r, func(w http.ResponseWriter, r *http.Request) error {
				id, err := s.caller(r)
				if err != nil {
					return cmp.Or(s.strange(r), err)
				}
				err = allowed(id, what)
				asks := err == nil && what == access.Ask // which is recorded in any case
				if err == nil {
					err = s.paced(id, what)
				}
				if err == nil {
					err = s.serveOne(id, what, w, r, serve)
				}
				if !asks {
					s.recordForbidden(id, what, r, err)
				}
				return err
			})
		})
	}
	add("POST /v1/ask", access.Ask, s.ask)
	add("POST /v1/predict", access.ReadCluster, s.predict)
	add("GET /v1/score", access.ReadCluster, s.score)
	add("GET /v1/snapshot", access.ReadCluster, s.snapshot)
	add("GET "+watchPath, access.ReadCluster, s.watch)
	add("GET /v1/explain", access.ReadCluster, s.explain)
	add("GET /v1/jobs/{job}/trace", access.ReadTrace, s.trace)
	add("GET /v1/jobs/{job}/{stream}", access.PassStream, s.read)
	add("POST /v1/jobs/{job}/{stream}", access.PassStream, s.write)
	add("GET /v1/images/{digest}/{file}", access.ReadImage, s.image)
	add("GET /v1/output", access.ReadOutput, s.output)
	add("GET /v1/usage", access.ReadUsage, s.usage)
	add("GET /v1/backup", access.BackUp, s.backup)
	add("GET /v1/audit", access.ReadAudit, s.audit)
	s.routeCopies(func(pattern string, serve func(Copies, Peer, http.ResponseWriter, *http.Request) error) {
		what := access.CopyParts
		if !strings.Contains(pattern, "/checkpoints/") {
			what = access.HandParts
		}
		add(pattern, what, func(id Peer, w http.ResponseWriter, r *http.Request) error {
			if s.Copies == nil {
				return errNoCopies
			}
			return serve(s.Copies, id, w, r)
		})
	})
	add("GET "+agentPath, access.Attach, s.agent)
	add("GET "+whoAmIPath, access.Renew, s.whoAmI)
	add("POST "+renewPath, access.Renew, s.renew)
	add("GET "+headsPath, access.ReadCluster, s.heads)
	add("POST "+headsPath+"/remove", access.RemoveHead, s.removeHead)
	s.routeBetween(mux)
	s.routeFace(mux)
	mux.HandleFunc("POST /v1/join", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, s.join) })
	add("/", access.Renew, func(_ Peer, _ http.ResponseWriter, r *http.Request) error {
		return &Error{http.StatusNotFound, fmt.Sprintf("this controller does not know %s %s%s", r.Method, r.URL.Path, s.tooOld(r))}
	})
	return mux
}

// answer serves a request and sends an error as a Problem.
func (s *server) answer(w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request) error) {
	w = patient{ResponseWriter: w, limit: pieceLimit}
	if r.ContentLength != 0 { // an unread body would be read at the end
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyLimit)) // all our connections support it
	}
	err := s.greet(w, r)
	if err == nil {
		err = s.guarded(w, r, serve)
	}
	if err == nil {
		return
	}
	status, reason := http.StatusInternalServerError, err.Error()
	if e := (*Error)(nil); errors.As(err, &e) && e.Status >= http.StatusBadRequest {
		status, reason = e.Status, e.Reason
	} else if r.Context().Err() == nil {
		s.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "cause", err)
	}
	if wait := (*later)(nil); errors.As(err, &wait) {
		s.paces.holdRefusal(r.Context())
		w.Header().Set(againHeader, inSeconds(wait.after))
	} else if status == http.StatusTooManyRequests || status == http.StatusUnauthorized { // it is the connection that is refused
		w.Header().Set("Connection", "close")
	}
	sendProblem(w, r, status, reason)
}

// guarded logs a panic and makes it an error. net/http would only end the connection.
func (s *server) guarded(w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			err = errors.New("the controller has a bug, its log has the details")
		}
	}()
	return serve(w, r)
}

// reply sends v as JSON.
func reply(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	SendAnswer(w, b)
	return nil
}

// body reads at most limit bytes, within the time that answer has set.
func body(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
		return nil, &Error{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes", limit)}
	}
	if err != nil {
		return nil, &Error{http.StatusBadRequest, "the request was cut off: " + err.Error()}
	}
	return b, http.NewResponseController(w).SetReadDeadline(time.Time{})
}

func (s *server) ask(id Peer, w http.ResponseWriter, r *http.Request) error {
	b, err := s.bodyOf(id, w, r, askBytes)
	if err != nil {
		return err
	}
	var q fleet.Request
	if err := s.understand(r, b, &q); err != nil {
		return err
	}
	if !access.Known(q.Verb) {
		return &Error{http.StatusBadRequest, fmt.Sprintf("this controller does not know the request %q%s", q.Verb, s.tooOld(r))}
	}
	a, err := s.asks(r.Context(), id, q)
	if err != nil {
		return err
	}
	return reply(w, a)
}

// asks makes a request of a caller, and keeps that they made it.
func (s *server) asks(ctx context.Context, id Peer, q fleet.Request) (fleet.Answer, error) {
	if len(q.ID) > nameBytes {
		return fleet.Answer{}, &Error{http.StatusBadRequest, fmt.Sprintf("the request's ID has %d bytes: give it one of %d or fewer", len(q.ID), nameBytes)}
	}
	if q.ID == "" {
		q.ID = fleet.RequestID(rand.Text())
	}
	said := q.ID
	q.ID = fleet.RequestID(fmt.Sprintf("%d/%s", id.UID, said)) // users choose them: nobody's is another's
	q.By, q.Image, q.Taken, q.Key = id.Caller, nil, nil, id.Key
	a, err := s.carryOut(ctx, id, q)
	s.record(id, fleet.AuditRecord{Did: string(q.Verb), On: q.Object(a), Request: said}, err)
	return a, err
}

// carryOut has the controller answer a request, after the checks that the connection decides.
func (s *server) carryOut(ctx context.Context, id Peer, q fleet.Request) (fleet.Answer, error) {
	if id.Token != "" && q.Verb == fleet.AddToken && q.Token != nil && (q.Token.Access || q.Token.Role != fleet.HostRole) { // which would last longer
		return fleet.Answer{}, &Error{http.StatusForbidden, "a token makes others for hosts alone, and none for programs, logins or controllers: log in for that"}
	}
	if id.Token != "" && q.Verb == fleet.Logout {
		return fleet.Answer{}, &Error{http.StatusUnprocessableEntity, fmt.Sprintf("a token has no login that could end: `pagurus token rm %s` removes it", id.Token)}
	}
	if q.Spec != nil {
		q.Spec.UID, q.Spec.GID, q.Spec.Groups = id.UID, id.GID, id.Groups
		if err := s.locateFiles(id, q.Spec); err != nil {
			return fleet.Answer{}, err
		}
	}
	return s.Controller.Ask(ctx, q)
}

// locateFiles sets or checks the machine of a job's files. A user's files are on the machine
// from which the user submits: over the socket this one, otherwise a host that calls from
// the same address. Otherwise a user could read files of any host. An administrator may
// name any machine.
func (s *server) locateFiles(id Peer, spec *fleet.JobSpec) error {
	switch {
	case id.Admin, id.From != "" && slices.Contains(id.Files, spec.Machine):
		return nil
	case id.From != "":
		return &Error{http.StatusForbidden, "the files of a job have to be on the machine that you submit from, which has to be a host of the cluster: submit on a host, or on the controller's machine"}
	case spec.Machine != "" && spec.Machine != cmp.Or(id.Machine, s.Machine):
		return &Error{http.StatusForbidden, "the files of a job submitted over the controller's socket have to be on the controller's machine: submit there, or log in on another host"}
	}
	spec.Machine = cmp.Or(id.Machine, s.Machine)
	return nil
}

func (s *server) explain(id Peer, w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	about := About{Guest: fleet.GuestID(q.Get("guest")), Job: fleet.JobID(q.Get("job")), Host: fleet.HostID(q.Get("host")), By: id.Caller}
	set := 0
	for _, name := range []string{string(about.Guest), string(about.Job), string(about.Host)} {
		if name != "" {
			set++
		}
	}
	if set != 1 {
		return &Error{http.StatusBadRequest, "name one of guest, job and host"}
	}
	lines, err := s.Controller.Explain(r.Context(), about)
	if err != nil {
		return err
	}
	return reply(w, Explanation{lines})
}

func (s *server) trace(id Peer, w http.ResponseWriter, r *http.Request) error {
	traces, err := s.Controller.Trace(r.Context(), id.Caller, fleet.JobID(r.PathValue("job")))
	if err != nil {
		return err
	}
	return reply(w, traces)
}

var (
	digestForm = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)
	fileForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$`)
)

func (s *server) image(_ Peer, w http.ResponseWriter, r *http.Request) error {
	digest, file := r.PathValue("digest"), r.PathValue("file")
	if !digestForm.MatchString(digest) || !fileForm.MatchString(file) {
		return &Error{http.StatusBadRequest, "that is not the name of a file of an image"}
	}
	path, err := s.Controller.ImageFile(fleet.Digest(digest), file)
	if err != nil {
		return err
	}
	return sendFile(w, r, path)
}

// agent is an agent's session.
func (s *server) agent(id Peer, w http.ResponseWriter, r *http.Request) error {
	leave, err := s.agents.enter(id.Host)
	if err != nil {
		return err
	}
	defer leave()
	conn, err := s.accept(w, r)
	if err != nil {
		return nil // accept has answered
	}
	defer s.sessions.Done()
	session := newSession[Down](s.ctx, conn, sessionConfig[Up]{check: checkUp, newer: s.newer(r), messageBytes: upBytes, most: downBytes, out: downQueue, in: upQueue, peer: "the agent"})
	defer session.Close()
	waiting, stop := context.WithTimeout(s.ctx, helloLimit)
	first, err := session.Receive(waiting)
	stop()
	if err != nil {
		return nil
	}
	if first.Hello == nil {
		session.End("the first message is not a hello")
		return nil
	}
	if err := s.Controller.Attach(s.ctx, id, *first.Hello, session); err != nil {
		session.End(err.Error())
	}
	return nil
}

// accept makes a WebSocket of a request. The server must wait for the end of its session,
// because http.Server does not.
func (s *server) accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	s.sessions.Add(1)
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		s.sessions.Done()
	}
	return conn, err
}
