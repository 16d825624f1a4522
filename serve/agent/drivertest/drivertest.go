// Package drivertest is the contract that every driver must pass: what agent.Driver and
// agent.Linker promise. It runs against two drivers that stand for two hosts. The guests run
// the witness, which keeps counters in memory that it dirties.
//
// It knows no mechanism: all differences are in World. The drivers' own tests run it against
// the real mechanism.
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

// World is what a driver's own test provides. Hosts are numbered 0 and 1.
type World struct {
	Open     func(t *testing.T, host int) Driver                    // opens the host's driver, again after Close
	Task     func(guest fleet.GuestID) fleet.Task                   // for a guest that runs the witness
	Kill     func(t *testing.T, host int, guest fleet.GuestID)      // kills the guest's process from outside
	Left     func(t *testing.T, host int, g fleet.GuestID) []string // remains of a guest on a host
	PostCopy func(t *testing.T, host int) bool                      // whether guests can arrive by post-copy; nil: on no host
	Failed   func(t *testing.T)                                     // shows what guests have said when a case has failed, before they are removed; nil: nothing

	Checkpoints bool // the driver is an agent.Checkpointer, and this machine can do it
	Slow        int  // how many times longer a case may take than on a machine that is not emulated; 0: no longer
}

// trying is one case.
type trying struct {
	name string
	try  func(*trial)
}

// Time limits: an emulated guest boots in about five seconds on an idle machine.
const (
	caseLimit = 3 * time.Minute
	bootLimit = time.Minute
	askLimit  = 5 * time.Second
)

// patience is World.Slow of the driver that is tested.
var patience time.Duration = 1

// Run runs all cases.
func Run(t *testing.T, w World) {
	patience = time.Duration(max(1, w.Slow))
	cases := []trying{
		{"absent", absent}, {"start", start}, {"receive", receive}, {"link", link}, {"exits", exits}, {"killed", killed},
		{"move", move}, {"move-reopened", moveReopened}, {"move-back", moveBack}, {"cancelled", cancelled},
		{"reverted", reverted}, {"target-dies", targetDies}, {"refused", refused},
	}
	if w.PostCopy != nil {
		cases = append(cases, trying{"post-copy", postCopy}, trying{"post-copy-source-dies", postCopyLosesItsSource}, trying{"post-copy-undone", postCopyUndone})
	}
	if w.Checkpoints {
		cases = append(cases, checkpoints...)
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseLimit*patience)
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

// clean checks that Stop leaves nothing behind.
func (r *trial) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit*patience)
	defer cancel()
	if r.T.Failed() && r.world.Failed != nil {
		r.world.Failed(r.T)
	}
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

// twice runs a step two times; both must succeed.
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

// kill kills the guest's process on a host from outside and waits for its end, which takes a
// while on a busy machine.
func (r *trial) kill(host int) {
	r.Helper()
	ended := r.hosts[host].Ended(r.id)
	r.world.Kill(r.T, host, r.id)
	r.over(ended)
}

// state checks the guest's run state on a host.
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

// report is the witness's answer.
type report struct{ steps, passes, wrong int64 }

// ask asks the witness until it answers.
func (r *trial) ask(host int, question string) string {
	r.Helper()
	answer, err := Ask(r.ctx, r.hosts[host], r.id, question)
	r.must("ask the witness", err)
	return answer
}

// Ask asks the witness in a guest, again until it answers.
func Ask(ctx context.Context, d agent.Linker, id fleet.GuestID, question string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit*patience)
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
	timer := time.AfterFunc(askLimit*patience, func() { conn.Close() })
	defer timer.Stop()
	number := fmt.Sprint(questions.Add(1))
	// The empty line ends an incomplete earlier question.
	if _, err := io.WriteString(conn, "\n"+number+" "+question+"\n"); err != nil {
		return "", err
	}
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", err
		}
		// Late answers to abandoned questions are skipped.
		if answer, ours := strings.CutPrefix(line, number+" "); ours {
			return strings.TrimSpace(answer), nil
		}
	}
}

// questions numbers all questions.
var questions atomic.Int64

// Healthy has the witness go through its memory twice: it must find its earlier content, and
// then what it wrote in the first pass.
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

// healthy checks that the witness runs, that its memory is intact and that it has not
// restarted.
func (r *trial) healthy(host int, before report) report {
	r.Helper()
	return r.askWitness(host, "report", before)
}

// boot starts the guest on a host and waits until the witness has checked its memory.
func (r *trial) boot(host int) report {
	r.Helper()
	r.must("start", r.hosts[host].Start(r.ctx, r.task))
	return r.round(host, report{})
}

// round has the witness check all of its memory twice: its earlier content, and then what it
// wrote in the first pass.
func (r *trial) round(host int, from report) report {
	r.Helper()
	for range 2 {
		now := r.askWitness(host, "round", from)
		if now.passes <= from.passes {
			r.Fatalf("after a round the witness has made %d, and %d before", now.passes, from.passes)
		}
		from = now
	}
	return from
}

// askWitness asks the witness and compares the answer with an earlier one.
func (r *trial) askWitness(host int, question string, before report) report {
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

// refuses checks that a step certainly failed.
func (r *trial) refuses(what string, err error) {
	r.Helper()
	if err == nil {
		r.Fatalf("%s was not refused", what)
	}
	if errors.Is(err, agent.ErrUnsure) {
		r.Fatalf("%s was refused, but not for sure: %v", what, err)
	}
}

// over checks that the guest's end is reported in time.
func (r *trial) over(ended <-chan struct{}) {
	r.Helper()
	select {
	case <-ended:
	case <-r.ctx.Done():
		r.Fatal("the end of the guest is not reported")
	}
}
