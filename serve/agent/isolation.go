// This file keeps some of a host's CPUs for guests alone, as the controller wants it. It
// repeats this, because processes, interrupts and threads come and go.
//
// It must not know how that is done. When it ends, the CPUs stay as they are, and the next
// agent continues. Its tests run against an in-memory host; act/isolate has those against
// the kernel.

package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
)

// IsolationHost isolates CPUs of a host. Each method may be called again.
type IsolationHost interface {
	// On isolates exactly these CPUs. After an error some of them may be isolated.
	On(fleet.CPUSet) (fleet.Isolation, error)
	// Off undoes everything. After an error call again.
	Off() error
	// Now gives the isolated CPUs, none if isolation is off.
	Now() (fleet.CPUSet, error)
}

// Isolation keeps one host's CPUs isolated as wanted. A nil Isolation does nothing.
type Isolation struct {
	host   IsolationHost
	log    *slog.Logger
	wished chan struct{} // capacity 1

	mu     sync.Mutex
	told   bool
	wanted fleet.CPUSet
	seen   fleet.Isolation
}

// NewIsolation makes an Isolation. unable says, for people, why the host cannot isolate
// CPUs; h is nil then.
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

// Want sets which CPUs should be isolated; none turns isolation off.
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

// Seen is the present state; nil if unknown.
func (k *Isolation) Seen() *fleet.Isolation {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	q := k.seen
	return &q
}

// CPUs are those that guests may use; none means all.
func (k *Isolation) CPUs() fleet.CPUSet {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen.CPUs
}

// again is the interval for moving new processes off the isolated CPUs and for retries. It
// takes some milliseconds, on the other CPUs.
const again = 10 * time.Second

// Run keeps the host as wanted until ctx ends. Before the first Want it changes nothing.
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
		now.CPUs, _ = k.host.Now() // an error here is already the trouble
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
