package controller

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// request is one of a user's that changes the store.
func request(uid uint32, n int) fleet.Request {
	return fleet.Request{Verb: fleet.Submit, ID: fleet.RequestID(fmt.Sprintf("%d-%d", uid, n)), By: fleet.Caller{UID: uid, GID: 100}, Spec: &fleet.JobSpec{
		Args: []string{"./a.out"}, Dir: "/home/u", Ranks: 1, Guests: 1, Image: "openmpi", Machine: "machine", UID: uid, GID: 100, Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20},
	}}
}

// However many requests of a user wait, and however slow the store is: a host's lease is renewed, and another user is answered, after no
// more than the change that is being made and one of the first user's. Who has too many waiting is told when to ask again.
func TestOneUserKeepsNobodyWaiting(t *testing.T) {
	r := newRig(t)
	r.factsEvery = time.Hour
	f := r.facts("host1")
	f.Lease = fleet.Lease{Length: 10 * time.Second, Held: 10 * time.Second, Asked: 1}
	a, err := r.tryAttach(wire.Hello{Host: "host1", Facts: f}, fleet.Start)
	if err != nil {
		t.Fatal(err)
	}
	granted := func(n int64) func(wire.Down) bool {
		return func(d wire.Down) bool { return d.Lease != nil && d.Lease.Asked == n }
	}
	a.hears("its lease", granted(1))
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	r.store.mu.Lock()
	r.store.gate = gate
	asked := r.store.asked.Load()
	r.store.mu.Unlock()
	var all sync.WaitGroup
	type answer struct {
		fleet.Answer
		err error
	}
	ask := func(uid uint32, n int) <-chan answer {
		done := make(chan answer, 1)
		all.Go(func() {
			a, err := r.ctl.Ask(r.ctx, request(uid, n))
			done <- answer{a, err}
		})
		return done
	}
	wait := func(what string, is func() bool) {
		t.Helper()
		for ; !is(); time.Sleep(time.Millisecond) {
			if r.ctx.Err() != nil {
				t.Fatal("waited in vain for ", what)
			}
		}
	}
	ask(1009, 0)
	wait("the store to be asked", func() bool { return r.store.asked.Load() > asked })
	for i := range waitingEach {
		ask(1009, i+1)
	}
	wait("eve's requests to wait", func() bool { return r.ctl.turns.length() == waitingEach })
	if _, err := r.ctl.Ask(r.ctx, request(1009, waitingEach+1)); true {
		r.refused(err, http.StatusTooManyRequests, "requests of yours wait")
	}
	f.Lease.Asked = 2
	if err := a.session.Send(r.ctx, wire.Up{Facts: &f}); err != nil {
		t.Fatal(err)
	}
	ada := ask(1010, 0)
	wait("the host and ada to wait", func() bool { return r.ctl.turns.length() == waitingEach+2 })
	gate <- struct{}{} // the change that was being made
	a.hears("its lease", granted(2))
	open()
	all.Wait()
	if got := <-ada; got.err != nil || got.Job != "j3" {
		t.Errorf("ada's is %s of those that were made, after %d of eve's waited: %v", got.Job, waitingEach, got.err)
	}
}

// Who is gone before their turn leaves no work.
func TestNothingIsDoneForWhoIsGone(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	r.store.mu.Lock()
	r.store.gate = gate
	asked := r.store.asked.Load()
	r.store.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() { _, _ = r.ctl.Ask(r.ctx, request(1009, 0)) })
	for r.store.asked.Load() == asked {
		time.Sleep(time.Millisecond)
	}
	gone, leave := context.WithCancel(r.ctx)
	for i := range 20 {
		all.Go(func() { _, _ = r.ctl.Ask(gone, request(1009, i+1)) })
	}
	for r.ctl.turns.length() < 20 {
		time.Sleep(time.Millisecond)
	}
	leave()
	open()
	all.Wait()
	if _, err := r.ctl.Ask(r.ctx, request(1009, 50)); err != nil {
		t.Error(err)
	}
	if jobs := r.now().Jobs; len(jobs) != 2 {
		t.Errorf("there are %d jobs, and two were asked for by somebody who waited", len(jobs))
	}
}
