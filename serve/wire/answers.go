package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"pagurus/decide/access"
	"pagurus/fleet"
)

// An answer may have megabytes, and is kept until its reader has it. So a caller has few of them at once, and who is sent the same is
// sent the same bytes.
const (
	answersEach = 8               // of a caller at once; more wait
	answersWait = 5 * time.Second // for one of those to be read
	slowest     = 32 << 10        // bytes a second that a reader of one takes, beside pieceLimit for the first; else it is cut off
)

const (
	watchPath   = "/v1/watch"
	watchEvery  = 100 * time.Millisecond // on average
	watchAtOnce = 20                     // snapshots sent without that interval: a short move has as many changes
)

// answering counts the answers of each caller that are made, or are not read yet.
type answering struct {
	wait time.Duration // for a place
	most int           // places of a caller

	mu sync.Mutex
	by map[string]*answersOf
}

type answersOf struct {
	places chan struct{}
	users  int // who have a place, or wait for one
}

// enter waits until a caller may have one more answer made. It is over with leave.
func (a *answering) enter(ctx context.Context, who string) (leave func(), err error) {
	if leave, room := a.enterNow(ctx, who, a.wait); room {
		return leave, nil
	}
	return nil, AskAgain(a.wait, fmt.Sprintf("%d answers to you, or requests of yours, are under way that are large: wait until they are over, then ask again", a.most))
}

// enterNow waits for so long until there is a place. false: there is none.
func (a *answering) enterNow(ctx context.Context, who string, wait time.Duration) (leave func(), room bool) {
	a.mu.Lock()
	of := a.by[who]
	if of == nil {
		of = &answersOf{places: make(chan struct{}, a.most)}
		if a.by == nil {
			a.by = map[string]*answersOf{}
		}
		a.by[who] = of
	}
	of.users++
	a.mu.Unlock()
	left := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(a.by, who)
		}
	}
	leave = func() { <-of.places; left() }
	select { // a place that is there is taken, also where there is no time to wait
	case of.places <- struct{}{}:
		return leave, true
	default:
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	select {
	case of.places <- struct{}{}:
		return leave, true
	case <-ctx.Done():
		left()
		return nil, false
	}
}

// large reports whether the answer to a call is one of those that are counted. A watch is none: who takes no snapshot in some seconds is cut off.
func large(what access.Call, r *http.Request) bool {
	switch what {
	case access.ReadCluster:
		return r.URL.Path != watchPath
	case access.ReadTrace, access.ReadUsage, access.ReadOutput, access.ReadAudit:
		return true
	}
	return false
}

// serveOne makes an answer, a large one when it is the caller's turn.
func (s *server) serveOne(id Peer, what access.Call, w http.ResponseWriter, r *http.Request, serve func(Peer, http.ResponseWriter, *http.Request) error) error {
	if large(what, r) {
		leave, err := s.answers.enter(r.Context(), id.name())
		if err != nil {
			return err
		}
		defer leave()
	}
	return serve(id, w, r)
}

// Answering waits until the caller may have one more large answer made. It is over, and was read, with done.
func (a *Acting) Answering(ctx context.Context) (done func(), err error) {
	return a.s.answers.enter(ctx, a.id.name())
}

// Audience names those who see the same of the cluster as a caller.
func Audience(by fleet.Caller) fleet.Caller {
	if by.Admin {
		return fleet.Caller{Admin: true} // they all see everything
	}
	return by
}

// encodingsMost are kept at once. An administrator's is asked for most, and each is gone with the next snapshot.
const encodingsMost = 64

// encodings are the newest snapshot, and its JSON, for each audience that asked for it. Who still reads an older one has that.
type encodings struct {
	mu       sync.Mutex
	at       time.Time
	revision int64
	by       map[fleet.Caller]*encoding
}

type encoding struct {
	seeing sync.Once
	seen   fleet.Snapshot

	once sync.Once
	text []byte
	err  error
}

// visible is what a caller may see of a snapshot, which nobody may change.
func (e *encodings) visible(s fleet.Snapshot, by fleet.Caller) fleet.Snapshot {
	if by.Admin {
		return s
	}
	return e.find(s, Audience(by)).visible(s, by)
}

func (of *encoding) visible(s fleet.Snapshot, by fleet.Caller) fleet.Snapshot {
	of.seeing.Do(func() { of.seen = access.Visible(s, by) })
	return of.seen
}

// encoded is that as JSON.
func (e *encodings) encoded(s fleet.Snapshot, by fleet.Caller) ([]byte, error) {
	of := e.find(s, Audience(by))
	of.once.Do(func() { of.text, of.err = json.Marshal(of.visible(s, by)) })
	if of.err != nil {
		return nil, fmt.Errorf("encoding the cluster: %w", of.err)
	}
	return of.text, nil
}

// find gives the encoding of a snapshot, which may not be made yet. One that is not the newest is made for its caller alone.
func (e *encodings) find(s fleet.Snapshot, who fleet.Caller) *encoding {
	e.mu.Lock()
	defer e.mu.Unlock()
	if newer := s.At.After(e.at); newer {
		e.at, e.revision, e.by = s.At, s.Revision, map[fleet.Caller]*encoding{}
	}
	if s.At.IsZero() || !s.At.Equal(e.at) || s.Revision != e.revision {
		return &encoding{}
	}
	of := e.by[who]
	if of == nil {
		of = &encoding{}
		if len(e.by) >= encodingsMost {
			for one := range e.by { // whoever it is has it made again
				delete(e.by, one)
				break
			}
		}
		e.by[who] = of
	}
	return of
}

func (s *server) snapshot(id Peer, w http.ResponseWriter, r *http.Request) error {
	snap, err := s.Controller.Snapshot(r.Context())
	if err != nil {
		return err
	}
	text, err := s.encoded.encoded(snap, id.Caller)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	SendAnswer(w, text)
	return nil
}

// watch sends snapshots at most every watchEvery on average, and no faster than the watcher
// takes them.
func (s *server) watch(id Peer, w http.ResponseWriter, r *http.Request) error {
	conn, err := s.accept(w, r)
	if err != nil {
		return nil // accept has answered
	}
	defer s.sessions.Done()
	session := newSession[fleet.Snapshot](s.ctx, conn, sessionConfig[struct{}]{messageBytes: 1 << 10, out: 1, in: 1, peer: "the watcher"})
	defer session.Close()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	defer context.AfterFunc(session.ctx, cancel)()
	pace := rate.NewLimiter(rate.Every(watchEvery), watchAtOnce)
	for snap := range s.Controller.Watch(ctx) {
		if _, err := s.caller(r); err != nil { // it was let in long ago, and may have been removed
			session.End(err.Error())
			return nil
		}
		text, err := s.encoded.encoded(snap, id.Caller)
		if err != nil {
			session.End(err.Error())
			return nil
		}
		if session.sendText(ctx, text) != nil || pace.Wait(ctx) != nil {
			return nil
		}
	}
	return nil
}

// SendAnswer sends an answer as a whole. Its reader may be slow, but not for ever.
func SendAnswer(w http.ResponseWriter, text []byte) {
	if p, bounded := w.(patient); bounded {
		p.until = time.Now().Add(p.limit + time.Duration(len(text))*time.Second/slowest)
		w = p
	}
	_, _ = w.Write(text) // the reader may be gone
}
