package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
	"pagurus/serve/monitor"
	"pagurus/serve/wire"
)

func (d *memoryDriver) ReclaimMemory(ctx context.Context, g fleet.GuestID, _ int64) (int64, error) {
	return 4096, d.call(ctx, "reclaim-memory", g)
}

func (d *memoryDriver) ReturnMemory(ctx context.Context, g fleet.GuestID) error {
	return d.call(ctx, "return-memory", g)
}

func (d *memoryDriver) Suspend(ctx context.Context, g fleet.GuestID) error {
	if err := d.call(ctx, "suspend", g); err != nil {
		return err
	}
	d.put(g, fleet.Suspended)
	return nil
}

// desk is an owner's presence, and a driver of guests that allow reclaiming.
type desk struct{ busy atomic.Bool }

func (d *desk) Sample(context.Context, []string) fleet.OwnerSample {
	used := 0.0
	if d.busy.Load() {
		used = 1
	}
	return fleet.OwnerSample{NonGuestCPUs: &used}
}

func (*desk) Deprioritise(float64, bool) error { return nil }
func (*desk) Restore() error                   { return nil }

// owned starts a new agent on a host with an owner.
func (r *rig) owned() *desk {
	r.t.Helper()
	r.stop()
	out := &desk{}
	r.start()
	r.stop()
	r.a = New(r.a.Config)
	r.a.Owner = monitor.New(monitor.Config{Sensors: out, Guests: out, CPUs: 2,
		File: filepath.Join(r.dir, "owner.json"), Log: slog.New(slog.NewTextHandler(r.t.Output(), nil))})
	ctx, cancel := context.WithCancel(r.t.Context())
	over := make(chan struct{})
	go func() { defer close(over); _ = r.a.Run(ctx) }()
	r.stop = func() { cancel(); <-over }
	r.attach()
	return out
}

// wantSuspended sends a Wanted whose policy suspends guests while the owner is present.
func (r *rig) wantSuspended(still ...fleet.GuestID) {
	r.s.down <- wire.Down{Wanted: &fleet.Wanted{Cluster: "c1", Revision: 11, Guests: []fleet.GuestID{"j1g0", "j1g1"}, Suspended: still,
		Policy: fleet.OwnerPolicy{Owned: true, Vacate: fleet.Suspend, IdleAfter: 5 * time.Second}}}
}

func (r *rig) after(d time.Duration) { time.Sleep(d); synctest.Wait() }

// While the owner is present a guest gives memory and, if wanted, is suspended, with a short
// pulse now and then. When the owner leaves it gets everything back. An order finds it
// running.
func TestGuestsGiveMemoryAndAreSuspendedForTheOwner(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		owner := r.owned()
		r.wantSuspended("j1g0")
		r.do(task(fleet.Start, 1))
		r.send(task(fleet.Watch, 1))
		r.after(10 * time.Second)
		if run := r.d.guest("j1g0").run; run != fleet.Running || r.d.count("reclaim-memory j1g0") > 0 && r.facts().Owner.State == fleet.OwnerAbsent && r.facts().Guests["j1g0"].ReclaimedBytes > 0 {
			t.Fatalf("without an owner it is %s: %q", run, r.d.calls)
		}
		owner.busy.Store(true)
		r.after(4 * time.Second)
		f := r.facts().Guests["j1g0"]
		if r.d.guest("j1g0").run != fleet.Suspended || !f.Suspended || f.ReclaimedBytes != 4096 {
			t.Fatalf("the owner is there: %+v, %q", f, r.d.calls)
		}
		reclaimed, suspended := r.d.count("reclaim-memory j1g0"), r.d.count("suspend j1g0")
		r.after(5 * PulseEvery)
		if n := r.d.count("suspend j1g0") - suspended; n < 3 || n > 5 || r.d.count("reclaim-memory j1g0") != reclaimed {
			t.Errorf("in five minutes it breathed %d times, and was asked for memory %d times", n, r.d.count("reclaim-memory j1g0")-reclaimed)
		}
		if r.d.guest("j1g0").run != fleet.Suspended {
			t.Error("it runs on after a breath")
		}
		owner.busy.Store(false)
		r.after(15 * time.Second)
		f = r.facts().Guests["j1g0"]
		if r.d.guest("j1g0").run != fleet.Running || f.Suspended || f.ReclaimedBytes != 0 || r.d.count("return-memory j1g0") == 0 {
			t.Errorf("the owner has gone: %+v, %q", f, r.d.calls)
		}

		// Moved away while it is suspended.
		owner.busy.Store(true)
		r.after(4 * time.Second)
		if r.d.guest("j1g0").run != fleet.Suspended {
			t.Fatalf("the owner is there again: %q", r.d.calls)
		}
		var found fleet.RunState
		r.hook(func(call string) error {
			if call == "copy j1g0" {
				found = r.d.guests["j1g0"].run
			}
			return nil
		})
		r.do(task(fleet.Copy, 1))
		if found != fleet.Running {
			t.Errorf("it was copied while it was %s", found)
		}
	})
}

// A guest that cannot give memory does not; the host reports trouble and no other guest is
// affected. A guest that should not be suspended runs on.
func TestGuestsThatCannotGiveWay(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		owner := r.owned()
		r.wantSuspended()
		r.do(task(fleet.Start, 1))
		r.send(task(fleet.Watch, 1))
		r.hook(func(call string) error {
			if strings.HasPrefix(call, "reclaim-memory") {
				return errors.New("it has no balloon")
			}
			return nil
		})
		owner.busy.Store(true)
		r.after(30 * time.Second)
		if r.d.count("suspend j1g0") > 0 {
			t.Error("it is suspended without a request")
		}
		if f := r.facts(); !slices.ContainsFunc(f.Troubles, func(s string) bool { return strings.Contains(s, "no balloon") }) {
			t.Errorf("the host does not say so: %q", f.Troubles)
		}
		if n := r.d.count("reclaim-memory j1g0"); n < 1 || n > 3 {
			t.Errorf("it was asked %d times in half a minute", n)
		}
	})
}
