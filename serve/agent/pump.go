package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"pagurus/fleet"
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

// pump carries one program's streams between its guest and the controller.
type pump struct {
	*Agent
	in      Inside
	job     fleet.JobID
	program string
}

// run launches the program, or finds it running, and carries its streams
// until it ended and all it wrote has arrived.
func (a *Agent) run(ctx context.Context, w *work) (fleet.Report, error) {
	g := w.seat.guest
	if w.link == nil {
		return fleet.Report{}, fmt.Errorf("guests of kind %q have no link to run a program by", w.task.Guest.Kind)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := w.link.Ended(g)
	here, err := a.here(ctx, w)
	if err != nil {
		return fleet.Report{}, vague{err}
	}
	if !here {
		return fleet.Report{}, fmt.Errorf("running job %s in guest %s on %s: %w", w.task.Job.ID, g, a.Host, ErrAbsent)
	}
	go func() {
		select {
		case <-ended: // hold says so; this ends without a word
			cancel()
		case <-ctx.Done():
		}
	}()
	p := pump{Agent: a, in: a.inside(w.seat, w.link), job: w.task.Job.ID, program: string(w.task.Job.ID)}
	exit, err := p.whole(ctx, w.task)
	if ctx.Err() != nil {
		return fleet.Report{}, errSilent
	}
	if err != nil {
		return fleet.Report{}, fmt.Errorf("running job %s in guest %s: %w", p.job, g, err)
	}
	return fleet.Report{Exit: &exit}, nil
}

// whole is a program from launch to exit. When it returns nothing of it goes
// on in the agent.
func (p pump) whole(ctx context.Context, t fleet.Task) (exit fleet.Exit, err error) {
	s := t.Job.Spec
	if err := p.in.Launch(ctx, fleet.Program{
		ID: p.program, Args: s.Args, Env: s.Env, Dir: s.Dir,
		MPI: t.Job.MPI != "", Ranks: s.Ranks, Trace: s.Trace,
	}); err != nil {
		return exit, err
	}
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
			lost[i] = p.guarded(func() error { return p.output(ctx, stream, t.Have[stream], exited) })
		})
	}
	input.Go(func() {
		_ = p.guarded(func() error { p.input(ctx); return nil }) // without input the program goes on
	})
	exit, err = p.in.Wait(ctx, p.program)
	if err != nil {
		return exit, vague{fmt.Errorf("waiting for the program: %w", err)}
	}
	close(exited)
	outputs.Wait()
	if err := errors.Join(lost[:]...); err != nil {
		return exit, vague{err}
	}
	return exit, nil
}

// guarded keeps a panic in one stream from ending the agent.
func (p pump) guarded(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			p.Log.Error("panic", "job", p.job, "panic", r, "stack", string(debug.Stack()))
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
func (p pump) output(ctx context.Context, stream string, offset int64, exited <-chan struct{}) error {
	at := wire.Place{Job: p.job, Stream: stream, Offset: offset}
	err := p.deliver(ctx, &at, nil, false)
	pause := pumpFirstPause
	for failures := 0; err == nil && ctx.Err() == nil; {
		data, eof, rerr := p.in.Read(ctx, p.program, stream, at.Offset)
		if rerr != nil {
			select {
			case <-exited:
				failures++
			default:
			}
			if failures > readTries {
				p.Log.Error("output is lost", "job", p.job, "stream", stream, "from", at.Offset, "cause", rerr)
				return p.deliver(ctx, &at, fmt.Appendf(nil, "\npagurus: the rest of %s is lost: %v\n", stream, rerr), true)
			}
			wait(ctx, pause)
			pause = min(2*pause, pumpLastPause)
			err = p.deliver(ctx, &at, nil, false)
			continue
		}
		failures, pause = 0, pumpFirstPause
		if len(data) == 0 && !eof {
			wait(ctx, emptyPause)
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
func (p pump) deliver(ctx context.Context, at *wire.Place, data []byte, eof bool) error {
	told := false
	for pause := pumpFirstPause; ; pause = min(2*pause, pumpLastPause) {
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
		wait(ctx, pause)
	}
}

// input carries stdin until its end or the program's. The guest says where to
// go on, so it is asked first.
func (p pump) input(ctx context.Context) {
	offset, err := p.feed(ctx, 0, nil, false)
	pause := pumpFirstPause
	for ctx.Err() == nil {
		if err != nil {
			wait(ctx, pause)
			pause = min(2*pause, pumpLastPause)
			offset, err = p.feed(ctx, 0, nil, false)
			continue
		}
		data, ended, rerr := p.Controller.ReadStream(ctx, wire.Place{Job: p.job, Stream: fleet.Stdin, Offset: offset})
		if err = rerr; err != nil {
			continue
		}
		pause = pumpFirstPause
		if len(data) == 0 && !ended {
			wait(ctx, emptyPause)
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
func (p pump) feed(ctx context.Context, offset int64, data []byte, ended bool) (next int64, err error) {
	end := offset + int64(len(data))
	for {
		next, err = p.in.Write(ctx, p.program, offset, data, false)
		if err != nil || next < offset {
			return next, err
		}
		taken := min(next-offset, int64(len(data)))
		offset, data = next, data[taken:]
		if len(data) == 0 {
			break
		}
		if taken == 0 {
			wait(ctx, fullPause)
		}
		if ctx.Err() != nil {
			return offset, ctx.Err()
		}
	}
	if !ended || offset != end {
		return offset, nil
	}
	return p.in.Write(ctx, p.program, offset, nil, true)
}
