// This file carries a program's streams between its guest and the controller. Nothing is
// lost or doubled, however often either side is cut off.

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
	pumpFirstPause = 50 * time.Millisecond // after a failed call; doubled up to pumpLastPause
	pumpLastPause  = time.Second
	fullPause      = 100 * time.Millisecond // while the program does not read its input
	pumpMost       = 1 << 20                // bytes that are sent at once, of a stream; fewer where the controller takes fewer
	pumpLeast      = 4 << 10
	emptyPause     = 10 * time.Millisecond // after a wait that brought no bytes
	// readTries: after the program's end, a guest that refuses this many reads in a row has
	// lost the output, and waiting does not help.
	readTries = 20
)

// Programs runs programs in a guest. Every call may be repeated with the same effect.
type Programs interface {
	// Launch starts a program, once for its ID.
	Launch(context.Context, fleet.Program) error
	// Wait returns when the program has ended.
	Wait(ctx context.Context, id string) (fleet.Exit, error)
	// Read gives output from offset on and waits for some. The guest forgets output before
	// offset. eof: nothing is at offset and never will be.
	Read(ctx context.Context, id, stream string, offset int64) (data []byte, eof bool, err error)
	// Write gives the program input that begins at offset and returns the next offset. Input
	// before the guest's own offset is ignored. eof closes the input.
	Write(ctx context.Context, id string, offset int64, data []byte, eof bool) (next int64, err error)
}

// outputSink is the controller's end of the streams.
type outputSink interface {
	WriteStream(ctx context.Context, at wire.Place, data []byte, eof bool) (next int64, err error)
	ReadStream(ctx context.Context, at wire.Place) (data []byte, eof bool, err error)
}

// Pump carries the streams of a job's program.
type Pump struct {
	Programs   Programs
	Controller outputSink
	Log        *slog.Logger
	Job        fleet.JobID // also the program's ID

	Incarnation int // of the job
}

// Launch starts the program, or finds it running.
func (p Pump) Launch(ctx context.Context, j fleet.Job) error {
	s := j.Spec
	return p.Programs.Launch(ctx, fleet.Program{
		ID: p.program(), Args: s.Args, Env: j.Environment(), Dir: s.Dir,
		MPI: j.MPI != "", Ranks: s.Ranks, Trace: s.Trace, Grow: s.Grow > 0,
	})
}

func (p Pump) program() string { return string(p.Job) }

// Carry carries the streams until the program has ended and all its output has arrived. have
// is how much of each output the controller has, as far as known. When it returns, nothing
// goes on in this process. After an error it may be called again.
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

// output carries one output stream until its end. The controller's offset decides where to
// continue, so nothing is lost or doubled. It is asked first, because another host's agent
// may have delivered more than the task says. A controller whose disk has lost data asks for
// output that the guest no longer has. Once the program has ended, a note in the stream
// tells its reader.
func (p Pump) output(ctx context.Context, stream string, offset int64, exited <-chan struct{}) error {
	at := wire.Place{Job: p.Job, Stream: stream, Offset: offset, Incarnation: p.Incarnation}
	err := p.deliver(ctx, &at, nil, false)
	wait, most := pumpFirstPause, pumpMost
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
		err = p.deliverPieces(ctx, &at, data, eof, &most)
		if err == nil && eof && at.Offset == end {
			return nil
		}
	}
	return err
}

// deliver gives the controller a piece of a stream, for as long as it takes: the program may
// wait, but its output is not lost. It sets at to the next offset.
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

// deliverPieces gives the controller what was read of a stream, until it takes nothing. Where it takes less than it was sent, the next pieces are
// as small as what it took: the rest would be sent in vain each time.
func (p Pump) deliverPieces(ctx context.Context, at *wire.Place, data []byte, eof bool, most *int) error {
	for {
		from, piece := at.Offset, data[:min(len(data), *most)]
		if err := p.deliver(ctx, at, piece, eof && len(piece) == len(data)); err != nil {
			return err
		}
		taken := int(at.Offset - from)
		if taken < len(piece) {
			*most = max(taken, pumpLeast)
		} else {
			*most = min(2**most, pumpMost)
		}
		if taken <= 0 || taken >= len(data) {
			return nil // it goes on from where the controller says
		}
		data = data[taken:]
	}
}

// input carries stdin until its end or the program's. The guest knows the next offset, so it
// is asked first.
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
		data, ended, rerr := p.Controller.ReadStream(ctx, wire.Place{Job: p.Job, Stream: fleet.Stdin, Offset: offset, Incarnation: p.Incarnation})
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

// feed gives the program all of data, waits while it takes none, and then closes the input
// if ended. next is the guest's next offset.
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
