package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/monitor"
	"pagurus/serve/wire"
)

// idle is a machine that nobody uses.
type idle struct{}

func (idle) Sample(context.Context, []string) fleet.OwnerSample {
	at := time.Hour
	return fleet.OwnerSample{Idle: &at}
}
func (idle) Deprioritise(float64, bool) error { return nil }
func (idle) Restore() error                   { return nil }

// The owner's socket is opened again when it, or its folder, was removed, and as soon as it can be.
func TestOwnerSocketComesBack(t *testing.T) {
	dir := t.TempDir()
	folder, log := filepath.Join(dir, "run"), slog.New(slog.DiscardHandler)
	if err := os.WriteFile(folder, nil, 0o600); err != nil { // no folder can be there
		t.Fatal(err)
	}
	a := New(Config{Host: "office3", Run: dir, Log: log, OwnerSocket: OwnerSocket{Path: filepath.Join(folder, "owner.sock"), Owns: func(uint32) bool { return true }}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.serveOwner(ctx); close(done) }()
	defer func() { stop(); <-done }()
	troubled := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.troubles["the owner's socket"] != ""
	}
	answers := func() bool {
		_, err := wire.AskAgent(t.Context(), a.OwnerSocket.Path, fleet.OwnerAsk{Verb: fleet.OwnerStatus})
		return err == nil
	}
	testkit.Until(t, 10*time.Second, "it says that it cannot listen", troubled)
	for _, remove := range []string{folder, a.OwnerSocket.Path, folder} {
		if err := os.RemoveAll(remove); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, 10*time.Second, "the agent listens again after "+remove+" was removed", answers)
	}
	if troubled() {
		t.Error("it still says that it cannot listen")
	}
}

// The owner asks the agent by its socket, as who the kernel says they are; nobody else does.
func TestOwnerAsks(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	a := New(Config{Host: "office3", Run: dir, Log: log, OwnerSocket: OwnerSocket{Path: filepath.Join(dir, "owner.sock"), Owns: func(uid uint32) bool { return uid == uint32(os.Getuid()) }},
		Owner: monitor.New(monitor.Config{Sensors: idle{}, Guests: idle{}, CPUs: 1, File: filepath.Join(dir, "owner.json"), LocalFile: filepath.Join(dir, "local.json"), Log: log})})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.serveOwner(ctx); close(done) }()
	defer func() { stop(); <-done }()
	ask := func(q fleet.OwnerAsk) (fleet.OwnerAnswer, error) {
		return wire.AskAgent(t.Context(), a.OwnerSocket.Path, q)
	}
	testkit.Until(t, 10*time.Second, "the agent listens", func() bool { _, err := ask(fleet.OwnerAsk{Verb: fleet.OwnerStatus}); return err == nil })
	got, err := ask(fleet.OwnerAsk{Verb: fleet.OwnerPause, For: time.Hour})
	if err != nil || !got.Pause || got.Host != "office3" || !got.Alone || got.Until.Sub(got.At) < 59*time.Minute || got.History != nil {
		t.Errorf("%+v %v", got, err)
	}
	got, err = ask(fleet.OwnerAsk{Verb: fleet.OwnerAgrees, Policy: &fleet.OwnerPolicy{Owned: true, Cap: 0.5}})
	if err != nil || got.Policy.Cap != 0.5 || !got.Unsent {
		t.Errorf("%+v %v", got, err)
	}
	if got, err = ask(fleet.OwnerAsk{Verb: fleet.OwnerResume}); err != nil || got.Pause {
		t.Errorf("%+v %v", got, err)
	}
	a.present["j1g0"] = presence{fleet.VM, fleet.GuestFacts{Run: fleet.Running, ResidentBytes: 1 << 20}}
	a.noteGuests() // it was here before
	a.present["j2g0"] = presence{fleet.VM, fleet.GuestFacts{Run: fleet.Incoming}}
	a.noteGuests()
	a.present["j2g0"] = presence{fleet.VM, fleet.GuestFacts{Run: fleet.Running}}
	a.noteGuests()
	delete(a.present, "j1g0")
	a.noteGuests()
	got, err = ask(fleet.OwnerAsk{Verb: fleet.OwnerHistory})
	var says []string
	for _, e := range got.History {
		says = append(says, e.Says)
	}
	if text := strings.Join(says, "; "); err != nil || !strings.HasSuffix(text, "guest j2g0 came; guest j1g0 went") || len(got.Guests) != 1 {
		t.Errorf("%s %+v %v", text, got.Guests, err)
	}
	for what, q := range map[string]fleet.OwnerAsk{"cannot": {Verb: "reboot"}, "at most": {Verb: fleet.OwnerPause, For: -1}, "no policy": {Verb: fleet.OwnerAgrees}} {
		if _, err := ask(q); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if got := a.AnswerOwner(4711, fleet.OwnerAsk{Verb: fleet.OwnerPause}); !strings.Contains(got.Refused, "not an owner") || got.Guests != nil || got.Host != "" {
		t.Errorf("a stranger: %+v", got)
	}
	if got := a.AnswerOwner(0, fleet.OwnerAsk{Verb: fleet.OwnerStatus}); got.Refused != "" {
		t.Errorf("root: %+v", got)
	}
}
