package monitor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// script is sensors with a test's samples, and guests that note calls: only for the
// monitor's own bookkeeping.
type script struct {
	mu     sync.Mutex
	sample fleet.OwnerSample
	panics bool
	fails  error
	told   []string
}

func (s *script) Sample(context.Context, []string) fleet.OwnerSample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.panics {
		panic("a sensor has a bug")
	}
	return s.sample
}

func (s *script) tell(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, what)
	return s.fails
}

func (s *script) Deprioritise(part float64, leaving bool) error {
	what := "deprioritise"
	if part > 0 {
		what += " capped"
	}
	if leaving {
		what += " leaving"
	}
	return s.tell(what)
}

func (s *script) Restore() error { return s.tell("restore") }

func (s *script) set(f func(*script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// took gives the calls since the last time.
func (s *script) took() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.told
	s.told = nil
	return out
}

func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle, load := 24*time.Hour, 0.0
		s := &script{sample: fleet.OwnerSample{Idle: &idle, NonGuestCPUs: &load}}
		file := filepath.Join(t.TempDir(), "owner.json")
		if err := os.WriteFile(file, []byte("half a li"), 0o600); err != nil {
			t.Fatal(err)
		}
		l := New(Config{Sensors: s, Guests: s, CPUs: 2, File: file, Log: slog.New(slog.DiscardHandler)})
		if l.Seen() != nil {
			t.Error("it has seen somebody before it looked")
		}
		var leaving atomic.Bool
		l.Leaving(func() bool { return leaving.Load() })
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); l.Run(ctx) }()
		is := func(when string, want ...string) {
			t.Helper()
			if got := s.took(); !slices.Equal(got, want) {
				t.Errorf("%s guests were told %q, want %q", when, got, want)
			}
		}
		is("at first", "restore")
		if err := l.Agree(fleet.OwnerPolicy{Owned: true, Cap: 0.5}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		is("without an owner")
		// A failure is retried with each sample, and reported.
		busy := 1.5
		s.set(func(s *script) { s.sample.NonGuestCPUs, s.fails = &busy, errors.New("no groups") })
		time.Sleep(3 * time.Second)
		if got := s.took(); len(got) < 2 || got[0] != "deprioritise capped" || got[len(got)-1] != "deprioritise capped" {
			t.Errorf("guests were told %q", got)
		}
		if o := l.Seen(); !o.Present || !strings.Contains(strings.Join(o.Deaf, " "), "guests are not deprioritised: no groups") {
			t.Errorf("it says %+v", o)
		}
		s.set(func(s *script) { s.fails = nil })
		time.Sleep(3 * time.Second)
		is("when it works again", "deprioritise capped")
		if o := l.Seen(); len(o.Deaf) > 0 {
			t.Errorf("it still says %v", o.Deaf)
		}
		leaving.Store(true)
		time.Sleep(2 * time.Second)
		is("while some leave", "deprioritise capped leaving")
		leaving.Store(false)
		time.Sleep(2 * time.Second)
		is("when they have left", "deprioritise capped")
		// A sensor with a bug costs only its samples.
		s.set(func(s *script) { s.panics = true })
		time.Sleep(3 * time.Second)
		if o := l.Seen(); !o.Present || !strings.Contains(strings.Join(o.Deaf, " "), "a sensor has a bug") {
			t.Errorf("it says %+v", o)
		}
		s.set(func(s *script) { s.panics, s.sample.NonGuestCPUs = false, &load })
		s.took()
		time.Sleep(16 * time.Minute)
		is("when the owner has gone", "restore")
		// Repeating a policy changes nothing, and the last policy is remembered.
		if err := errors.Join(l.Agree(fleet.OwnerPolicy{}), l.Agree(fleet.OwnerPolicy{})); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		is("when it has no owner")
		if p, err := l.remembered(); err != nil || p.Owned {
			t.Errorf("it remembers %+v: %v", p, err)
		}
		stop()
		<-over
	})
}

// A nil monitor sees no owner.
func TestHostWithoutOwner(t *testing.T) {
	var l *Monitor
	l.Run(t.Context())
	l.Leaving(func() bool { return true })
	if err := l.Agree(fleet.OwnerPolicy{Owned: true}); err != nil || l.Seen() != nil || l.News() != nil {
		t.Errorf("%v %v", err, l.Seen())
	}
}
