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

// Server carries out calls on the guest's side. Calls are concurrent, and one call may
// come repeatedly, also much later. Every context ends after 20 seconds at most. If a
// call then returns the context's error, the host's side repeats it, so code can wait as
// if without a limit.
type Server interface {
	Programs
	Setup(context.Context, fleet.Setup) error
	Signal(ctx context.Context, program string, s fleet.Signal) error
	Trace(context.Context, fleet.TraceQuery) ([]fleet.Trace, error)
	Cache(context.Context, fleet.Spare) (fleet.Cache, error)
	Topology(context.Context) (fleet.Topology, error)
	Shutdown(context.Context) error
}

// FileLister is a Server that tells which of its job's files are open for writing.
type FileLister interface {
	OpenFiles(context.Context) (fleet.OpenFiles, error)
}

// openFiles asks the server for its open files, as many as fit an answer.
func openFiles(ctx context.Context, s Server) (all fleet.OpenFiles, err error) {
	lister, can := s.(FileLister)
	if !can {
		return all, errors.New("the guest agent does not tell which files are open")
	}
	found, err := lister.OpenFiles(ctx)
	bytes := 0
	fits := func(v any) bool {
		raw, err := json.Marshal(v)
		bytes += len(raw) + 1
		return err == nil && bytes < filesBytes
	}
	for i, f := range found.Files {
		if !fits(f) {
			left := fmt.Sprintf("%d more files are open for writing, and may keep what is written to them after the checkpoint", len(found.Files)-i)
			return fleet.OpenFiles{Files: all.Files, Amiss: []string{left}}, err
		}
		all.Files = append(all.Files, f)
	}
	for _, a := range found.Amiss {
		if fits(a) {
			all.Amiss = append(all.Amiss, a)
		}
	}
	return all, err
}

// Programs runs programs on the guest's side.
type Programs interface {
	Launch(context.Context, fleet.Program) error
	Wait(ctx context.Context, id string) (fleet.Exit, error)
	Read(ctx context.Context, id, stream string, offset int64) (data []byte, eof bool, err error)
	Write(ctx context.Context, id string, offset int64, data []byte, eof bool) (next int64, err error)
}

// maxCalls limits concurrent calls; further ones are dropped and repeated. A host's agent
// makes about five.
const maxCalls = 64

// Serve answers calls on rw until reading or writing fails or ctx ends. It closes
// nothing; who ends ctx must also end a blocked Read of rw.
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
	calls   map[key]bool // in progress
	session uint64       // of the last request
	polls   context.Context
	end     context.CancelFunc // ends polls
}

// key identifies a call across its tries.
type key struct{ session, id uint64 }

// beginRequest starts a request unless it is already in progress.
func (l *link) beginRequest(ctx context.Context, payload []byte) {
	var r request
	if json.Unmarshal(payload, &r) != nil || r.Call == "" {
		return
	}
	k := key{r.Session, r.ID}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.polls == nil || l.session != r.Session {
		// A new client. The calls of the last one are obsolete.
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

// carryOut makes the call and answers it. The call's context ends with polls, the
// answer's with ctx.
func (l *link) carryOut(ctx, polls context.Context, r request) {
	late := time.AfterFunc(ackAfter, func() { l.answer(ctx, reply{Protocol: fleet.Protocol(), Session: r.Session, ID: r.ID, Ack: true}) })
	defer late.Stop()
	limited, cancel := context.WithTimeout(polls, l.limit)
	defer cancel()
	res, err := l.call(limited, r)
	late.Stop()
	a := reply{Protocol: fleet.Protocol(), Session: r.Session, ID: r.ID}
	switch {
	case err != nil && polls.Err() != nil:
		return // it is obsolete
	case limited.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		// Network timeouts are also DeadlineExceeded; those are failures to report, not
		// reasons to repeat.
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

// answer sends a reply, waiting for the host to read.
func (l *link) answer(ctx context.Context, a reply) {
	frame, err := encode(a)
	if err != nil {
		frame, err = encode(reply{Protocol: a.Protocol, Session: a.Session, ID: a.ID, Error: err.Error()})
	}
	if err != nil {
		return
	}
	select {
	case l.out <- frame:
	case <-ctx.Done():
	}
}

// call passes a request to the server. A bug in one call must not end the guest, whose
// first process this is.
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
		var c fleet.Spare
		if err := body(r, &c); err != nil {
			return res, err
		}
		cache, err := l.server.Cache(ctx, c)
		res.Cache = &cache
		return res, err
	case callTopology:
		seen, err := l.server.Topology(ctx)
		res.Topology = &seen
		return res, err
	case callFiles:
		files, err := openFiles(ctx, l.server)
		res.Files = &files
		return res, err
	case callSaid, callAnswer, callAwait:
		return l.steerCall(ctx, r)
	case callShutdown:
		return res, l.server.Shutdown(ctx)
	}
	return l.streamCall(ctx, r)
}

// page returns as many traces from a position on as fit an answer. It skips one that is
// too large alone.
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
		err = fmt.Errorf("the guest agent does not know the call %q: it speaks version %d of the protocol and its host's agent version %d; guests that start from now on know it", r.Call, fleet.Protocol(), r.Protocol)
	}
	return res, err
}

func body(r request, v any) error {
	if err := json.Unmarshal(r.Body, v); err != nil {
		return fmt.Errorf("reading the call %s: %w", r.Call, err)
	}
	return nil
}
