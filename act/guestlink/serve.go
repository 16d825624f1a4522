package guestlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"pagurus/fleet"
)

// Server is what the guest's side carries out. Calls come side by side, and
// the same one may come more than once, also long after it was first made.
// Every context ends after 20 seconds at the latest; a call that then
// returns the context's error is made again by the host's side, so waiting is
// to be written as if it could last for ever.
type Server interface {
	Programs
	Setup(context.Context, fleet.Setup) error
	Signal(ctx context.Context, program string, s fleet.Signal) error
	Trace(context.Context, fleet.TraceQuery) ([]fleet.Trace, error)
	Cache(ctx context.Context, drop bool) (fleet.Cache, error)
	Topology(context.Context) (fleet.Topology, error)
	Shutdown(context.Context) error
}

// Programs is what the guest's side runs.
type Programs interface {
	Launch(context.Context, fleet.Program) error
	Wait(ctx context.Context, id string) (fleet.Exit, error)
	Read(ctx context.Context, id, stream string, offset int64) (data []byte, eof bool, err error)
	Write(ctx context.Context, id string, offset int64, data []byte, eof bool) (next int64, err error)
}

// maxCalls bounds the calls carried out at once; what comes beyond is dropped
// and comes again. A host's agent makes about five.
const maxCalls = 64

// Serve answers what comes over rw until reading or writing fails or ctx ends.
// It closes nothing; whoever ends ctx has to end a Read of rw that hangs.
func Serve(ctx context.Context, rw io.ReadWriter, server Server) error {
	return serve(ctx, rw, server, pollLimit)
}

func serve(ctx context.Context, rw io.ReadWriter, server Server, limit time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	l := &link{server: server, limit: limit, out: make(chan []byte, 4), calls: map[key]bool{}}
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	l.all = &all
	all.Go(func() {
		defer cancel()
		for {
			select {
			case frame := <-l.out:
				if _, err := rw.Write(frame); err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	var d decoder
	buffer := make([]byte, 16<<10)
	for ctx.Err() == nil {
		n, err := rw.Read(buffer)
		d.feed(buffer[:n], func(payload []byte) { l.beginRequest(ctx, payload) })
		if err != nil {
			return fmt.Errorf("reading from the guest link: %w", err)
		}
	}
	return ctx.Err()
}

// link is the guest's side of one stream.
type link struct {
	server Server
	limit  time.Duration
	out    chan []byte
	all    *sync.WaitGroup

	mu      sync.Mutex
	calls   map[key]bool // being carried out
	session uint64       // of the last request
	polls   context.Context
	end     context.CancelFunc // ends polls
}

// key tells the tries of a call from other calls.
type key struct{ session, id uint64 }

// beginRequest begins to carry out a request unless that is already being done.
func (l *link) beginRequest(ctx context.Context, payload []byte) {
	var r request
	if json.Unmarshal(payload, &r) != nil || r.Call == "" {
		return
	}
	k := key{r.Session, r.ID}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.polls == nil || l.session != r.Session {
		// A new client. The calls of the one before wait for nobody.
		if l.end != nil {
			l.end()
		}
		l.session = r.Session
		l.polls, l.end = context.WithCancel(ctx)
	}
	if l.calls[k] || len(l.calls) >= maxCalls {
		return
	}
	l.calls[k] = true
	polls := l.polls
	l.all.Go(func() {
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.calls, k)
		}()
		l.carryOut(ctx, polls, r)
	})
}

// carryOut makes the call and answers it. The call's context ends with polls,
// the answering with ctx.
func (l *link) carryOut(ctx, polls context.Context, r request) {
	late := time.AfterFunc(ackAfter, func() { l.answer(ctx, reply{Session: r.Session, ID: r.ID, Ack: true}) })
	defer late.Stop()
	limited, cancel := context.WithTimeout(polls, l.limit)
	defer cancel()
	res, err := l.call(limited, r)
	late.Stop()
	a := reply{Session: r.Session, ID: r.ID}
	switch {
	case err != nil && polls.Err() != nil:
		return // nobody waits for it
	case limited.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		// Time-outs of the network call themselves DeadlineExceeded, too; those
		// are failures to be told, not reasons to call again.
		a.Again = true
	case err != nil:
		a.Error = err.Error()
	default:
		if a.Body, err = json.Marshal(res); err != nil {
			a.Error = fmt.Sprintf("encoding the answer to %s: %v", r.Call, err)
		}
	}
	l.answer(ctx, a)
}

// answer sends a reply, waiting for the host to listen.
func (l *link) answer(ctx context.Context, a reply) {
	frame, err := encode(a)
	if err != nil {
		frame, err = encode(reply{Session: a.Session, ID: a.ID, Error: err.Error()})
	}
	if err != nil {
		return
	}
	select {
	case l.out <- frame:
	case <-ctx.Done():
	}
}

// call hands a request to the server. A bug in one call must not end the
// guest, whose first process this is.
func (l *link) call(ctx context.Context, r request) (res result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bug in the guest agent's %s: %v", r.Call, p)
		}
	}()
	switch r.Call {
	case callPing:
		return res, nil
	case callSetup:
		var s fleet.Setup
		if err := body(r, &s); err != nil {
			return res, err
		}
		return res, l.server.Setup(ctx, s)
	case callLaunch:
		var p fleet.Program
		if err := body(r, &p); err != nil {
			return res, err
		}
		return res, l.server.Launch(ctx, p)
	case callSignal:
		var s signalCall
		if err := body(r, &s); err != nil {
			return res, err
		}
		return res, l.server.Signal(ctx, s.Program, s.Signal)
	case callTrace:
		var t traceCall
		if err := body(r, &t); err != nil {
			return res, err
		}
		traces, err := l.server.Trace(ctx, t.Query)
		if err != nil {
			return res, err
		}
		return page(traces, t.First)
	case callCache:
		var c cacheCall
		if err := body(r, &c); err != nil {
			return res, err
		}
		cache, err := l.server.Cache(ctx, c.Drop)
		res.Cache = &cache
		return res, err
	case callTopology:
		seen, err := l.server.Topology(ctx)
		res.Topology = &seen
		return res, err
	case callShutdown:
		return res, l.server.Shutdown(ctx)
	}
	return l.streamCall(ctx, r)
}

// page gives as many traces from a place on as fit an answer. One that does not
// fit by itself is passed over.
func page(traces []fleet.Trace, first int) (res result, err error) {
	bytes := 0
	for i := max(first, 0); i < len(traces); i++ {
		raw, err := json.Marshal(traces[i])
		if err != nil {
			return res, fmt.Errorf("encoding the trace of rank %d: %w", traces[i].Rank, err)
		}
		if len(raw) > traceBytes {
			continue
		}
		if bytes += len(raw) + 1; bytes > traceBytes {
			res.Next = int64(i)
			break
		}
		res.Traces = append(res.Traces, raw)
	}
	return res, nil
}

func (l *link) streamCall(ctx context.Context, r request) (res result, err error) {
	var s stream
	if err := body(r, &s); err != nil {
		return res, err
	}
	switch r.Call {
	case callWait:
		res.Exit, err = l.server.Wait(ctx, s.Program)
	case callRead:
		res.Data, res.EOF, err = l.server.Read(ctx, s.Program, s.Name, s.Offset)
		if len(res.Data) > maxChunk {
			res.Data, res.EOF = res.Data[:maxChunk], false
		}
	case callWrite:
		res.Next, err = l.server.Write(ctx, s.Program, s.Offset, s.Data, s.EOF)
	default:
		err = fmt.Errorf("guest agent does not know the call %q; the image and the host's pagurus are of different versions", r.Call)
	}
	return res, err
}

func body(r request, v any) error {
	if err := json.Unmarshal(r.Body, v); err != nil {
		return fmt.Errorf("reading the call %s: %w", r.Call, err)
	}
	return nil
}
