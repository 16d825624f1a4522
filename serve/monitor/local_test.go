package monitor

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// watched is a monitor of a machine that nobody uses.
func watched(dir string) (*Monitor, *script) {
	idle, load := time.Hour, 0.0
	s := &script{sample: fleet.OwnerSample{Idle: &idle, NonGuestCPUs: &load}}
	return New(Config{Sensors: s, Guests: s, CPUs: 2, File: filepath.Join(dir, "owner.json"), LocalFile: filepath.Join(dir, "local.json"), Log: slog.New(slog.DiscardHandler)}), s
}

// A pause has the owner there until it is over or ended, also for the next agent, also where the machine has no owner.
func TestPause(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		run := func(do func(*Monitor)) {
			l, _ := watched(dir)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { l.Run(ctx); close(done) }()
			time.Sleep(2 * time.Second)
			do(l)
			stop()
			<-done
		}
		there := func(l *Monitor, want bool) {
			t.Helper()
			time.Sleep(2 * time.Second)
			if o := l.Seen(); o == nil || o.State.There() != want {
				t.Errorf("the owner: %+v", o)
			}
		}
		run(func(l *Monitor) {
			there(l, false)
			if err := l.Pause(time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			there(l, true)
			if a := l.Local(); !a.Pause || a.Until.IsZero() || a.Policy.Claimed {
				t.Errorf("%+v", a)
			}
		})
		run(func(l *Monitor) { // the next agent
			there(l, true)
			if err := l.Agree(fleet.OwnerPolicy{}); err != nil {
				t.Error(err)
			}
			there(l, true)
			time.Sleep(time.Hour)
			there(l, false)
			if a := l.Local(); a.Pause {
				t.Errorf("it is not over: %+v", a)
			}
			if err := l.Pause(time.Time{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Hour)
			there(l, true)
			if err := l.Resume(); err != nil {
				t.Fatal(err)
			}
			there(l, false)
			var says []string
			for _, e := range l.Local().History {
				says = append(says, e.Says)
			}
			for _, want := range []string{"the owner began a pause until", "the pause is over", "the owner ended it", "the owner came"} {
				if !strings.Contains(strings.Join(says, "; "), want) {
					t.Errorf("%q is not in %q", want, says)
				}
			}
		})
	})
}

// A policy that the owner chooses counts at once, and until the controller has it; later the controller's counts.
func TestChoose(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, _ := watched(dir)
		before, own, other := fleet.OwnerPolicy{Owned: true}, fleet.OwnerPolicy{Owned: true, Vacate: fleet.Suspend}, fleet.OwnerPolicy{Owned: true, Cap: 0.5}
		agree := func(p fleet.OwnerPolicy, want fleet.OwnerPolicy, unsent bool) {
			t.Helper()
			if err := l.Agree(p); err != nil {
				t.Fatal(err)
			}
			if a := l.Local(); a.Policy.Vacate != want.Vacate || a.Policy.Cap != want.Cap || a.Policy.Claimed != want.Claimed || a.Unsent != unsent {
				t.Errorf("%+v", a)
			}
		}
		agree(before, before, false)
		if err := l.Choose(own); err != nil {
			t.Fatal(err)
		}
		l.sample(t.Context())
		if o := l.Seen(); o.Wish == nil || o.Wish.Policy.Vacate != fleet.Suspend {
			t.Errorf("%+v", o)
		}
		claimed := own
		claimed.Claimed = true
		agree(fleet.OwnerPolicy{Owned: true, Claimed: true}, claimed, true) // the controller has not seen it yet
		agree(claimed, claimed, false)
		agree(other, other, false)
		if err := l.Choose(own); err != nil {
			t.Fatal(err)
		}
		agree(other, own, true)
		time.Sleep(wishStands)
		agree(other, other, false) // it was refused, or somebody chose another one since
	})
	if a := (*Monitor)(nil).Local(); a.Owner != nil {
		t.Errorf("%+v", a)
	}
	if err := (*Monitor)(nil).Pause(time.Time{}); err == nil {
		t.Error("a host without sensors has a pause")
	}
}
