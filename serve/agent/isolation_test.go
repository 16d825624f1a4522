package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// memory is an in-memory host.
type memory struct {
	mu   sync.Mutex
	cpus fleet.CPUSet
	err  error
	asks int
}

func (m *memory) On(c fleet.CPUSet) (fleet.Isolation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks++
	if m.err != nil {
		return fleet.Isolation{}, m.err
	}
	m.cpus = c
	return fleet.Isolation{CPUs: c, Changed: 3, Left: []string{"x: y"}}, nil
}

func (m *memory) Off() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks++
	if m.err == nil {
		m.cpus = nil
	}
	return m.err
}

func (m *memory) Now() (fleet.CPUSet, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cpus, nil
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// The CPUs isolated when the agent ended stay isolated until the controller sends something.
func TestTheHostIsKeptAsWanted(t *testing.T) {
	m := &memory{cpus: fleet.CPUSet{7}}
	k := NewIsolation(m, "", slog.New(slog.DiscardHandler))
	if got := k.CPUs().String(); got != "7" {
		t.Errorf("before anything was said it is %q", got)
	}
	k.once()
	if m.asks != 0 {
		t.Error("it did something without a request")
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { k.Run(ctx); close(ended) }()
	becomes := func(what string, is func(fleet.Isolation) bool) {
		t.Helper()
		testkit.Until(t, 10*time.Second, what, func() bool { return is(*k.Seen()) })
	}
	k.Want(fleet.CPUSet{1, 2})
	becomes("it is on", func(q fleet.Isolation) bool {
		return q.CPUs.String() == "1-2" && q.Wanted.String() == "1-2" && q.Changed == 3 && len(q.Left) == 1
	})
	m.fail(errors.New("no"))
	k.Want(nil)
	becomes("it is in trouble", func(q fleet.Isolation) bool {
		return q.Trouble == "no" && q.CPUs.String() == "1-2" && len(q.Wanted) == 0
	})
	m.fail(nil)
	k.once() // as after an interval
	if q := k.Seen(); q.Trouble != "" || len(q.CPUs) != 0 {
		t.Errorf("off: %+v", q)
	}
	stop()
	<-ended
}

func TestWhereItCannotBeHad(t *testing.T) {
	k := NewIsolation(nil, "it is a lab's", slog.New(slog.DiscardHandler))
	k.Want(fleet.CPUSet{1})
	k.Run(t.Context())
	if q := k.Seen(); q.Unable != "it is a lab's" || len(k.CPUs()) != 0 {
		t.Errorf("%+v", q)
	}
	var none *Isolation
	none.Want(nil)
	none.Run(t.Context())
	if none.Seen() != nil || none.CPUs() != nil {
		t.Error("it reports something without isolation")
	}
}
