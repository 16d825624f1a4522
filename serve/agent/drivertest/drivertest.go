// Package drivertest is the contract that every driver of guests must pass:
// what agent.Driver and agent.Linker promise, tried out on two drivers that
// stand for two hosts, with guests that keep counters in the memory they dirty
// (the witness, in a folder of its own).
//
// It knows no mechanism: what differs from one to the other is in World. It is
// run by the drivers' own tests, against the real thing.
package drivertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/agent"
)

// Driver is a driver under test.
type Driver interface {
	agent.Driver
	agent.Linker
	Close() error
}

// World is what a driver's own test brings along. Hosts are numbered 0 and 1.
type World struct {
	Open     func(t *testing.T, host int) Driver                    // opens the host's driver, again after Close
	Task     func(guest fleet.GuestID) fleet.Task                   // for a guest that runs the witness
	Kill     func(t *testing.T, host int, guest fleet.GuestID)      // ends the guest's process from outside
	Left     func(t *testing.T, host int, g fleet.GuestID) []string // what is left on a host of a guest
	PostCopy func(t *testing.T, host int) bool                      // whether guests can come there by post-copy; nil: nowhere
}

// The limits of waiting: a guest boots in some five seconds under emulation on
// an idle machine.
const (
	caseLimit = 3 * time.Minute
	bootLimit = time.Minute
	askLimit  = 5 * time.Second
)

// Run tries the whole contract.
func Run(t *testing.T, w World) {
	type trying struct {
		name string
		try  func(*trial)
	}
	cases := []trying{
		{"absent", absent}, {"start", start}, {"receive", receive}, {"link", link}, {"exits", exits}, {"killed", killed},
		{"move", move}, {"move-reopened", moveReopened}, {"move-back", moveBack}, {"cancelled", cancelled},
		{"reverted", reverted}, {"target-dies", targetDies}, {"refused", refused},
	}
	if w.PostCopy != nil {
		cases = append(cases, trying{"post-copy", postCopy}, trying{"post-copy-source-dies", postCopyLosesItsSource}, trying{"post-copy-undone", postCopyUndone})
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseLimit)
			defer cancel()
			r := &trial{T: t, world: w, ctx: ctx, id: fleet.GuestID(fmt.Sprintf("t%dg0", i))}
			r.task = w.Task(r.id)
			r.task.Order = fleet.Order{Guest: r.id, Migration: fleet.MigrationID("m1." + string(r.id)), Gen: r.task.Guest.Gen}
			for host := range r.hosts {
				r.hosts[host] = w.Open(t, host)
			}
			defer r.clean()
			c.try(r)
		})
	}
}

// trial is one case with its two hosts and its guest.
type trial struct {
	*testing.T
	world World
	ctx   context.Context
	id    fleet.GuestID
	task  fleet.Task
	hosts [2]Driver
}

// clean checks that stopping the guest leaves nothing behind.
func (r *trial) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	for host, d := range r.hosts {
		if err := d.Stop(ctx, r.id); err != nil {
			r.Errorf("stop on host %d: %v", host, err)
		}
		for _, what := range r.world.Left(r.T, host, r.id) {
			r.Errorf("left behind on host %d: %s", host, what)
		}
		if err := d.Close(); err != nil {
			r.Errorf("close host %d: %v", host, err)
		}
	}
}

// must ends the case when a step fails.
func (r *trial) must(what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

// twice does a step that must lead to the same when it is done again.
func (r *trial) twice(what string, step func() error) {
	r.Helper()
	r.must(what, step())
	r.must(what+" again", step())
}

// reopen lets the host's agent die and come back.
func (r *trial) reopen(host int) Driver {
	r.Helper()
	r.must("close", r.hosts[host].Close())
	r.hosts[host] = r.world.Open(r.T, host)
	return r.hosts[host]
}

// kill ends the guest's process on a host from outside. Its death takes a while
// on a busy machine, and only then is a target dead.
func (r *trial) kill(host int) {
	r.Helper()
	ended := r.hosts[host].Ended(r.id)
	r.world.Kill(r.T, host, r.id)
	r.over(ended)
}

// state checks what a host says of the guest.
func (r *trial) state(host int, want fleet.RunState) fleet.GuestFacts {
	r.Helper()
	all, err := r.hosts[host].Inspect(r.ctx)
	r.must("inspect", err)
	facts, ok := all[r.id]
	if !ok {
		facts.Run = fleet.Absent
	}
	if facts.Run != want {
		r.Fatalf("on host %d the guest is %s, want %s", host, facts.Run, want)
	}
	return facts
}

// report is what the witness says of itself.
type report struct{ steps, passes, wrong int64 }

// ask asks the witness a question until it answers.
func (r *trial) ask(host int, question string) string {
	r.Helper()
	answer, err := Ask(r.ctx, r.hosts[host], r.id, question)
	r.must("ask the witness", err)
	return answer
}

// Ask asks the witness in a guest a question, again until it answers.
func Ask(ctx context.Context, d agent.Linker, id fleet.GuestID, question string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	for {
		answer, err := askOnce(ctx, d, id, question)
		if err == nil {
			return answer, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("no answer to %q: %w", question, err)
		case <-d.Ended(id):
			return "", fmt.Errorf("the guest ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func askOnce(ctx context.Context, d agent.Linker, id fleet.GuestID, question string) (string, error) {
	conn, err := d.Link(ctx, id)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	timer := time.AfterFunc(askLimit, func() { conn.Close() })
	defer timer.Stop()
	number := fmt.Sprint(questions.Add(1))
	// The empty line ends whatever an earlier question left half-said.
	if _, err := io.WriteString(conn, "\n"+number+" "+question+"\n"); err != nil {
		return "", err
	}
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", err
		}
		// Others were given up, and are answered late.
		if answer, ours := strings.CutPrefix(line, number+" "); ours {
			return strings.TrimSpace(answer), nil
		}
	}
}

// questions counts them all.
var questions atomic.Int64

// Healthy has the witness in a guest go round its memory twice: what is there must
// be as it left it, and then what it wrote.
func Healthy(t *testing.T, d agent.Linker, id fleet.GuestID) {
	t.Helper()
	for range 2 {
		text, err := Ask(t.Context(), d, id, "round")
		if err != nil {
			t.Fatal(err)
		}
		var now report
		if _, err := fmt.Sscan(text, &now.steps, &now.passes, &now.wrong); err != nil || now.wrong != 0 || now.passes < 1 {
			t.Fatalf("the witness says %q: %v", text, err)
		}
	}
}

// healthy checks that the witness lives, that its memory is as it left it and
// that it has not begun anew.
func (r *trial) healthy(host int, before report) report {
	r.Helper()
	return r.told(host, "report", before)
}

// boot starts the guest on a host and waits until the witness has been round
// its memory.
func (r *trial) boot(host int) report {
	r.Helper()
	r.must("start", r.hosts[host].Start(r.ctx, r.task))
	return r.round(host, report{})
}

// round has the witness check all of its memory, and then what it wrote there.
func (r *trial) round(host int, from report) report {
	r.Helper()
	for range 2 {
		now := r.told(host, "round", from)
		if now.passes <= from.passes {
			r.Fatalf("after a round the witness has made %d, and %d before", now.passes, from.passes)
		}
		from = now
	}
	return from
}

// told asks the witness how it is, and compares that with what it said before.
func (r *trial) told(host int, question string, before report) report {
	r.Helper()
	var now report
	text := r.ask(host, question)
	if _, err := fmt.Sscan(text, &now.steps, &now.passes, &now.wrong); err != nil {
		r.Fatalf("the witness says %q: %v", text, err)
	}
	if now.wrong != 0 {
		r.Fatalf("%d pages of the guest are not as it left them", now.wrong)
	}
	if now.steps < before.steps {
		r.Fatalf("the witness is at step %d, and was at %d before", now.steps, before.steps)
	}
	return now
}

// refuses checks that a step is refused for sure.
func (r *trial) refuses(what string, err error) {
	r.Helper()
	if err == nil {
		r.Fatalf("%s was not refused", what)
	}
	if errors.Is(err, agent.ErrUnsure) {
		r.Fatalf("%s was refused, but not for sure: %v", what, err)
	}
}

// over checks that the guest's end is told in time.
func (r *trial) over(ended <-chan struct{}) {
	r.Helper()
	select {
	case <-ended:
	case <-r.ctx.Done():
		r.Fatal("nobody tells that the guest has ended")
	}
}
