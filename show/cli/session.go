package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

const (
	// stopPatience bounds how long `run` waits after the program's end for its guests to be
	// gone, so that the next `run` finds their room free.
	stopPatience = 15 * time.Second
	// drainPatience bounds the wait for output after the job has ended.
	drainPatience = 30 * time.Second
	// answerPatience bounds the wait for the controller's answer after Ctrl-C.
	answerPatience = 3 * time.Second
	// chunkBytes is the most standard input sent at once.
	chunkBytes = 64 << 10
	// foregroundPoll is how often a background job checks whether it owns the terminal
	// again.
	foregroundPoll = 500 * time.Millisecond
)

// session is one command that stays with one job: its streams, its state, and the signals
// that end it or go to the job.
type session struct {
	*app
	client  *wire.Client
	job     fleet.JobID
	verbose bool // status lines on standard error
	outage  *outage

	mu        sync.Mutex
	cancelled os.Signal // the signal that cancelled the job
	lost      error     // why output could not be written
}

// listen catches the signals that would end this process and leave the job running: the
// user's, that of a closed standard output, and those for the job.
func listen() chan os.Signal {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	signal.Notify(signals, passedOn...)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals
}

// stay carries the streams until the job ends and returns its exit.
func (s *session) stay(ctx context.Context, signals <-chan os.Signal) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	go s.heed(ctx, signals)
	go s.feed(ctx)

	var streams sync.WaitGroup
	streamed := make(chan struct{})
	for name, to := range map[string]io.Writer{fleet.Stdout: s.Out, fleet.Stderr: s.Err} {
		streams.Go(func() {
			err := s.copy(ctx, name, to)
			s.noteError(err)
			if errors.As(err, new(unwritten)) {
				s.cancel(ctx) // the output has no reader: cancel, as mpirun does
			}
		})
	}
	go func() { streams.Wait(); close(streamed) }()

	end, err := s.end(ctx)
	if err != nil {
		return err
	}
	select {
	case <-streamed:
	case <-time.After(drainPatience):
		s.noteError(errors.New("the rest of the output did not arrive"))
	}
	return s.verdict(end)
}

// noteError keeps the first error of writing output.
func (s *session) noteError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil && err != nil && !errors.Is(err, context.Canceled) {
		s.lost = err
	}
}

// heed cancels the job on the first signal and exits on the second.
func (s *session) heed(ctx context.Context, signals <-chan os.Signal) {
	asked := false
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if sig == syscall.SIGPIPE {
				continue // the failed write reports itself
			}
			if slices.Contains(passedOn, sig) {
				go s.pass(ctx, sig)
				continue
			}
			if asked {
				_, _ = fmt.Fprintf(s.Err, "pagurus: no longer waiting for %s: `pagurus job ls` shows its state\n", s.job)
				os.Exit(exitInterrupted)
			}
			asked = true
			s.mu.Lock()
			s.cancelled = sig
			s.mu.Unlock()
			if s.verbose {
				_, _ = fmt.Fprintf(s.Err, "pagurus: cancelling %s; again to leave at once\n", s.job)
			}
			go s.cancel(ctx)
		}
	}
}

// cancel requests cancellation until the controller has answered.
func (s *session) cancel(ctx context.Context) {
	for {
		_, err := s.client.Ask(ctx, fleet.Request{ID: fleet.RequestID("cancel-" + string(s.job) + "-by-run"), Verb: fleet.Cancel, Job: s.job})
		if err == nil || s.outage.Wait(ctx, err) != nil {
			return
		}
	}
}

// unwritten: this side could not write a job's output.
type unwritten struct {
	stream string
	err    error
}

func (u unwritten) Error() string { return fmt.Sprintf("writing the job's %s: %v", u.stream, u.err) }
func (u unwritten) Unwrap() error { return u.err }

// copy writes an output stream of the job as it comes, every byte once. The caller decides
// what a write error means for the job.
func (s *session) copy(ctx context.Context, stream string, to io.Writer) error {
	var offset int64
	for {
		data, ended, err := s.client.ReadStream(ctx, wire.Place{Job: s.job, Stream: stream, Offset: offset})
		if err != nil {
			if err := s.outage.Wait(ctx, err); err != nil {
				return err
			}
			continue
		}
		s.outage.Over()
		if len(data) == 0 && ended {
			return nil
		}
		if _, err := to.Write(data); err != nil {
			return unwritten{stream, err}
		}
		offset += int64(len(data))
	}
}

// end follows the job to its end. It returns earlier, with the result known, if guests end
// slowly.
func (s *session) end(ctx context.Context) (fleet.Job, error) {
	var last fleet.Job
	line, known := "", false
	limited, stop := context.WithCancel(ctx)
	defer stop()
	err := followClient(limited, s.client, s.outage, func(c view.Cluster) (bool, error) {
		j, ok := c.Job(s.job)
		if !ok {
			if known && last.Result != "" {
				return true, nil // ended and already forgotten
			}
			return true, fmt.Errorf("the controller no longer knows %s", s.job)
		}
		if j.Result != "" && !j.Requeue && !known {
			known = true
			time.AfterFunc(stopPatience, stop)
		}
		last = j.Job
		if now := c.Line(j); s.verbose && now != line {
			line = now
			_, _ = fmt.Fprintln(s.Err, "pagurus: "+now)
		}
		return j.State == fleet.JobEnded, nil
	})
	if err != nil && known && ctx.Err() == nil {
		return last, nil
	}
	return last, err
}

// verdict turns the job's end into this process's exit.
func (s *session) verdict(j fleet.Job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil && errors.Is(s.lost, unix.EPIPE) {
		return Exit{Code: 128 + int(unix.SIGPIPE)}
	}
	if s.cancelled != nil && j.Result != fleet.JobFinished {
		return Exit{Code: exitInterrupted}
	}
	if s.lost != nil {
		return Exit{Code: exitOwn, Err: fmt.Errorf("%s: %w: `pagurus logs %s` prints the kept output", s.job, s.lost, s.job)}
	}
	return exitOf(j)
}

// exitOf is the exit of an ended job.
func exitOf(j fleet.Job) error {
	switch {
	case j.Result == fleet.JobFinished && j.Exit != nil && j.Exit.Code == 0:
		return nil
	case j.Result == fleet.JobFinished && j.Exit != nil:
		return Exit{Code: j.Exit.Code}
	}
	return Exit{Code: exitOwn, Err: fmt.Errorf("%s: %s", j.ID, view.Verdict(j))}
}

// feed sends this process's standard input to the job.
func (s *session) feed(ctx context.Context) {
	var offset int64
	buffer := make([]byte, chunkBytes)
	for ctx.Err() == nil {
		if !s.awaitForeground(ctx) {
			return
		}
		n, err := s.In.Read(buffer)
		if errors.Is(err, unix.EIO) {
			continue // lost the terminal between the check and the read
		}
		offset = s.give(ctx, offset, buffer[:n], err != nil)
		if err != nil {
			return
		}
	}
}

func (s *session) input(offset int64) wire.Place {
	return wire.Place{Job: s.job, Stream: fleet.Stdin, Offset: offset}
}

// give sends input until the controller has all of it. It returns the offset after it.
func (s *session) give(ctx context.Context, offset int64, data []byte, eof bool) int64 {
	end := offset + int64(len(data))
	for {
		next, err := s.client.WriteStream(ctx, s.input(offset), data, eof)
		if err != nil {
			if s.outage.Wait(ctx, err) != nil {
				return end // the job has ended, or the controller is away: drop the input
			}
			continue
		}
		s.outage.Over()
		if next >= end {
			return end
		}
		if next > offset {
			data, offset = data[next-offset:], next
		}
	}
}

// awaitForeground waits while standard input is a terminal of another process group: reading
// it would stop this process. False: ctx ended.
func (s *session) awaitForeground(ctx context.Context) bool {
	f, ok := s.In.(*os.File)
	if !ok || !terminal(f) {
		return true
	}
	for {
		owner, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
		if err != nil || owner == unix.Getpgrp() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(foregroundPoll):
		}
	}
}

// closeInput closes a job's standard input.
func (a *app) closeInput(ctx context.Context, job fleet.JobID) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	if _, err = c.WriteStream(ctx, wire.Place{Job: job, Stream: fleet.Stdin}, nil, true); refused(err) {
		return nil // it has already ended
	}
	return err
}
