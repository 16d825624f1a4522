// This file carries the streams of one program between the guest it runs in and
// the controller, so that nothing is lost or doubled however often either is cut off.

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
)

const (
	pumpFirstPause = 50 * time.Millisecond // after a call that failed; doubled up to pumpLastPause
	pumpLastPause  = time.Second
	fullPause      = 100 * time.Millisecond // while the program reads nothing of its input
	emptyPause     = 10 * time.Millisecond  // after a wait for bytes that brought none
	// readTries: a guest that refuses to be read from this often in a row after
	// the program has ended has lost the output, and no patience brings it back.
	readTries = 20
)

// Programs is what runs in a guest. Every call may be repeated and means the same.
type Programs interface {
	// Launch starts a program, once for its ID.
	Launch(context.Context, fleet.Program) error
	// Wait returns when the program ended.
	Wait(ctx context.Context, id string) (fleet.Exit, error)
	// Read gives output from offset on, waiting for some; the guest forgets
	// what is before offset. eof: there is nothing at offset and never will be.
	Read(ctx context.Context, id, stream string, offset int64) (data []byte, eof bool, err error)
	// Write gives the program input that begins at offset and says where to go
	// on; input before the guest's own offset is passed over. eof closes it.
	Write(ctx context.Context, id string, offset int64, data []byte, eof bool) (next int64, err error)
}

// outputSink has the streams' other ends.
type outputSink interface {
	WriteStream(ctx context.Context, at wire.Place, data []byte, eof bool) (next int64, err error)
	ReadStream(ctx context.Context, at wire.Place) (data []byte, eof bool, err error)
}

// Pump carries the streams of a job's program.
type Pump struct {
	Programs   Programs
	Controller outputSink
	Log        *slog.Logger
	Job        fleet.JobID // the program has its name
}

// Launch starts the program, or finds it running.
func (p Pump) Launch(ctx context.Context, j fleet.Job) error {
	s := j.Spec
	return p.Programs.Launch(ctx, fleet.Program{
		ID: p.program(), Args: s.Args, Env: s.Env, Dir: s.Dir,
		MPI: j.MPI != "", Ranks: s.Ranks, Trace: s.Trace,
	})
}

func (p Pump) program() string { return string(p.Job) }

// Carry carries its streams until it has ended and all it wrote has arrived. have
// is how much of each output the controller has, as far as is known. When it
// returns nothing goes on in this process; after an error it may be called again.
func (p Pump) Carry(ctx context.Context, have map[string]int64) (exit fleet.Exit, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var outputs, input sync.WaitGroup
	defer func() {
		cancel()
		outputs.Wait()
		input.Wait()
	}()
	var lost [2]error
	exited := make(chan struct{})
	for i, stream := range []string{fleet.Stdout, fleet.Stderr} {
		outputs.Go(func() {
			lost[i] = p.guarded(func() error { return p.output(ctx, stream, have[stream], exited) })
		})
	}
	input.Go(func() {
		_ = p.guarded(func() error { p.input(ctx); return nil }) // without input the program goes on
	})
	exit, err = p.Programs.Wait(ctx, p.program())
	if err != nil {
		return exit, fmt.Errorf("waiting for the program: %w", err)
	}
	close(exited)
	outputs.Wait()
	return exit, errors.Join(lost[:]...)
}

// guarded keeps a panic in one stream from ending the agent.
func (p Pump) guarded(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			p.Log.Error("panic", "job", p.Job, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the agent has a bug: %v", r)
		}
	}()
	return do()
}

// output carries one output stream until its end. What the controller has
// decides where to go on, so nothing is lost or doubled however often either
// side was cut off; it is asked first, since what the task says it has may be
// older than what another host's agent brought it meanwhile. A controller whose
// disk lost what it had taken asks for what the guest no longer has: once the
// program has ended, its reader is told.
func (p Pump) output(ctx context.Context, stream string, offset int64, exited <-chan struct{}) error {
	at := wire.Place{Job: p.Job, Stream: stream, Offset: offset}
	err := p.deliver(ctx, &at, nil, false)
	wait := pumpFirstPause
	for failures := 0; err == nil && ctx.Err() == nil; {
		data, eof, rerr := p.Programs.Read(ctx, p.program(), stream, at.Offset)
		if rerr != nil {
			select {
			case <-exited:
				failures++
			default:
			}
			if failures > readTries {
				p.Log.Error("output is lost", "job", p.Job, "stream", stream, "from", at.Offset, "cause", rerr)
				return p.deliver(ctx, &at, fmt.Appendf(nil, "\npagurus: the rest of %s is lost: %v\n", stream, rerr), true)
			}
			_ = pause.For(ctx, wait)
			wait = min(2*wait, pumpLastPause)
			err = p.deliver(ctx, &at, nil, false)
			continue
		}
		failures, wait = 0, pumpFirstPause
		if len(data) == 0 && !eof {
			_ = pause.For(ctx, emptyPause)
			continue
		}
		end := at.Offset + int64(len(data))
		err = p.deliver(ctx, &at, data, eof)
		if err == nil && eof && at.Offset == end {
			return nil
		}
	}
	return err
}

// deliver gives the controller a piece of a stream, for as long as it takes:
// the program waits rather than that its output is lost. at becomes where to
// go on.
func (p Pump) deliver(ctx context.Context, at *wire.Place, data []byte, eof bool) error {
	told := false
	for wait := pumpFirstPause; ; wait = min(2*wait, pumpLastPause) {
		next, err := p.Controller.WriteStream(ctx, *at, data, eof)
		if err == nil {
			at.Offset = next
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if !told {
			told = true
			p.Log.Warn("output waits for the controller", "job", at.Job, "stream", at.Stream, "cause", err)
		}
		_ = pause.For(ctx, wait)
	}
}

// input carries stdin until its end or the program's. The guest says where to
// go on, so it is asked first.
func (p Pump) input(ctx context.Context) {
	offset, err := p.feed(ctx, 0, nil, false)
	wait := pumpFirstPause
	for ctx.Err() == nil {
		if err != nil {
			_ = pause.For(ctx, wait)
			wait = min(2*wait, pumpLastPause)
			offset, err = p.feed(ctx, 0, nil, false)
			continue
		}
		data, ended, rerr := p.Controller.ReadStream(ctx, wire.Place{Job: p.Job, Stream: fleet.Stdin, Offset: offset})
		if err = rerr; err != nil {
			continue
		}
		wait = pumpFirstPause
		if len(data) == 0 && !ended {
			_ = pause.For(ctx, emptyPause)
			continue
		}
		end := offset + int64(len(data))
		offset, err = p.feed(ctx, offset, data, ended)
		if err == nil && ended && offset == end {
			return
		}
	}
}

// feed gives the program all of data, waiting while it takes none, and after
// that the end if there is one. next is where the guest wants to go on.
func (p Pump) feed(ctx context.Context, offset int64, data []byte, ended bool) (next int64, err error) {
	end := offset + int64(len(data))
	for {
		next, err = p.Programs.Write(ctx, p.program(), offset, data, false)
		if err != nil || next < offset {
			return next, err
		}
		taken := min(next-offset, int64(len(data)))
		offset, data = next, data[taken:]
		if len(data) == 0 {
			break
		}
		if taken == 0 {
			_ = pause.For(ctx, fullPause)
		}
		if ctx.Err() != nil {
			return offset, ctx.Err()
		}
	}
	if !ended || offset != end {
		return offset, nil
	}
	return p.Programs.Write(ctx, p.program(), offset, nil, true)
}
