// This file keeps some of a host's CPUs for guests alone, as the controller
// wants it, again and again: processes, interrupts and threads come and go.
//
// It must not know how that is done. When it ends all stays as it is, as guests do;
// the next one goes on. Its tests run against a host that is kept in memory; package
// act/isolate has those against the kernel.

package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
)

// IsolationHost is what is kept quiet. Each method may be called again.
type IsolationHost interface {
	// On keeps CPUs for guests alone, and no others. After an error some may be.
	On(fleet.CPUSet) (fleet.Isolation, error)
	// Off puts everything back. After an error call again.
	Off() error
	// Now says which CPUs are kept; none: it is off.
	Now() (fleet.CPUSet, error)
}

// Isolation keeps one host as it is wanted. A nil Isolation says nothing.
type Isolation struct {
	host   IsolationHost
	log    *slog.Logger
	wished chan struct{} // capacity 1

	mu     sync.Mutex
	told   bool
	wanted fleet.CPUSet
	seen   fleet.Isolation
}

// NewIsolation makes an Isolation. Why it cannot be had here is unable, for people; there is no
// host then.
func NewIsolation(h IsolationHost, unable string, log *slog.Logger) *Isolation {
	k := &Isolation{host: h, log: log, wished: make(chan struct{}, 1), seen: fleet.Isolation{Unable: unable}}
	if h == nil {
		return k
	}
	var err error
	if k.seen.CPUs, err = h.Now(); err != nil {
		k.seen.Trouble = err.Error()
	}
	return k
}

// Want says which CPUs shall be for guests alone; none: it shall be off.
func (k *Isolation) Want(cpus fleet.CPUSet) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.told && slices.Equal(k.wanted, cpus) {
		return
	}
	k.told, k.wanted = true, cpus
	select {
	case k.wished <- struct{}{}:
	default:
	}
}

// Seen is what has been made of it; nil: nothing is known.
func (k *Isolation) Seen() *fleet.Isolation {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	q := k.seen
	return &q
}

// CPUs are those that guests may use; none: all.
func (k *Isolation) CPUs() fleet.CPUSet {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen.CPUs
}

// again is how soon what has come since is kept off the CPUs, too, and what went
// wrong is tried again. It takes some milliseconds, on the other CPUs.
const again = 10 * time.Second

// Run keeps the host as it is wanted until ctx ends. Before anybody has said what
// is, it stays as it is.
func (k *Isolation) Run(ctx context.Context) {
	if k == nil || k.host == nil {
		return
	}
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wished:
		case <-tick.C:
		}
		k.once()
	}
}

func (k *Isolation) once() {
	k.mu.Lock()
	told, wanted, was := k.told, k.wanted, k.seen
	k.mu.Unlock()
	if !told {
		return
	}
	now := fleet.Isolation{}
	var err error
	if len(wanted) > 0 {
		now, err = k.host.On(wanted)
	} else {
		err = k.host.Off()
	}
	if err != nil {
		now.Trouble = err.Error()
		now.CPUs, _ = k.host.Now() // if it cannot be said, that was the trouble
	}
	now.Wanted = wanted
	switch {
	case now.Trouble != "" && now.Trouble != was.Trouble:
		k.log.Warn("CPUs are not isolated as they should be", "wanted", wanted, "cause", now.Trouble)
	case now.Trouble == "" && (was.Trouble != "" || !slices.Equal(now.CPUs, was.CPUs)):
		k.log.Info("CPUs isolated for guests", "cpus", now.CPUs, "changed", now.Changed, "left", now.Left)
	}
	k.mu.Lock()
	k.seen = now
	k.mu.Unlock()
}
