// Package monitor watches for the owner of a host: it asks the sensors once a
// second, lets package presence judge what they say, and has guests give way at
// once. It owns the interfaces of what it uses and knows neither guests nor the
// controller.
//
// It may be killed at any moment: guests that gave way go on doing so until the
// next one has looked. Its tests run against the real sensors and the kernel's
// control groups.
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

// Sensors tell who else is at the host.
type Sensors interface {
	// Sample asks all of them, in milliseconds. exclusive are programs to look
	// for. Those that fail say so in the sample and do not count.
	Sample(ctx context.Context, exclusive []string) fleet.OwnerSample
}

// Guests are all guests of the host together. Each method may be called at any
// time, and again.
type Guests interface {
	// Deprioritise has them run on what nobody else wants and on no more than part of
	// the CPUs, 0 to 1; 0 is no ceiling. While some are leaving they get what
	// that takes. It holds after this process has ended. After an error call
	// again.
	Deprioritise(part float64, leaving bool) error
	// Restore ends Yield, if there was one. After an error call again.
	Restore() error
}

// Config is what a monitor is made of.
type Config struct {
	Sensors Sensors
	Guests  Guests
	CPUs    int    // of the host
	File    string // keeps what the owner agreed to for the next agent
	Log     *slog.Logger
}

// sampleEvery is how often the sensors are asked.
const sampleEvery = time.Second

// Monitor watches one host. Run is to be called once; all else at any time. A
// nil Monitor sees nobody.
type Monitor struct {
	Config
	begun time.Time // with its monotonic part

	mu      sync.Mutex
	policy  fleet.OwnerPolicy
	told    bool // policy is what the controller says
	watch   presence.Watch
	sampled bool
	trouble string // with having guests give way

	leaving func() bool // under mu; nil: nobody is
	held    cpuShare    // Run's: what guests are held to
	settled bool        // Run's: held is what the host has

	news   chan struct{} // capacity 1
	turned chan struct{} // capacity 1
	agreed chan struct{} // capacity 1: policy has changed
}

// cpuShare is what guests are held to.
type cpuShare struct {
	part    *float64 // nil: nothing
	leaving bool
}

// New makes a monitor; it touches nothing yet.
func New(c Config) *Monitor {
	return &Monitor{Config: c, begun: time.Now(), news: make(chan struct{}, 1), turned: make(chan struct{}, 1), agreed: make(chan struct{}, 1)}
}

// News has something when Seen tells of another state than before.
func (l *Monitor) News() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.news
}

// Turned has something when guests have to give way, or no longer have to.
func (l *Monitor) Turned() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.turned
}

// Run watches until ctx ends. What the owner agreed to last counts from the
// start: the controller may be away.
func (l *Monitor) Run(ctx context.Context) {
	if l == nil {
		return
	}
	p, err := l.remembered()
	if err != nil {
		l.Log.Warn("what the host's owner agreed to is not known until the controller says it", "cause", err)
	}
	l.mu.Lock()
	if !l.told {
		l.policy = p
	}
	l.mu.Unlock()
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

// Leaving has the monitor ask whether guests are being sent away.
func (l *Monitor) Leaving(is func() bool) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = is
}

// Agree takes what the owner has agreed to, as the controller says. It counts
// at once. After an error it counts, and the next agent does not know it.
func (l *Monitor) Agree(p fleet.OwnerPolicy) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
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
		return fmt.Errorf("remembering what the host's owner agreed to: %w", err)
	}
	return nil
}

// Seen is what is known of the owner; nil: nobody has looked yet.
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
	if l.trouble != "" {
		o.Deaf = append(o.Deaf[:len(o.Deaf):len(o.Deaf)], "guests are not deprioritised: "+l.trouble)
	}
	return o
}

// sample asks the sensors and has guests give way, or no longer, by what they
// say.
func (l *Monitor) sample(ctx context.Context) {
	l.mu.Lock()
	p := l.policy
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
	}
}

// ask asks the sensors. A panic in one costs its sample, not the agent.
func (l *Monitor) ask(ctx context.Context, exclusive []string) (out fleet.OwnerSample) {
	defer func() {
		if p := recover(); p != nil {
			l.Log.Error("panic in the owner's sensors", "panic", p)
			out = fleet.OwnerSample{Deaf: []string{fmt.Sprintf("all sensors: %v", p)}}
		}
	}()
	return l.Sensors.Sample(ctx, exclusive)
}

// deprioritise holds all guests to a part of the CPUs, and to what nobody else
// wants, or to neither. What the host has already is not set again.
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

// noteTrouble remembers a trouble, and logs the change.
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

// poke says that there is something, once.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
