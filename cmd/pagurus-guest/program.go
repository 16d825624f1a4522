package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// program is one launched program. It stays known after its end.
type program struct {
	in       input
	out, err output
	run      *piped

	mu    sync.Mutex
	asked time.Time   // when it was told to end; zero: not yet
	until time.Time   // when it will be killed
	last  *time.Timer // until then
}

// piped is a process whose streams end here.
type piped struct {
	stdin, stdout, stderr *os.File
	pid                   int
	ended                 chan struct{} // closed when exit is valid
	exit                  fleet.Exit
}

// launchPiped starts a command with streams of its own.
// After an error nothing runs.
func launchPiped(c *children, cmd command) (*piped, error) {
	var ours, theirs [3]*os.File
	closeAll := func(files [3]*os.File) {
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}
	defer func() { closeAll(theirs) }()
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(ours)
			return nil, fmt.Errorf("making the program's streams: %w", err)
		}
		ours[i], theirs[i] = r, w
		if i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	cmd.files = theirs
	pid, exit, err := c.start(cmd)
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	p := &piped{stdin: ours[0], stdout: ours[1], stderr: ours[2], pid: pid, ended: make(chan struct{})}
	go func() {
		p.exit = <-exit
		close(p.ended)
	}()
	return p, nil
}

// launch starts a command whose streams are kept for the host.
// After an error nothing runs.
func launch(c *children, cmd command) (*program, error) {
	run, err := launchPiped(c, cmd)
	if err != nil {
		return nil, err
	}
	p := &program{run: run}
	go p.in.drain(run.stdin)
	go p.out.fill(run.stdout, run.ended)
	go p.err.fill(run.stderr, run.ended)
	go func() {
		<-run.ended
		p.in.close()
	}()
	return p, nil
}

func (p *program) wait(ctx context.Context) (fleet.Exit, error) {
	select {
	case <-p.run.ended:
		return p.run.exit, nil
	case <-ctx.Done():
		return fleet.Exit{}, ctx.Err()
	}
}

func (p *program) over() bool {
	select {
	case <-p.run.ended:
		return true
	default:
		return false
	}
}

// endAfter calls kill when a program's grace is over, counted from the first call; a later
// call can only shorten it.
func (p *program) endAfter(grace time.Duration, kill func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked.IsZero() {
		p.asked = time.Now()
		p.until = p.asked.Add(grace)
		p.last = time.AfterFunc(grace, kill)
		go func() {
			<-p.run.ended
			p.mu.Lock()
			defer p.mu.Unlock()
			p.last.Stop()
		}()
		return
	}
	if until := p.asked.Add(grace); until.Before(p.until) && p.last.Stop() {
		p.until = until
		p.last.Reset(time.Until(until))
	}
}

// stream gives an output stream by its name.
func (p *program) stream(name string) (*output, error) {
	switch name {
	case fleet.Stdout:
		return &p.out, nil
	case fleet.Stderr:
		return &p.err, nil
	}
	return nil, fmt.Errorf("a program has no output stream %q", name)
}

// failed gives a program that never ran: its stderr has a sentence about the failure, where
// users look for it.
func failed(code int, sentence string) *program {
	p := &program{run: &piped{ended: make(chan struct{}), exit: fleet.Exit{Code: code}}}
	p.err.Write([]byte("pagurus: " + sentence + "\n"))
	p.out.close()
	p.err.close()
	p.in.close()
	close(p.run.ended)
	return p
}

// end sends the program a signal that ends it.
func (p *program) end(c *children, sig unix.Signal) {
	if p.run.pid != 0 {
		c.signal(p.run.pid, sig)
	}
}
