// Package monitor has the monitors of a host: whether its owner is there, and whether it may fail. The first samples the sensors once a second,
// lets package presence judge the samples, and deprioritises guests at once. It owns the
// interfaces it uses and knows neither guests nor the controller.
//
// It may be killed at any moment: deprioritised guests stay so until the next monitor has
// sampled. Its tests run against the real sensors and the kernel's control groups.
package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"pagurus/decide/presence"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// Sensors detect the owner's presence.
type Sensors interface {
	// Sample reads all sensors, in milliseconds. exclusive are programs to search for.
	// Sensors that fail are listed in the sample and do not count.
	Sample(ctx context.Context, exclusive []string) fleet.OwnerSample
}

// Guests are all guests of the host together. Each method may be called at any time, and
// again.
type Guests interface {
	// Deprioritise leaves guests only the CPU time that no other process wants, and at most part
	// of the CPUs, 0 to 1; 0 is no limit. If leaving is set, guests get the CPU time that
	// moving them away needs. It holds after this process has ended. After an error call
	// again.
	Deprioritise(part float64, leaving bool) error
	// Restore undoes Deprioritise, if it was called. After an error call again.
	Restore() error
}

// Config configures a monitor.
type Config struct {
	Sensors Sensors
	Guests  Guests
	CPUs    int    // of the host
	File    string // keeps the owner's policy for the next agent

	LocalFile string // keeps what the owner said at the machine for the next agent; empty: nothing does

	Log *slog.Logger
}

// sampleEvery is the interval of samples.
const sampleEvery = time.Second

// Monitor watches one host. Run must be called once; other methods at any time. A nil
// Monitor does nothing.
type Monitor struct {
	Config
	begun time.Time // with its monotonic part

	mu      sync.Mutex
	policy  fleet.OwnerPolicy
	told    bool // policy came from the controller
	watch   presence.Watch
	sampled bool
	trouble string // the error of deprioritising guests

	local  local     // under mu
	wished time.Time // under mu: when the controller was first heard after the owner chose a policy here

	leaving func() bool // under mu; reports whether guests are being sent away; nil: none
	held    cpuShare    // Run's: the limits last set for guests
	settled bool        // Run's: held is in effect

	news   chan struct{} // capacity 1
	turned chan struct{} // capacity 1
	agreed chan struct{} // capacity 1: policy has changed
}

// cpuShare is the guests' CPU limits.
type cpuShare struct {
	part    *float64 // nil: no limits
	leaving bool
}

// New makes a monitor and starts nothing.
func New(c Config) *Monitor {
	return &Monitor{Config: c, begun: time.Now(), news: make(chan struct{}, 1), turned: make(chan struct{}, 1), agreed: make(chan struct{}, 1)}
}

// News receives when Seen has a new state.
func (l *Monitor) News() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.news
}

// Turned receives when the owner's presence changes.
func (l *Monitor) Turned() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.turned
}

// Run watches until ctx ends. The owner's last policy applies from the start, since the
// controller may be away.
func (l *Monitor) Run(ctx context.Context) {
	if l == nil {
		return
	}
	p, err := l.remembered()
	if err != nil {
		l.Log.Warn("the owner's policy is unknown until the controller sends it", "cause", err)
	}
	l.mu.Lock()
	if !l.told {
		l.policy = p
	}
	l.mu.Unlock()
	l.recall()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		l.sample(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-l.agreed:
		}
	}
}

func (l *Monitor) remembered() (p fleet.OwnerPolicy, err error) {
	text, err := os.ReadFile(l.File)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// Leaving sets how the monitor asks whether guests are being sent away.
func (l *Monitor) Leaving(is func() bool) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = is
}

// Agree sets the owner's policy from the controller, with effect at once. After an error it
// has effect, but the next agent does not know it.
func (l *Monitor) Agree(p fleet.OwnerPolicy) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	p = l.wishes(p, time.Now())
	same := reflect.DeepEqual(p, l.policy)
	l.policy, l.told = p, true
	l.mu.Unlock()
	if !same {
		poke(l.agreed)
	}
	if before, err := l.remembered(); err == nil && reflect.DeepEqual(before, p) {
		return nil
	}
	text, err := json.Marshal(p)
	if err == nil {
		err = note.Write(l.File, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("saving the owner's policy: %w", err)
	}
	return nil
}

// Seen is the owner's state; nil before the first sample.
func (l *Monitor) Seen() *fleet.Owner {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sampled {
		return nil
	}
	now := time.Now()
	o := l.watch.Owner(now.Sub(l.begun), now)
	o.Wish = l.local.Wish
	if l.trouble != "" {
		o.Deaf = append(o.Deaf[:len(o.Deaf):len(o.Deaf)], "guests are not deprioritised: "+l.trouble)
	}
	return o
}

// sample reads the sensors and deprioritises or restores guests accordingly.
func (l *Monitor) sample(ctx context.Context) {
	l.mu.Lock()
	p := l.inForce(time.Now())
	l.mu.Unlock()
	seen := l.ask(ctx, p.Exclusive)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	l.mu.Lock()
	at := now.Sub(l.begun)
	was, first := l.watch.Owner(at, now), !l.sampled
	l.watch = presence.Next(l.watch, p, presence.Moment{At: at, Clock: now, CPUs: l.CPUs, Sample: seen})
	is := l.watch.Owner(at, now)
	l.sampled = true
	leaving := l.leaving
	l.mu.Unlock()
	want := cpuShare{part: presence.Share(is.State, p)}
	want.leaving = want.part != nil && leaving != nil && leaving()
	l.noteTrouble(l.deprioritise(want))
	if was.State != is.State || first {
		l.Log.Info("the host's owner", "is", is.State, "was", was.State, "signs", is.Why)
		poke(l.news)
	}
	if was.State.There() != is.State.There() {
		poke(l.turned)
		if is.State.There() {
			l.AddEvent("the owner came: " + is.Why)
		} else if !first {
			l.AddEvent("the owner is gone")
		}
	}
}

// ask reads the sensors. A panic in one costs its sample, not the agent.
func (l *Monitor) ask(ctx context.Context, exclusive []string) (out fleet.OwnerSample) {
	defer func() {
		if p := recover(); p != nil {
			l.Log.Error("panic in the owner's sensors", "panic", p)
			out = fleet.OwnerSample{Deaf: []string{fmt.Sprintf("all sensors: %v", p)}}
		}
	}()
	return l.Sensors.Sample(ctx, exclusive)
}

// deprioritise sets or removes the guests' CPU limits. Limits already in effect are not set
// again.
func (l *Monitor) deprioritise(want cpuShare) error {
	if l.settled && reflect.DeepEqual(want, l.held) {
		return nil
	}
	l.settled, l.held = false, want
	var err error
	if want.part == nil {
		err = l.Guests.Restore()
	} else {
		err = l.Guests.Deprioritise(*want.part, want.leaving)
	}
	if l.settled = err == nil; l.settled && want.part != nil {
		l.Log.Info("guests deprioritised for the host's owner", "cpus", *want.part, "leaving", want.leaving)
	} else if l.settled {
		l.Log.Info("guests no longer deprioritised")
	}
	return err
}

// noteTrouble remembers an error and logs the change.
func (l *Monitor) noteTrouble(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.trouble
	if l.trouble = ""; err != nil {
		l.trouble = err.Error()
	}
	if l.trouble != was {
		l.Log.Warn("deprioritising guests for the host's owner", "cause", err)
	}
}

// poke signals a channel of capacity 1.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
